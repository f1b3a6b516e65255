"""Changes at a node: what each version of a range put or deleted, in the order of versions, or why that is not known.

The checkpoint is made by hand: at version V each word was counted V times, and version V brings the word born-(V-1).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.oracle.scanned import scan_target
from tests.support.services.changes import changes_of, changes_target
from tests.support.services.guarded import Keys
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_node.replica.past_versions import KeptChangelogs

LAST = 5
PARTITIONS = 3


@pytest.fixture
def counts(tmp_path: Path) -> HandmadeCheckpoint:
    made = HandmadeCheckpoint(tmp_path / "counts", partitions=PARTITIONS)
    return made.create().add(*range(1, LAST + 1))


@pytest.fixture
def node(counts: HandmadeCheckpoint, tmp_path: Path) -> Iterator[ServedNode]:
    with serving(counts, tmp_path / "data") as served:
        yield served


@contextmanager
def serving(checkpoint: HandmadeCheckpoint, folder: Path, **settings: Any) -> Iterator[ServedNode]:
    with served_node(checkpoint.path, folder, **settings) as served:
        served.wait_for_version(LAST, partitions=checkpoint.partitions)
        yield served


def test_a_prefix_a_partition_and_columns_narrow_the_changes(node: ServedNode) -> None:
    whole = changes_of(node, 1)
    word = changes_of(node, 2, prefix=[WORDS[0]])
    assert word.changes == [each for each in whole.changes if each["key"]["word"] == WORDS[0] and each["version"] > 1]
    assert word.end["partitions"] == 1
    parts = [changes_of(node, 1, partition=each).changes for each in range(PARTITIONS)]
    assert sorted(map(str, (each for changes in parts for each in changes))) == sorted(map(str, whole.changes))
    slim = changes_of(node, LAST, fields="total", longs="string")
    assert {tuple(each["value"]) for each in slim.changes} == {("total",)}
    assert all(isinstance(each["value"]["total"], str) for each in slim.changes)


def test_what_cannot_be_read_is_refused_before_the_first_byte(node: ServedNode, counts: HandmadeCheckpoint) -> None:
    for members, status, where in (
        ({"from": 1, "where": [["count", ">", 1]]}, 400, "where"),
        ({"from": 1, "prefix": [1, 2]}, 400, "prefix"),
        ({"from": 1, "to": LAST + 1}, 503, "to"),
    ):
        reply = node.get(scan_target("op0", "changes", **members))
        assert (reply.status, reply.body["where"]) == (status, where), members
        assert reply.problem
    node.node.past.changelogs = KeptChangelogs(max_bytes=0)
    # One partition alone has lost its oldest changes.
    (counts.path / counts.changelog_path(2, PARTITIONS - 1)).unlink()
    gone = node.get(changes_target(1))
    assert (gone.status, gone.problem, gone.body["retained_versions"]) == (410, "version-gone", [3, LAST])
    assert changes_of(node, 3).end["to"] == LAST
    for version in range(1, LAST + 1):
        for partition in range(PARTITIONS):
            (counts.path / counts.changelog_path(version, partition)).unlink(missing_ok=True)
    never = node.get(changes_target(LAST))
    assert (never.status, never.problem) == (400, "bad-bound")
    assert "changelogCheckpointing" in never.text
    (counts.path / "state").rename(counts.path / "away")
    away = node.get(changes_target(LAST))
    assert (away.status, away.problem) == (502, "store-error"), "nothing is known of what Spark writes"


def test_a_role_of_some_keys_reads_their_changes_only_and_needs_the_right_to_export(
    counts: HandmadeCheckpoint, tmp_path: Path
) -> None:
    keys = Keys(tmp_path / "credentials.toml")
    keys.role("of-one", f'{{stores = ["op0"], actions = ["export"], key_prefix = ["{WORDS[0]}"]}}')
    keys.role("scanner", '{stores = ["op0"], actions = ["scan", "point"]}')
    for name, role in (("one", "of-one"), ("scanner", "scanner"), ("reader", "reader")):
        keys.add(name, role)
    with served_node(counts.path, tmp_path / "data", credentials_file=keys.path) as served:
        served.key = keys["reader"]
        wait_until(lambda: served.get("/readyz").status == 200, what="the node")
        served.key = keys["one"]
        assert len(changes_of(served, 1, prefix=[WORDS[0]]).changes) == LAST
        for target in (changes_target(1), changes_target(1, prefix=[WORDS[1]])):
            reply = served.get(target)
            assert (reply.status, reply.problem) == (403, "forbidden")
        served.key = keys["scanner"]
        assert served.get(changes_target(1)).problem == "forbidden"
