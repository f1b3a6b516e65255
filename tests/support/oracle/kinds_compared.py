"""A store of any kind, read by this project's reading library, against what Spark's own reader says."""

from __future__ import annotations

import json

from tests.support.checkpoint.reader import CheckpointReader
from tests.support.oracle.json import as_text
from tests.support.oracle.kinds import KindStore

from understudy_shared.base.words import StoreName
from understudy_shared.spark.key_codec import ANY_PARTITION


def assert_equal(reader: CheckpointReader, store: KindStore, version: int) -> None:
    """Every key that the store had at any version is answered as Spark's reader has it at this one."""
    served = reader.stores[StoreName(store.name)]
    (partitions,) = (each.partitions for each in reader.description.operators if each.operator_id == served.operator_id)
    finders = [reader.finder(served, partition, version) for partition in range(partitions)]
    every_key = {json.dumps(kept.key): kept.key for rows in store.kept.values() for kept in rows}
    there = {json.dumps(kept.key): kept for kept in store.kept[version]}
    for text, key in every_key.items():
        row = served.codec.parse_json(key)
        partition = served.codec.partition(row, len(finders))
        if partition == ANY_PARTITION:
            every = {each: find(served.codec.encode(row)) for each, find in enumerate(finders)}
            partition = next((each for each, said in every.items() if said is not None), ANY_PARTITION)
            assert [each for each, said in every.items() if said is not None] in ([partition], [])
        found = None if partition == ANY_PARTITION else finders[partition](served.codec.encode(row))
        kept = there.get(text) or (there.get(json.dumps(_with_zero(key))) if store.kind == "set" else None)
        if kept is None:
            assert found is None, f"{store.operator} {key} at version {version}: Spark has it no more"
        else:
            assert found is not None, f"{store.operator} {key} at version {version}"
            said = json.loads(b"{" + found.removesuffix(b",") + b"}")
            assert as_text(said) == as_text(kept.said), f"{store.operator} {key} at version {version}"
            assert partition == kept.partition, f"{store.operator} {key}"


def _with_zero(key: list[object]) -> list[object]:
    """The key with 0.0 for -0.0: a deduplication is asked for either where Spark keeps zero (`EitherZero`)."""
    return [0.0 if part == 0.0 and isinstance(part, float) else part for part in key]
