"""Watches of a prefix at a node: the keys that are there, and then each version that put, changed or removed one.

The checkpoint is made by hand: each odd version changes all counts, and version V brings the key 1000 + V and removes
the one before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade_orders import BIG, CODEC, HandmadeOrders, _encode_value
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.services.watches import Event, Watcher
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.files import DEFAULT_MAX_READ_BYTES, LocalFiles
from understudy_shared.questions.watch import prefix_watches

FIRST, TENANT = 3, "b"
BODY = {"prefix": [TENANT]}


@dataclass(frozen=True, slots=True)
class MovingOrders(HandmadeOrders):
    """Orders of which one comes, and one goes, with each version."""

    def _records(self, version: int, partition: int) -> list[spark.Record]:
        moved: list[tuple[int, bytes | None]] = [(1000 + version, _encode_value((version, BIG))), (999 + version, None)]
        return [
            *HandmadeOrders._records(self, version, partition),
            *(
                (CODEC.encode((TENANT, number)), value)
                for number, value in moved
                if CODEC.partition((TENANT, number), self.partitions) == partition
            ),
        ]


@pytest.fixture
def orders(tmp_path: Path) -> HandmadeOrders:
    made = MovingOrders(tmp_path / "orders", of_a=5)
    made.create()
    made.add(*range(1, FIRST + 1))
    return made


@pytest.fixture
def node(orders: HandmadeOrders, tmp_path: Path) -> Iterator[ServedNode]:
    with served_node(orders.path, tmp_path / "data") as served:
        served.wait_for_version(FIRST)
        yield served


def told(events: list[Event]) -> set[tuple[str, int, int]]:
    """The kind, the number and the version of events."""
    found = {(event.kind, event.data["key"]["n"], event.version) for event in events}
    assert len(found) == len(events), "an event twice"
    return found


def of_version(version: int) -> set[tuple[str, int, int]]:
    """The events of a version."""
    changed = {("value", number, version) for number in range(10)} if version % 2 else set[tuple[str, int, int]]()
    return {*changed, ("value", 1000 + version, version), ("deleted", 999 + version, version)}


def test_a_watcher_gets_the_keys_that_are_there_and_then_what_each_version_put_and_removed(
    node: ServedNode, orders: HandmadeOrders
) -> None:
    with Watcher(node.port, "op0/watch", BODY) as watcher:
        present = [watcher.take() for _ in range(11)]
        assert told(present) == {("snapshot", number, FIRST) for number in (*range(10), 1000 + FIRST)}
        assert [event.position is not None for event in present] == [False] * 10 + [True]
        answer = node.look_up([TENANT, 7]).body
        shown = next(event.data for event in present if event.data["key"]["n"] == 7)
        assert {name: answer[name] for name in shown} == shown
        for version in (FIRST + 1, FIRST + 2):
            orders.add(version)
            events = [watcher.take() for _ in of_version(version)]
            assert told(events) == of_version(version), "an equal value is no event"
            assert [event.position is not None for event in events] == [False] * (len(events) - 1) + [True]
            assert watcher.last_event_id == node.look_up([TENANT, 7]).body["position"]
        seen = present[-1].position
    with Watcher(node.port, "op0/watch?longs=string", {**BODY, "bounds": {"from": seen}}) as watcher:
        missed = [watcher.take() for _ in range(10 + len(of_version(FIRST + 1)) + len(of_version(FIRST + 2)))]
        assert {event.version for event in missed} == {FIRST + 1, FIRST + 2}, "what was missed, version for version"
        assert missed[0].data["key"]["n"].isdigit()


def test_what_cannot_be_watched_is_refused_before_the_first_event(
    node: ServedNode, orders: HandmadeOrders, monkeypatch: pytest.MonkeyPatch
) -> None:
    for body, status, kind in (
        ({"prefix": []}, 400, "bad-bound"),
        ({"prefix": ["b", 1, 2]}, 400, "bad-bound"),
        ({"prefix": ["b"], "keys": [["b", 1]]}, 400, "bad-request"),
        ({"prefix": ["b"], "bounds": {"max_lag": 1}}, 400, "bad-bound"),
        ({"prefix": ["b"], "bounds": {"from": "us1.x"}}, 400, "bad-bound"),
    ):
        with Watcher(node.port, "op0/watch", body) as watcher:
            assert (watcher.response.status, watcher.problem) == (status, kind), body
    old = str(node.look_up([TENANT, 1]).body["position"])
    orders.add(FIRST + 1, FIRST + 2)
    node.wait_for_version(FIRST + 2)
    (orders.path / orders.changelog_path(FIRST + 1, 1)).unlink()
    with Watcher(node.port, "op0/watch", BODY, last_event_id=old) as watcher:
        assert (watcher.response.status, watcher.problem) == (410, "version-gone")
    monkeypatch.setattr(prefix_watches, "MAX_PREFIX_WATCHES", 1)
    with Watcher(node.port, "op0/watch", BODY), Watcher(node.port, "op0/watch", BODY) as second:
        assert (second.response.status, second.problem) == (429, "overloaded")
    monkeypatch.setattr(prefix_watches, "MAX_PRESENT", 10)

    def is_refused() -> bool:
        with Watcher(node.port, "op0/watch", BODY) as watcher:
            return (watcher.response.status, watcher.problem) == (413, "too-large")

    wait_until(is_refused, what="the first to have left")


class CountedReads(LocalFiles):
    """Storage that counts how often each file is read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: Counter[str] = Counter()

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        self.reads[path] += 1
        return super().read(path, max_bytes)


def test_watches_of_a_prefix_read_each_changelog_once_however_many_they_are(
    orders: HandmadeOrders, tmp_path: Path
) -> None:
    files = CountedReads(orders.path)
    with served_node(orders.path, tmp_path / "data", files=files) as node, ExitStack() as open_watches:
        node.wait_for_version(FIRST)
        watchers = [open_watches.enter_context(Watcher(node.port, "op0/watch", BODY)) for _ in range(8)]
        for watcher in watchers:
            assert len([watcher.take() for _ in range(11)]) == 11
        orders.add(FIRST + 1)
        for watcher in watchers:
            assert told([watcher.take() for _ in of_version(FIRST + 1)]) == of_version(FIRST + 1)
        names = {orders.changelog_path(version, partition) for version in (FIRST, FIRST + 1) for partition in range(2)}
        assert {files.reads[name] for name in names} == {2}, "once to follow it, and once for all watchers"
