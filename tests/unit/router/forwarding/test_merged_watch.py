"""What a watcher of a router is sent, of the events of nodes that repeat, lag behind each other and replace each other.

A node is simulated by the history of its keys: it sends what lies behind the position that it was asked to go on with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_router.forwarding.merged_watch import MergedWatch
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.position import Position, decode_position
from understudy_shared.reads.watch_events import HopEvent, read_event

PARTITIONS = (0, 1, 0, 1)
"""The partition of each key."""


def position(version: int, lineage: str = "one") -> Position:
    return Position(ApplicationId("app"), Lineage(lineage), version, version * 1000)


def value(key: int, version: int, at: str | None = None) -> HopEvent:
    text = b'event: value\ndata: {"key":%d,"version":%d}\n' % (key, version)
    return HopEvent("value", text, key, version, at)


@dataclass
class Upstream:
    """A node with the keys of one partition, which sends its events one by one."""

    merged: MergedWatch
    partition: int
    history: list[set[int]]
    """The keys that each version changed; the first is version 1."""
    keys: list[int] = field(default_factory=list)
    left: list[HopEvent] = field(default_factory=list)

    def begin(self, shown: int) -> None:
        """It goes on behind what the watcher has, up to the version that it shows."""
        self.keys = [key for key, partition in enumerate(PARTITIONS) if partition == self.partition]
        after = self.merged.behind([self.partition])
        self.left = []
        for version in range(1 if after is None else after.version + 1, shown + 1):
            changed = sorted(self.history[version - 1] & set(self.keys))
            for key in changed:
                is_last = key == changed[-1]
                token = position(version).encode() if is_last else None
                self.left.append(value(self.keys.index(key), version, token))
            if not changed:
                self.left.append(HopEvent("version", b"event: version\ndata: {}\n", -1, -1, position(version).encode()))

    def send(self) -> bytes:
        return self.merged.heard(self.keys, [self.partition], self.left.pop(0)) if self.left else b""


@dataclass
class Client:
    """What the watcher was sent of each key, and checks of it."""

    history: list[set[int]]
    told: dict[int, list[int]] = field(default_factory=lambda: {key: [] for key in range(len(PARTITIONS))})
    reached: int = 0

    def take(self, upstream: Upstream) -> None:
        text = upstream.send()
        event = read_event(text.removesuffix(b"\n\n")) if text else None
        if event is None:
            return
        if event.kind == "value":
            data = orjson.loads(text.partition(b"data: ")[2].partition(b"\n")[0])
            self.told[upstream.keys[data["key"]]].append(data["version"])
        if event.position is not None:
            now = decode_position(event.position).version
            assert now > self.reached
            self.reached = now
            for key, versions in self.told.items():
                covered = self.changes(key, now)
                assert versions[: len(covered)] == covered, "a position says that all changes up to it were sent"

    def changes(self, key: int, until: int) -> list[int]:
        return [version for version, changed in enumerate(self.history[:until], 1) if key in changed]


changes = st.sets(st.integers(0, len(PARTITIONS) - 1))
moves = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["send", "send", "send", "replaced"])), max_size=120)


@settings(max_examples=100, deadline=None)
@given(st.lists(changes, min_size=1, max_size=12), moves)
def test_each_change_comes_once_in_order_and_positions_never_overtake(
    history: list[set[int]], moves: list[tuple[int, str]]
) -> None:
    merged, client = MergedWatch(PARTITIONS, position(0)), Client(history)
    upstreams = [Upstream(merged, partition, history) for partition in (0, 1)]
    for upstream in upstreams:
        upstream.begin(len(history))
    for which, move in moves:
        if move == "replaced":
            upstreams[which].begin(len(history))
        else:
            client.take(upstreams[which])
    for upstream in upstreams:
        while upstream.left:
            client.take(upstream)
    assert client.reached == len(history)
    assert client.told == {key: client.changes(key, len(history)) for key in client.told}


def test_what_was_sent_is_sent_again_only_after_another_history_has_begun() -> None:
    merged = MergedWatch([0], position(7))
    assert merged.heard([0], [0], value(0, 7, position(7).encode())) == b""
    reset = HopEvent("reset", b"event: reset\ndata: {}\n", -1, -1, None)
    assert merged.heard([0], [0], reset) == b"event: reset\ndata: {}\n\n"
    assert merged.behind([0]) is None
    again = merged.heard([0], [0], value(0, 2, position(2, "two").encode()))
    assert again.endswith(b"id: %b\n\n" % position(2, "two").encode().encode())
