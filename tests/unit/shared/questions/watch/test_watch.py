"""What a watcher is sent, whatever happens in whatever order: a part of the true history, in order, with its end.

Each case is a life of watched keys: versions that change some of them, jumps, watchers that take much or little.
The test keeps the true history beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_shared.questions.watch.choice import (
    EventBatch,
    KeyWatcher,
    Missed,
    PrefixWatch,
    Telling,
    WatchedKey,
    WatchedPart,
)

KEYS, PARTS = 4, 2


@dataclass
class World:
    """Watched keys in two partitions, and what each version changed of them."""

    parts: list[WatchedPart] = field(default_factory=lambda: [WatchedPart(1, "p1") for _ in range(PARTS)])
    keys: list[WatchedKey] = field(default_factory=lambda: [WatchedKey() for _ in range(KEYS)])
    history: list[list[int]] = field(default_factory=lambda: [[] for _ in range(KEYS)])

    def publish(self, part: int, changed: set[int], jump: int) -> None:
        """A version of a partition, or a later one without those between."""
        version = self.parts[part].version + 1 + jump
        for index in self.of(part):
            if index in changed:
                self.keys[index].changed(version, 10)
                self.history[index].append(version)
            if jump:
                self.keys[index].jumped_to = version
        self.parts[part].version, self.parts[part].position = version, f"p{version}"

    def of(self, part: int) -> list[int]:
        return [index for index in range(KEYS) if index % PARTS == part]

    def watch(self, after: int | None = None) -> KeyWatcher:
        return KeyWatcher([(key, self.parts[index % PARTS]) for index, key in enumerate(self.keys)], after)


@dataclass
class Client:
    """What one watcher knows by what it was sent, and checks of it."""

    world: World
    watch: KeyWatcher
    values: dict[int, int] = field(default_factory=dict)
    """The version up to which it knows each key."""
    position: int = 0

    def take(self, size: int, *, wants_position: bool) -> EventBatch:
        batch = self.watch.take(size, wants_position=wants_position)
        for telling in batch.tellings:
            self._told(telling)
        if batch.position is not None:
            position = int(batch.position[1:])
            assert position > self.position, "positions rise"
            self.position = position
            for index, history in enumerate(self.world.history):
                last = max((version for version in history if version <= position), default=0)
                assert self.values[index] >= last, "a position says that all changes up to it were sent"
        return batch

    def _told(self, telling: Telling) -> None:
        index, missed = telling.at, telling.missed
        history, key = self.world.history[index], self.world.keys[index]
        known = self.values.get(index)
        if telling.is_first:
            assert known is None, "a value is the first once"
            self.values[index] = self.world.parts[index % PARTS].version
            return
        assert known is not None, "the first event of a key is its present value"
        unsent = [version for version in history if version > known]
        left_out = unsent[:-1] if telling.tells_value else unsent
        if telling.tells_value:
            assert key.version == unsent[-1] > known, "it is the newest value, and news"
        if left_out or missed is not None:
            assert missed is not None, "no change is left out in silence"
            assert missed.first == known + 1
            assert all(missed.first <= version <= missed.last for version in unsent)
            assert missed.changes in (None, len(left_out))
        self.values[index] = max(key.version, 0 if missed is None else missed.last)

    def read_all(self) -> None:
        """Take until there is nothing: it then knows the last value of each key."""
        while self.take(25, wants_position=True).tellings:
            pass
        for index, history in enumerate(self.world.history):
            assert self.values[index] >= max(history, default=0), "the last value is never missed"
        assert self.position == min(part.version for part in self.world.parts)


Step = tuple[int, set[int], int]
publications = st.tuples(st.integers(0, PARTS - 1), st.sets(st.integers(0, KEYS - 1)), st.sampled_from([0, 0, 0, 0, 2]))
reads = st.one_of(st.none(), st.tuples(st.sampled_from([1, 15, 25, 1000]), st.booleans()))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(publications, reads), max_size=40))
def test_a_watcher_gets_changes_in_order_and_the_last_value_and_positions_never_overtake_them(
    steps: list[tuple[Step, tuple[int, bool] | None]],
) -> None:
    world = World()
    client = Client(world, world.watch())
    for (part, changed, jump), read in steps:
        world.publish(part, changed, jump)
        if read is not None:
            client.take(read[0], wants_position=read[1])
    client.read_all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(publications, st.booleans()), min_size=1, max_size=40))
def test_a_watcher_that_reads_each_version_misses_none_of_them(steps: list[tuple[Step, bool]]) -> None:
    world = World()
    client = Client(world, world.watch())
    client.read_all()
    told: list[list[int]] = [[] for _ in range(KEYS)]
    for (part, changed, _), wants in steps:
        world.publish(part, changed, 0)
        for telling in client.take(1000, wants_position=wants).tellings:
            assert telling.missed is None
            told[telling.at].append(world.keys[telling.at].version)
    assert told == world.history


def test_a_watcher_that_goes_on_behind_a_version_is_sent_what_came_after_it_and_nothing_before() -> None:
    world = World()
    for _ in range(3):
        world.publish(0, {0}, 0)
    watch = world.watch(after=6)  # the replica is behind it
    assert watch.take(1000, wants_position=True) == EventBatch([], None)
    for _ in range(2):
        world.publish(0, {0}, 0)
        assert watch.take(1000, wants_position=True) == EventBatch([], None)
    world.publish(0, {0}, 0)
    batch = watch.take(1000, wants_position=False)
    assert batch.tellings == [Telling(0, is_first=False, missed=None, tells_value=True)], "of version 7 alone"


def test_a_jump_is_told_even_when_the_value_is_the_same() -> None:
    world = World()
    watch = world.watch()
    watch.take(1000, wants_position=False)
    world.publish(0, set(), 3)
    tellings = watch.take(1000, wants_position=False).tellings
    assert [(each.at, each.missed, each.tells_value) for each in tellings] == [
        (0, Missed(2, 5, None), False),
        (2, Missed(2, 5, None), False),
    ]


def test_a_watcher_that_was_sent_the_history_is_not_sent_it_again() -> None:
    world = World()
    watch = world.watch(after=1)
    world.publish(0, {0}, 0)
    watch.was_sent(0, 2, world.keys[0].changes)
    assert watch.take(1000, wants_position=False).tellings == []
    world.publish(0, {0}, 0)
    assert watch.take(1000, wants_position=False).tellings == [Telling(0, False, None, True)]


def change(version: int, key: str, value: int | None) -> dict[str, Any]:
    said = {} if value is None else {"value": {"n": value}}
    return {"version": version, "partition": 0, "found": value is not None, "key": {"k": key}, **said}


def told(watch: PrefixWatch) -> list[tuple[str, str, Any]]:
    found = []
    for event in watch.tell():
        kind, _, data = event.decode().removeprefix("event: ").partition("\ndata: ")
        said = orjson.loads(data)
        found.append((kind, said["key"]["k"], said.get("changes", said.get("value"))))
    return found


def take(watch: PrefixWatch, *changes: dict[str, Any]) -> list[tuple[str, str, Any]]:
    for each in changes:
        watch.changed(each, None, "us1.x")
    return told(watch)


def test_equal_values_and_deletions_of_what_is_not_there_are_no_events() -> None:
    watch = PrefixWatch("s", knows_all=True)
    watch.present({"key": {"k": "a"}, "value": {"n": 1}}, 0, {"version": 1})
    assert take(watch, change(2, "a", 1), change(2, "b", None)) == []
    assert take(watch, change(3, "a", 2), change(3, "b", 1)) == [("value", "a", {"n": 2}), ("value", "b", {"n": 1})]
    assert take(watch, change(4, "a", None), change(4, "b", 1)) == [("deleted", "a", None)]
    assert take(watch, change(5, "a", 2)) == [("value", "a", {"n": 2})]


def test_one_that_is_far_behind_gets_the_last_change_and_how_many_it_missed() -> None:
    watch = PrefixWatch("s", knows_all=True)
    changes = [change(version, "a", version) for version in range(2, 6)]
    assert take(watch, *changes, change(5, "b", 1)) == [
        ("coalesced", "a", 3),
        ("value", "a", {"n": 5}),
        ("value", "b", {"n": 1}),
    ]
    assert watch.coalesced == 3
    assert dict(watch.told) == {"coalesced": 1, "value": 2}


def test_one_that_came_back_is_sent_deletions_of_keys_that_it_may_have_seen() -> None:
    assert take(PrefixWatch("s", knows_all=False), change(2, "a", None)) == [("deleted", "a", None)]
