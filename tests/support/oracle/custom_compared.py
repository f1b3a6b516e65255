"""State variables, read by this project's reading library and at a node, against what Spark's own reader says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.checkpoint.reader import CheckpointReader
from tests.support.cluster.served_node import served_node
from tests.support.oracle.custom_state import in_order
from tests.support.oracle.json import as_text
from tests.support.oracle.kinds import PARTITIONS, Kept, KindsCheckpoint, KindStore
from tests.support.spark.queries import wait_until

from understudy_shared.base.words import StoreName


def assert_every_version_equal(oracle: KindsCheckpoint, folder: Path) -> None:
    """Every variable at every retained version; `folder` is for the replicas."""
    for version in oracle.versions:
        with closing(CheckpointReader(oracle.path, folder / str(version))) as reader:
            assert {name: store.kind for name, store in reader.stores.items()} == {
                name: store.kind for name, store in oracle.stores.items()
            }
            for store in oracle.stores.values():
                assert_variable_equal(reader, store, version)


def assert_answered_by_a_node(oracle: KindsCheckpoint, data: Path) -> None:
    """Every key that there is now, and every entry of a map, in batches; `data` is for the node."""
    with served_node(oracle.path, data) as served:
        wait_until(lambda: served.not_ready() == "", what="every store to be open")
        assert served.get("/v1/stores").body["not_served"] == []
        for store in oracle.stores.values():
            kept = store.kept[oracle.last]
            asked = [(each.partition, each.key, in_order(each.said)) for each in kept]
            asked += [(each.partition, key, said) for each in kept for key, said in entries_of(each)]
            answers: Any = served.look_up_all([key for _, key, _ in asked], store=store.name)
            for (partition, key, said), answer in zip(asked, answers, strict=True):
                found = in_order({member: answer[member] for member in said})
                assert as_text(found) == as_text(said), f"{store.name} {json.dumps(key)}"
                assert (answer["status"], answer["partition"], answer["version"]) == (200, partition, oracle.last)


def assert_variable_equal(reader: CheckpointReader, store: KindStore, version: int) -> None:
    """Every key that the variable had at any version is answered as Spark's reader has it at this one, and every entry
    of a map, too.
    """
    served = reader.stores[StoreName(store.name)]
    finders = [reader.finder(served, partition, version) for partition in range(PARTITIONS)]
    every_key = {json.dumps(kept.key): kept.key for rows in store.kept.values() for kept in rows}
    there = {json.dumps(kept.key): kept for kept in store.kept[version]}

    def said_of(key: list[object]) -> tuple[int, dict[str, Any] | None]:
        row = served.codec.parse_json(key)
        partition, encoded = served.codec.partition(row, PARTITIONS), served.codec.encode(row)
        assert served.codec.place(encoded, PARTITIONS) == partition
        assert as_text(list(served.codec.to_json(encoded).values())) == as_text(key)
        found = finders[partition](encoded)
        return partition, None if found is None else json.loads(b"{" + found.removesuffix(b",") + b"}")

    for text, key in every_key.items():
        kept = there.get(text)
        partition, said = said_of(key)
        if kept is None:
            assert said is None, f"{store.name} {key} at version {version}: Spark has it no more"
            continue
        assert said is not None, f"{store.name} {key} at version {version}"
        assert as_text(in_order(said)) == as_text(in_order(kept.said)), f"{store.name} {key} at version {version}"
        assert partition == kept.partition, f"{store.name} {key}"
        for whole, entry in entries_of(kept):
            found_in, one = said_of(whole)
            assert (found_in, as_text(one)) == (partition, as_text(entry)), f"{store.name} {whole}"


def entries_of(kept: Kept) -> Iterator[tuple[list[object], dict[str, Any]]]:
    """The entries of a map, each with the key that it is asked for by, and what an answer says then."""
    for each in kept.said.get("entries", ()):
        said = {name: value for name, value in each.items() if name != "key"}
        yield [*kept.key, *each["key"].values()], {"found": True, **said}
