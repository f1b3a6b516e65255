"""KIP-535's statements about lag, by number, as far as a node decides them (8 to 13); deviations are said."""

from __future__ import annotations

import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, heartbeat, held, wait_to_hold
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.files import FileStat, LocalFiles
from understudy_node.follow.end import End, against_known_end, lag_of
from understudy_node.http.routes import lag_report
from understudy_node.node import Node
from understudy_node.questions.lookup.reads import NodeReads
from understudy_node.replica.task import TaskReplica
from understudy_node.stores.lookup import LookupAnswer
from understudy_shared.base.words import Role, StoreName
from understudy_shared.reads.bound_parsing import StoreBounds
from understudy_shared.reads.bounds import Bound

FILE = FileStat(1, 30, 1)
VERSIONS = st.integers(0, 50)


@given(VERSIONS, VERSIONS, VERSIONS)
def test_statement_08_lag_is_never_negative_whichever_end_is_newer(version: int, end: int, known_end: int) -> None:
    own = lag_of(version, End(end, FILE, FILE, confirmed_ms=0.0), lambda _: 0, now_ms=0.0, expiry_ms=1.0)
    lag = against_known_end(own, known_end)
    if version > end:
        assert lag.offset_lag is None
    else:
        assert lag.offset_lag == max(0, max(end, known_end) - version)
        assert lag.end_offset_position == max(end, known_end)


def test_statement_08_positions_are_read_before_the_end_so_that_an_error_is_upward(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0", "0_1", version=1)
        for version in range(2, 40):
            checkpoint.add(version)
            beat = heartbeat(node)
            positions = [beat.applied.version, *(exception.version for exception in beat.exceptions.values())]
            assert max(position or 0 for position in positions) <= beat.end_version
        wait_to_hold(node, "0_0", "0_1", version=39)


def test_statement_09_deviation_an_active_reports_its_true_lag_not_0_by_definition(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0", "0_1", version=1)
        node.hold_at(1)
        checkpoint.add(2, 3)
        wait_until(lambda: node.end.version == 3 and node.end.confirmed_ms is not None, what="the end at version 3")
        for replica in held(node).values():
            assert replica.role is Role.ACTIVE
            assert offset_lag(replica) == 2


def offset_lag(replica: TaskReplica) -> int | None:
    assert replica.view is not None
    return replica.progress.lag_of(replica.view).offset_lag


def test_statement_10_what_is_restored_counts_from_where_it_is_shown_never_ahead_of_it(tmp_path: Path) -> None:
    """Deviation: nothing restored has no position (null), where KIP-535 says 0; both sort behind every other."""
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        node.hold_at(0)
        node.assign({})
        wait_to_hold(node)
        node.assign({"0_0": Role.STANDBY})
        wait_until(lambda: list(held(node)) == ["0_0"], what="the task to be held")
        applied = heartbeat(node).applied
        assert (applied.version, applied.time_lag_ms, applied.state) == (None, None, "CREATED")
        node.hold_at(1)
        wait_to_hold(node, "0_0", version=1)
        assert heartbeat(node).applied.version == 1
        assert offset_lag(held(node)["0_0"]) == 1


def test_statement_11_lag_is_reported_for_local_tasks_only_once_each_and_for_none_before_the_start(
    tmp_path: Path,
) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=4).create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data", duties={}) as node:
        wait_to_hold(node)
        assert reported(node) == []
        node.assign({"0_1": Role.ACTIVE, "0_3": Role.STANDBY})
        wait_to_hold(node, "0_1", "0_3", version=1)
        assert reported(node) == [(1, "active"), (3, "standby")]
        beat = heartbeat(node)
        assert (beat.applied.version, beat.exceptions, beat.held) == (1, {}, None)


def reported(node: Node) -> list[tuple[int, str]]:
    """Partition and role of every entry in the lag report."""
    stores = lag_report(node, None)["stores"]
    assert isinstance(stores, list)
    return [(part["partition"], part["role"]) for store in stores for part in store["partitions"]]


class CountingFiles(LocalFiles):
    """Count the storage calls of the test's own thread, the reader."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reader = threading.current_thread()
        self.asked: list[str] = []

    def full_path(self, path: str) -> str:
        if threading.current_thread() is self.reader:
            self.asked.append(path)
        return super().full_path(path)


def test_statement_12_no_request_and_no_heartbeat_asks_the_storage_for_the_end(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    files = CountingFiles(checkpoint.path)
    with followed_node(checkpoint.path, tmp_path / "data", files=files) as node:
        wait_to_hold(node, "0_0", "0_1", version=2)
        assert files.asked, "to describe the checkpoint it was asked once, before the start"
        files.asked.clear()
        reads = NodeReads(node, StoreBounds())
        for word in WORDS:
            request = reads.parse(f"/v1/stores/op0/keys/{word}?max_lag=0".encode())
            assert isinstance(request.reader.look_up(request.key, request.bound), LookupAnswer)
        assert heartbeat(node).applied.version == 2
        assert lag_report(node, None)["end_offset_position"] == 2
        assert files.asked == []


def test_statement_13_a_node_that_lags_is_ready_and_serves_within_the_bound(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0", "0_1", version=1)
        node.hold_at(1)
        checkpoint.add(2, 3)
        wait_until(lambda: node.end.version == 3 and node.end.confirmed_ms is not None, what="the end at version 3")
        assert node.not_ready() == []
        assert node.generation is not None
        reader = node.generation.readers[StoreName("op0")]
        key = reader.resolve((WORDS[0],))
        assert isinstance(reader.look_up(key, Bound(max_lag=2)), LookupAnswer)
        assert not isinstance(reader.look_up(key, Bound(max_lag=1)), LookupAnswer)
