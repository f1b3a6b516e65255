"""State files that are damaged or vanish: refused by name, served again when they are whole, and never half-read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.checkpoint.storage_faults import VanishingFiles
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.spark.counting_query import WORDS, watched, why_mixed
from tests.support.spark.queries import wait_until

DAMAGED = 1
"""The partition whose files are damaged."""

Damage = Callable[[bytes], bytes]


def flipped(data: bytes) -> bytes:
    """Flip a bit in the text of a key, where only a checksum can find it."""
    at = data.index(b"word-")
    return data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]


HARM = pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda data: data[: len(data) // 2], id="cut-in-half"),
        pytest.param(flipped, id="a-flipped-bit"),
        pytest.param(lambda _: b"", id="empty", marks=pytest.mark.full),
    ],
)
PROVIDERS = pytest.mark.parametrize("provider", [spark.HDFS, spark.ROCKSDB], ids=["hdfs", "rocksdb-changelog"])


def version_of(served: ServedNode, partition: int) -> object:
    return {part["partition"]: part["current_offset_position"] for part in served.partitions()}[partition]


def error_of(served: ServedNode, partition: int) -> str:
    return str({part["partition"]: part["error"] for part in served.partitions()}[partition] or "")


def wait_for_error(served: ServedNode, partition: int = DAMAGED) -> str:
    wait_until(lambda: error_of(served, partition) != "", what="the error in the lag report")
    return error_of(served, partition)


def assert_every_word_is_of(served: ServedNode, version: int) -> None:
    answers = served.look_up_all([[word] for word in WORDS])
    assert {answer["version"] for answer in answers} == {version}
    assert all(answer["found"] for answer in answers)
    assert [why for answer in answers if (why := why_mixed(answer))] == []


@HARM
@PROVIDERS
def test_a_damaged_changelog_leaves_the_last_good_version_on_show_until_it_is_repaired(
    tmp_path: Path, provider: str, harm: Damage
) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", provider).create().add(1, 2)
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.wait_for_version(2)
        with watched(served):
            checkpoint.write_state(3)
            path = checkpoint.changelog_path(3, DAMAGED)
            checkpoint.write(path, harm(checkpoint.changes(3, DAMAGED)))
            checkpoint.commit(3)
            error = wait_for_error(served)
            assert path in error, "it says which file"
            assert not error.endswith(")"), "and what to do"
            checkpoint.add(4, 5)
            wait_until(lambda: version_of(served, 1 - DAMAGED) == 5, what="the other partition")
            part = served.partitions()[DAMAGED]
            assert (part["current_offset_position"], part["offset_lag"]) == (2, 3)
            assert isinstance(part["time_lag_ms"], int)
            assert served.get("/readyz").status == 200, "lag alone never makes a node unready"
            checkpoint.write(path, checkpoint.changes(3, DAMAGED))
            served.wait_for_version(5)
        assert error_of(served, DAMAGED) == ""
        assert_every_word_is_of(served, 5)


def test_the_next_snapshot_heals_a_damaged_changelog(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    with served_node(checkpoint.path, tmp_path / "data") as served, watched(served):
        served.wait_for_version(2)
        checkpoint.write_state(3)
        checkpoint.write(checkpoint.changelog_path(3, DAMAGED), b"damaged")
        checkpoint.commit(3)
        wait_for_error(served)
        checkpoint.add(4, 5)
        checkpoint.write(checkpoint.snapshot_path(4, DAMAGED), checkpoint.snapshot(4, DAMAGED))
        served.wait_for_version(5)
        assert error_of(served, DAMAGED) == ""


@HARM
def test_a_damaged_snapshot_is_left_for_an_older_one(tmp_path: Path, harm: Damage) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2, 3, 4, 5)
    for version in (2, 4):
        for partition in range(2):
            checkpoint.write(checkpoint.snapshot_path(version, partition), checkpoint.snapshot(version, partition))
    damaged = checkpoint.snapshot_path(4, DAMAGED)
    checkpoint.write(damaged, harm(checkpoint.snapshot(4, DAMAGED)))
    # Without the older changelogs there is no other way than over the older snapshot.
    for partition in range(2):
        (checkpoint.path / checkpoint.changelog_path(1, partition)).unlink()
        (checkpoint.path / checkpoint.changelog_path(2, partition)).unlink()
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.wait_for_version(5)
        assert_every_word_is_of(served, 5)


@HARM
def test_nothing_is_served_of_a_partition_whose_only_snapshot_is_damaged_until_it_is_repaired(
    tmp_path: Path, harm: Damage
) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2, 3)
    for partition in range(2):
        checkpoint.write(checkpoint.snapshot_path(2, partition), checkpoint.snapshot(2, partition))
        (checkpoint.path / checkpoint.changelog_path(1, partition)).unlink()
        (checkpoint.path / checkpoint.changelog_path(2, partition)).unlink()
    damaged = checkpoint.snapshot_path(2, DAMAGED)
    checkpoint.write(damaged, harm(checkpoint.snapshot(2, DAMAGED)))
    with served_node(checkpoint.path, tmp_path / "data") as served:
        wait_until(lambda: bool(served.partitions()), what="the first poll")
        wait_until(lambda: damaged in error_of(served, DAMAGED), what=f"the error: {error_of(served, DAMAGED)}")
        wait_until(lambda: version_of(served, 1 - DAMAGED) == 3, what="the other partition")
        answers = served.look_up_all([[word] for word in WORDS])
        refused = [answer for answer in answers if "type" in answer]
        assert 0 < len(refused) < len(WORDS)
        assert {(answer["type"], answer["status"]) for answer in refused} == {("store-error", 502)}
        assert all(damaged in str(answer) for answer in refused)
        ready = served.get("/readyz")
        assert ready.status == 503
        assert damaged in str(ready.body)
        checkpoint.write(damaged, checkpoint.snapshot(2, DAMAGED))
        served.wait_for_version(3)
        assert_every_word_is_of(served, 3)


def with_snapshots(checkpoint: HandmadeCheckpoint, *versions: int) -> None:
    for version in versions:
        for partition in range(checkpoint.partitions):
            checkpoint.write(checkpoint.snapshot_path(version, partition), checkpoint.snapshot(version, partition))


def test_a_snapshot_that_vanishes_before_it_is_read_is_left_for_an_older_one(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2, 3, 4, 5)
    with_snapshots(checkpoint, 2, 4)
    files = VanishingFiles(checkpoint.path, lambda path: path == "state/0/1/4.snapshot")
    with served_node(checkpoint.path, tmp_path / "data", files=files) as served:
        served.wait_for_version(5)
        assert files.deleted == "state/0/1/4.snapshot"
        assert all(answer["version"] == 5 for answer in served.look_up_all([[word] for word in WORDS]))


def test_a_changelog_that_vanishes_before_it_is_read_is_left_for_a_newer_snapshot(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    files = VanishingFiles(checkpoint.path, lambda path: path == "state/0/1/3.delta")
    with served_node(checkpoint.path, tmp_path / "data", files=files) as served, watched(served):
        served.wait_for_version(2)
        for version in (3, 4, 5):
            checkpoint.write_state(version)
        with_snapshots(checkpoint, 4)
        for version in (3, 4, 5):
            checkpoint.commit(version)
        served.wait_for_version(5)
        assert files.deleted == "state/0/1/3.delta"


def test_the_query_s_id_may_vanish_and_come_back_without_a_new_history(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    intact = (checkpoint.path / "metadata").read_bytes()
    with served_node(checkpoint.path, tmp_path / "data") as served, watched(served):
        served.wait_for_version(2)
        (checkpoint.path / "metadata").unlink()
        wait_until(lambda: served.lag()["end_confirmed"] is False, what="doubt")
        checkpoint.add(3)
        checkpoint.write("metadata", intact)
        served.wait_for_version(3)
        assert not {"re-created", "rewound"} & set(served.events())
