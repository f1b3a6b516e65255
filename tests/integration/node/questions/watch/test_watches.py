"""Watches at a node: the present value, each change once and in order, and where the last one ended.

The checkpoint is made by hand: at version V each word was counted V times, and version V brings the word born-(V-1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.integration.node.questions.watch.test_prefix_watches import FIRST, TENANT, MovingOrders
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.checkpoint.handmade_sessions import SESSIONS, VISITORS, HandmadeSessions
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.services.guarded import Keys
from tests.support.services.proxies import nginx
from tests.support.services.watches import Watcher
from tests.support.spark.counting_query import WORDS, counting_feeder, rows
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V1, ROCKSDB_CHANGELOG_V2, ROCKSDB_V2, StateFormat
from tests.support.spark.queries import wait_until

from understudy import Client
from understudy_shared.questions.watch.streams import HEARTBEAT_S
from understudy_shared.reads.tokens import decode_position
from understudy_shared.server.connection_limits import ConnectionLimits
from understudy_shared.spark.temporal import utc_text

FIRST_VERSION = 3
WORD = WORDS[0]
WATCH = f"op0/watch/{WORD}"


@pytest.fixture
def checkpoint(tmp_path: Path) -> HandmadeCheckpoint:
    made = HandmadeCheckpoint(tmp_path / "checkpoint").create()
    return made.add(*range(1, FIRST_VERSION + 1))


@pytest.fixture
def node(checkpoint: HandmadeCheckpoint, tmp_path: Path) -> Iterator[ServedNode]:
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.wait_for_version(FIRST_VERSION)
        yield served


def test_a_watcher_gets_the_present_value_and_then_each_version_that_changes_it(
    node: ServedNode, checkpoint: HandmadeCheckpoint
) -> None:
    """Q21."""
    with Watcher(node.port, WATCH) as watcher, Watcher(node.port, "op0/watch/born-5") as unborn:
        first, absent = watcher.take(), unborn.take()
        assert (first.kind, first.version, first.counted) == ("snapshot", FIRST_VERSION, FIRST_VERSION)
        assert (absent.kind, absent.data["found"]) == ("snapshot", False)
        for version in range(FIRST_VERSION + 1, FIRST_VERSION + 21):
            checkpoint.add(version)
        events = watcher.until(FIRST_VERSION + 20)
        assert [(event.kind, event.version, event.counted) for event in events] == [
            ("value", version, version) for version in range(FIRST_VERSION + 1, FIRST_VERSION + 21)
        ]
        assert events[-1].position == events[-1].data["position"] == node.look_up([WORD]).body["position"]
        assert [event.version for event in unborn.until(FIRST_VERSION + 20)] == list(range(6, FIRST_VERSION + 21))


def test_a_watcher_that_comes_back_is_sent_what_it_missed_once_and_in_order(
    checkpoint: HandmadeCheckpoint, tmp_path: Path
) -> None:
    """Q22: also at a node that starts anew, and restores a version above the one that was seen."""
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(FIRST_VERSION)
        with Watcher(node.port, WATCH) as watcher:
            watcher.take()
            checkpoint.add(FIRST_VERSION + 1)
            (seen,) = watcher.until(FIRST_VERSION + 1)
        checkpoint.add(FIRST_VERSION + 2, FIRST_VERSION + 3)
        node.wait_for_version(FIRST_VERSION + 3)
        with Watcher(node.port, WATCH, last_event_id=seen.position) as watcher:
            assert [event.version for event in watcher.until(FIRST_VERSION + 3)] == [
                FIRST_VERSION + 2,
                FIRST_VERSION + 3,
            ]
            checkpoint.add(FIRST_VERSION + 4)
            (seen,) = watcher.until(FIRST_VERSION + 4)
    checkpoint.add(*range(FIRST_VERSION + 5, FIRST_VERSION + 9))
    with served_node(checkpoint.path, tmp_path / "other") as node:
        node.wait_for_version(FIRST_VERSION + 8)
        target = f"{WATCH}?from={seen.position}"  # as the header
        with Watcher(node.port, target) as watcher:
            checkpoint.add(FIRST_VERSION + 9)
            events = watcher.until(FIRST_VERSION + 9)
        assert [(event.kind, event.version, event.counted) for event in events] == [
            ("value", version, version) for version in range(FIRST_VERSION + 5, FIRST_VERSION + 10)
        ]
        versions = node.get(f"/v1/stores/op0/history/{WORD}?from={FIRST_VERSION + 5}").body["versions"]
        assert isinstance(versions, list)
        assert [each["version"] for each in versions] == [event.version for event in events], "Q61"


def test_a_watch_since_a_time_begins_with_each_version_since(node: ServedNode, checkpoint: HandmadeCheckpoint) -> None:
    with Watcher(node.port, f"{WATCH}?from=1h") as watcher:
        assert watcher.take().kind == "snapshot", "the query is younger"
    before = utc_text(decode_position(str(node.look_up([WORD]).body["position"])).committed_at_us)
    checkpoint.add(FIRST_VERSION + 1, FIRST_VERSION + 2)
    node.wait_for_version(FIRST_VERSION + 2)
    since = [FIRST_VERSION + 1, FIRST_VERSION + 2, FIRST_VERSION + 3]
    with Watcher(node.port, f"{WATCH}?from={before}") as watcher, Watcher(node.port, f"{WATCH}?from=0s") as newest:
        of_prefix = {"prefix": [WORD], "bounds": {"from": before}}
        with Watcher(node.port, "op0/watch", of_prefix) as prefix:
            checkpoint.add(FIRST_VERSION + 3)
            assert [event.version for event in watcher.until(FIRST_VERSION + 3)] == since
            assert [event.version for event in prefix.until(FIRST_VERSION + 3)] == since
            assert [event.version for event in newest.until(FIRST_VERSION + 3)] == since[2:]
    refused = node.get(f"/v1/stores/{WATCH}?from=yesterday")
    assert (refused.status, "1m" in str(refused.body["fix"])) == (400, True)


def test_a_position_that_was_taken_back_begins_anew_and_says_so(
    node: ServedNode, checkpoint: HandmadeCheckpoint
) -> None:
    """Q35."""
    checkpoint.add(FIRST_VERSION + 1)
    node.wait_for_version(FIRST_VERSION + 1)
    ahead = str(node.look_up([WORD]).body["position"])
    (
        checkpoint.path / "commits" / str(FIRST_VERSION)
    ).unlink()  # the node begins anew, with the same history but for its end
    wait_until(lambda: "rewound" in node.events(), what="the rewind")
    node.wait_for_version(FIRST_VERSION)
    with Watcher(node.port, WATCH, last_event_id=ahead) as watcher:
        assert watcher.take().kind == "reset", "the version that was seen was taken back"
        assert watcher.take().version == FIRST_VERSION


def test_many_watchers_of_a_key_cost_one_read_for_each_version(
    node: ServedNode, checkpoint: HandmadeCheckpoint
) -> None:
    """Q27."""
    watchers = [Watcher(node.port, WATCH) for _ in range(50)]
    try:
        for watcher in watchers:
            watcher.take()
        assert _metric(node, "understudy_watches") == 50
        before = _metric(node, "understudy_watch_keys_read_total")
        checkpoint.add(FIRST_VERSION + 1)
        for watcher in watchers:
            assert watcher.take().version == FIRST_VERSION + 1
        assert _metric(node, "understudy_watch_keys_read_total") == before + 1
    finally:
        for watcher in watchers:
            watcher.close()
    wait_until(lambda: _metric(node, "understudy_watches") == 0, what="all to have left")
    assert _metric(node, 'understudy_watches_ended_total{reason="left"}') == 50


def test_a_jump_to_a_snapshot_is_told_with_its_range(checkpoint: HandmadeCheckpoint, tmp_path: Path) -> None:
    """Q23."""
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(FIRST_VERSION)
        with Watcher(node.port, WATCH) as watcher:
            watcher.take()
            node.node.hold_at(FIRST_VERSION)
            checkpoint.add(FIRST_VERSION + 1, FIRST_VERSION + 2, FIRST_VERSION + 3)
            for partition in range(checkpoint.partitions):
                (checkpoint.path / checkpoint.changelog_path(FIRST_VERSION + 1, partition)).unlink()
                path = checkpoint.snapshot_path(FIRST_VERSION + 3, partition)
                checkpoint.write(path, checkpoint.snapshot(FIRST_VERSION + 3, partition))
            node.node.hold_at(None)
            missed, value = watcher.take(), watcher.take()
        assert (missed.kind, missed.data["from"], missed.data["to"], missed.data["changes"]) == (
            "coalesced",
            FIRST_VERSION + 1,
            FIRST_VERSION + 3,
            None,
        )
        assert (value.kind, value.version, value.counted) == ("value", FIRST_VERSION + 3, FIRST_VERSION + 3)


@pytest.mark.full
def test_a_slow_watcher_gets_the_newest_value_and_how_many_it_missed(
    checkpoint: HandmadeCheckpoint, tmp_path: Path
) -> None:
    """Q26: it does not read, and nothing piles up for it; then it reads."""
    versions = range(FIRST_VERSION + 1, 160)
    keys = [[word] for word in WORDS] + [[f"born-{batch}"] for batch in versions]
    with served_node(checkpoint.path, tmp_path / "data", limits=ConnectionLimits(unread_timeout_ms=600_000)) as node:
        node.wait_for_version(FIRST_VERSION)
        with Watcher(node.port, "op0/watch", {"keys": keys}, receives_bytes=4096) as watcher:
            for version in versions:
                checkpoint.add(version)
            node.wait_for_version(versions[-1])
            events = watcher.until(versions[-1], WORD)
        last = 0
        for event in events:
            if event.kind == "coalesced":
                assert event.data["from"] == last + 1
                # Not known where the loop, which this process keeps busy, passed over versions itself.
                assert event.data["changes"] in (None, event.data["to"] - event.data["from"])
                last = event.data["to"] - 1
            else:
                assert event.version == last + 1 or event.kind == "snapshot", "what is missing was told"
                last = event.version
        assert any(event.kind == "coalesced" for event in events)


def test_a_watcher_that_never_reads_is_closed_and_counted(checkpoint: HandmadeCheckpoint, tmp_path: Path) -> None:
    """Q25."""
    limits = ConnectionLimits(unread_timeout_ms=300)
    keys = [["x" * 30_000 + str(number)] for number in range(250)]
    with served_node(checkpoint.path, tmp_path / "data", limits=limits) as node:
        node.wait_for_version(FIRST_VERSION)
        silent = Watcher(node.port, "op0/watch", {"keys": keys}, receives_bytes=4096)
        with silent, Watcher(node.port, WATCH) as other:
            unread = 'understudy_watches_ended_total{reason="unread"}'
            wait_until(lambda: _metric(node, unread) == 1, what="the one that does not read to be closed")
            checkpoint.add(FIRST_VERSION + 1)
            assert other.until(FIRST_VERSION + 1)[-1].counted == FIRST_VERSION + 1, "others go on"


def test_a_watch_ends_when_its_key_is_revoked_or_its_role_loses_a_key(tmp_path: Path) -> None:
    """Q34."""
    made = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    keys = Keys(tmp_path / "credentials.toml")
    keys.role("of-a-word", f'{{stores = ["op0"], actions = ["watch"], key_prefix = ["{WORD}"]}}')
    for name in ("revoked", "narrowed", "kept"):
        keys.add(name, "of-a-word" if name == "narrowed" else "reader")
    with served_node(made.path, tmp_path / "data", credentials_file=keys.path) as node:
        node.key = keys["kept"]
        wait_until(lambda: node.get("/readyz").status == 200, what="the node")
        watchers = {name: Watcher(node.port, WATCH, key=keys[name]) for name in keys}
        for watcher in watchers.values():
            assert watcher.take().kind == "snapshot"
        with Watcher(node.port, f"op0/watch/{WORDS[1]}", key=keys["narrowed"]) as refused:
            assert (refused.response.status, refused.problem) == (403, "forbidden")
        keys.revoke("revoked")
        keys.path.write_text(keys.path.read_text().replace(f'["{WORD}"]', '["another"]'))
        for name in ("revoked", "narrowed"):
            last = list(iter(watchers[name].next, None))[-1]
            assert (last.kind, last.data["reason"]) == ("end", "forbidden")
        made.add(2)
        assert watchers["kept"].until(2)[-1].counted == 2
        for watcher in watchers.values():
            watcher.close()


@pytest.mark.parametrize(
    "state_format",
    [
        pytest.param(HDFS_V1, marks=pytest.mark.full),
        pytest.param(ROCKSDB_CHANGELOG_V1, marks=pytest.mark.full),
        pytest.param(ROCKSDB_V2, marks=pytest.mark.full),
        ROCKSDB_CHANGELOG_V2,
    ],
    ids=lambda each: each.id,
)
def test_each_batch_of_spark_is_an_event_or_told_to_be_left_out(
    state_format: StateFormat, spark: SparkSession, tmp_path: Path
) -> None:
    """Without changelogs a node may pass over snapshots, and says so; with them it never does."""
    batches = 6
    path = tmp_path / "counting"
    with counting_feeder(spark, path, state_format) as feeder:
        feeder.add(rows(0))
        with served_node(path, tmp_path / "data") as node:
            node.wait_for_version(1)
            with Watcher(node.port, WATCH) as watcher, Watcher(node.port, "op0/watch/born-3") as born:
                first = watcher.take()
                assert (first.version, first.counted) == (1, 1)
                for batch in range(1, batches):
                    feeder.add(rows(batch))
                reached = 1
                for event in watcher.until(batches):
                    if event.kind == "coalesced":
                        assert (state_format == ROCKSDB_V2, event.data["from"]) == (True, reached + 1)
                        reached = event.data["to"] - 1
                    else:
                        assert (event.version, event.counted) == (reached + 1, reached + 1)
                        reached = event.version
                assert born.until(batches)[-1].version == batches


def _metric(node: ServedNode, name: str) -> float:
    for line in node.text("/metrics").splitlines():
        if line.startswith(f"{name} "):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"there is no {name}")


def test_a_key_that_a_version_removes_is_told_by_watches_and_changes(tmp_path: Path) -> None:
    """Q29: a tombstone, which does not say who wrote it."""
    orders = MovingOrders(tmp_path / "orders", of_a=5)
    orders.create()
    orders.add(*range(1, FIRST + 1))
    with served_node(orders.path, tmp_path / "data") as node, Client(f"http://127.0.0.1:{node.port}") as client:
        node.wait_for_version(FIRST)
        store, key = client.store("op0"), {"tenant": TENANT, "n": 1000 + FIRST}
        with store.watch(key) as watch, store.watch(prefix=[TENANT, 1000 + FIRST]) as of_prefix:
            assert [next(each).found for each in (watch, of_prefix)] == [True, True]
            orders.add(FIRST + 1)
            told = [next(watch), next(of_prefix)]
        told += [each for each in store.changes(FIRST + 1, prefix=[TENANT]) if each.key == key]
        assert [(each.deleted, each.expired, each.key, each.version) for each in told] == [
            (True, None, key, FIRST + 1),
        ] * 3


def test_a_key_of_which_all_has_expired_is_told_as_such_where_that_is_hidden(tmp_path: Path) -> None:
    """Q29: what the watermark has outlived, and Spark has not removed."""
    sessions = HandmadeSessions(tmp_path / "sessions")
    sessions.create()
    sessions.add(1)
    with served_node(sessions.path, tmp_path / "data") as node, Client(f"http://127.0.0.1:{node.port}") as client:
        node.wait_for_version(1)
        store = client.store("op0")
        with (
            store.watch(VISITORS[0], include_expired=False) as hidden,
            store.watch(VISITORS[0], include_expired=True) as shown,
        ):
            assert [next(each).found for each in (hidden, shown)] == [True, True]
            replace(sessions, watermark_ms=(SESSIONS + 1) * 1000).add(2)
            gone, seen = next(hidden), next(shown)
            assert (gone.deleted, gone.expired, gone.version) == (True, True, 2)
            assert (seen.kind, len(seen.elements), {each["expired"] for each in seen.elements}) == (
                *("value", SESSIONS, {True}),
            )


GIVES_UP_AFTER_S = 60.0
SERVERS = "server { listen 8000; location / { proxy_pass http://router-1:8080; } }"


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_watch_begins_at_once_and_outlives_the_patience_of_nginx_without_a_change(tmp_path: Path) -> None:
    """Q31."""
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(2)
        with nginx(tmp_path / "nginx", SERVERS, node.port) as port, Watcher(port, f"op0/watch/{WORDS[0]}") as watcher:
            assert watcher.take().kind == "snapshot"
            signs = 0
            while signs <= GIVES_UP_AFTER_S / HEARTBEAT_S:
                line = watcher.response.readline()
                assert line, "nginx gave up"
                signs += line.startswith(b":")
            checkpoint.add(3)
            assert (watcher.take().kind, watcher.last_event_id) == ("value", node.look_up([WORDS[0]]).body["position"])
