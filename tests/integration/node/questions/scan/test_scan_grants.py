"""Scans and counts of roles of some keys: they read their own keys, and learn of no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import VALUE, HandmadeCheckpoint
from tests.support.cluster.served_node import Reply, ServedNode, served_node
from tests.support.oracle.scanned import pages, scan_target
from tests.support.services.guarded import Keys
from tests.support.spark.counting_query import WORDS

from understudy_shared.questions.scan import service as scans
from understudy_shared.questions.scan.question import decode_scan_cursor
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import Field, LongType, StringType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder


@pytest.fixture
def counts(tmp_path: Path) -> HandmadeCheckpoint:
    return HandmadeCheckpoint(tmp_path / "counts", partitions=3).create().add(1)


def asked(served: ServedNode, call: str = "scan", **members: object) -> Reply:
    return served.get(scan_target("op0", call, **members))


def test_a_role_of_some_keys_scans_inside_its_prefix_and_learns_of_no_other_key(
    counts: HandmadeCheckpoint, tmp_path: Path
) -> None:
    """Q62."""
    keys = Keys(tmp_path / "credentials.toml")
    keys.role("of-one", f'{{stores = ["op0"], actions = ["scan"], key_prefix = ["{WORDS[0]}"]}}')
    keys.add("one", "of-one")
    keys.add("all", "reader")
    keys.add("monitor", "monitor")
    with served_node(counts.path, tmp_path / "data", credentials_file=keys.path) as served:
        served.key = keys["monitor"]
        served.wait_for_version(1)
        served.key = keys["all"]
        token = asked(served, limit=1).body["next_cursor"]
        served.key = keys["one"]
        inside = asked(served, prefix=[WORDS[0]], explain=True)
        assert len(inside.body["rows"]) == 1  # type: ignore[arg-type]
        assert inside.body["explain"] == {"access": "seek", "returned": 1}
        assert asked(served, "count", prefix=[WORDS[0]]).body["count"] == 1
        for members in ({}, {"prefix": [WORDS[1]]}, {"where": [["word", "=", WORDS[0]]]}, {"cursor": token}):
            for call in ("scan", "count"):
                assert asked(served, call, **members).problem == "forbidden", members
        assert asked(served, prefix=[WORDS[0]], cursor=token).problem == "bad-bound"


PAIRS = StructType((Field("tenant", StringType()), Field("n", LongType())))


class PairsCheckpoint(HandmadeCheckpoint):
    """Keys of two columns: numbers of two tenants."""

    def _records(self, version: int, partition: int) -> list[spark.Record]:
        codec, value = KeyCodec(PAIRS), compile_row_encoder(VALUE)
        keys = [(tenant, number) for tenant in ("a", "b") for number in range(40)]
        return [
            (codec.encode(key), value((key[1], version)))
            for key in keys
            if codec.partition(key, self.partitions) == partition
        ]


def test_pages_of_a_role_of_some_keys_end_at_its_own_keys_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q62: with a prefix of some columns other keys are passed over, and neither cursor nor explain shows them."""
    columns = (("tenant", "string"), ("n", "long"))
    pairs = PairsCheckpoint(tmp_path / "pairs", partitions=3, key_columns=columns).create().add(1)
    keys = Keys(tmp_path / "credentials.toml")
    keys.role("of-a", '{stores = ["op0"], actions = ["scan"], key_prefix = ["a"]}')
    keys.add("a", "of-a")
    keys.add("monitor", "monitor")
    with served_node(pairs.path, tmp_path / "data", credentials_file=keys.path) as served:
        served.key = keys["monitor"]
        served.wait_for_version(1)
        served.key = keys["a"]
        found = list(pages(served, "op0", prefix=["a"], limit=3, explain=True))
        rows = [row["key"] for page in found for row in page["rows"]]
        assert sorted(row["n"] for row in rows) == list(range(40))
        assert {row["tenant"] for row in rows} == {"a"}
        for page in found[:-1]:
            after = decode_scan_cursor(page["next_cursor"]).after
            assert after is None or KeyCodec(PAIRS).decode(after)[0] == "a"
        assert all(page["explain"] == {"access": "filtered-pass", "returned": len(page["rows"])} for page in found)
        assert asked(served, "count", prefix=["a"]).body["count"] == 40
        assert asked(served, "count", prefix=["a", 7]).body["count"] == 1
        assert asked(served, prefix=["b"]).problem == asked(served, prefix=["b", 7]).problem == "forbidden"
        monkeypatch.setattr(scans, "CONFINED_MS", -1)
        reply = asked(served, prefix=["a"], where=[["n", ">", 1_000]])
        assert (reply.status, reply.problem) == (504, "deadline")
        assert "prefix of all key columns" in reply.text
