"""What watchers of a router get from one feed, whatever happens: each change of their keys, once and in order.

Both sides of a feed are the product's: what a node chooses to send, and what a router makes of it. The wire between
them is a list of events that the test delays, cuts, and begins anew at another node, which may be behind. The true
history stands beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads import heard_feed
from understudy_shared.reads.feed_watch import FeedWatch
from understudy_shared.reads.heard_feed import FeedKey, HeardFeed
from understudy_shared.reads.position import Position, decode_position
from understudy_shared.reads.shared_watch import SharedKey, SharedPart
from understudy_shared.reads.watch import Missed, Watch
from understudy_shared.reads.watch_events import (
    KeyEvent,
    at_fed_key,
    coalesced_event,
    key_event,
    read_event,
    version_text,
    with_id,
    with_tail,
)
from understudy_shared.server.watcher import known_until

KEYS = 4
ROWS = [b"k%d" % index for index in range(KEYS)]


def token(version: int) -> str:
    return Position(ApplicationId("app"), Lineage("one"), version, version * 1000).encode()


@pytest.fixture(autouse=True, scope="module")
def slices_of_one() -> Iterator[None]:
    """Watchers look between any two events that count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heard_feed, "COUNTED_AT_ONCE", 1)
        yield


class NodePart(SharedPart):
    """A partition at a node, which compares its versions one after another."""

    def first_event(self, key: SharedKey) -> bytes:
        return key.event


@dataclass
class Truth:
    """Which keys each version changed; the first is version 1."""

    history: list[set[int]] = field(default_factory=list)

    @property
    def newest(self) -> int:
        return len(self.history)

    def changes(self, index: int, behind: int, until: int) -> list[int]:
        return [version for version in range(behind + 1, until + 1) if index in self.history[version - 1]]


class Node:
    """A node with the feed of the router. It shows version `shown`, and knows the history."""

    def __init__(self, truth: Truth, shown: int) -> None:
        self.truth = truth
        self.part = NodePart(shown, token(shown))
        self.keys = {row: SharedKey(row) for row in ROWS}
        self.watch = FeedWatch(self.part)
        self.after: int | None = None
        self.sent: list[bytes] = []

    def show(self, until: int) -> None:
        """Show the next versions one after another; beside the last, each may be sent or not."""
        while self.part.version < until:
            version = self.part.version + 1
            changed = [self.keys[ROWS[index]] for index in self.truth.history[version - 1]]
            for key in changed:
                key.changed(version, 10)
            self.part.version, self.part.position = version, token(version)
            self.watch.changed(changed)

    def open(self, after: int | None) -> None:
        self.after = after

    def add(self, first: int, rows: list[bytes], *, goes_on: bool) -> None:
        for number, row in enumerate(rows, first):
            self.watch.add(number, self.keys[row], self.after if goes_on else None)

    def go_on(self) -> None:
        """Send what was missed by the keys that were added, version by version."""
        assert self.after is not None
        numbers, keys = self.watch.numbered()
        for version in range(self.after + 1, self.part.version + 1):
            changed = [
                (number, key)
                for number, key in zip(numbers, keys, strict=True)
                if ROWS.index(key.printed) in self.truth.history[version - 1]
            ]
            for number, key in changed:
                event = value(key.printed, version) + at_fed_key(number, version, head(key.printed))
                is_last = number == changed[-1][0]
                self.sent.append(with_tail(event, token(version), tail(version)) if is_last else with_id(event, None))
        for number, key in zip(numbers, keys, strict=True):
            self.watch.was_sent(number, max(self.part.version, self.after), key.changes)

    def send(self, size: int) -> None:
        batch = self.watch.take(size, wants_position=True)
        texts: list[bytes] = []
        for telling in batch.tellings:
            key = self.watch.key(telling.at)
            if telling.is_first:
                texts.append(
                    key_event(KeyEvent.SNAPSHOT, value_data(key.printed, self.part.version))
                    + at_fed_key(telling.at, self.part.version, head(key.printed))
                )
                continue
            if telling.missed is not None:
                missed = coalesced_event(b'"s"', b'"k"', *telling.missed) + at_fed_key(
                    telling.at, telling.missed.first, 0
                )
                texts.append(missed)
            if telling.tells_value:
                texts.append(value(key.printed, key.version) + at_fed_key(telling.at, key.version, head(key.printed)))
        if batch.position is not None and not texts:
            texts.append(version_text(self.part.version, batch.position))
        for index, text in enumerate(texts):
            position = batch.position if index == len(texts) - 1 else None
            self.sent.append(
                with_id(text, None) if position is None else with_tail(text, position, tail(self.part.version))
            )


def value_data(row: bytes, version: int) -> bytes:
    return b'{"row":"%b","version":%d}' % (row, version)


def head(row: bytes) -> int:
    return len(b'{"row":"",') + len(row)


def tail(version: int) -> bytes:
    return b'"version":%d}' % version


def value(row: bytes, version: int) -> bytes:
    return key_event(KeyEvent.VALUE, value_data(row, version))


class Router:
    """The router's side: its keys, its watchers, and the node that feeds it."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.heard = HeardFeed("one")
        self.clients: list[Client] = []
        self.node = Node(truth, 0)
        self.given: set[bytes] = set()
        self.amid: list[Step] = []
        """What happens while events count."""
        self.has_gone_on = True
        self.reconnect(0)

    def key(self, row: bytes) -> FeedKey:
        return self.heard.keys.setdefault(row, FeedKey(row, row))

    def reconnect(self, shown: int) -> None:
        """The node dies; another one takes over, which may show an older version."""
        known, _ = self.heard.begin()
        after = self.heard.after
        self.node = Node(self.truth, min(shown, self.truth.newest))
        self.node.open(None if after is None else after.version)
        if known:
            self.node.add(self.heard.number(known), [key.row for key in known], goes_on=True)
        if after is not None:
            self.node.go_on()
        self.given = {key.row for key in known}
        self.has_gone_on = not known

    def give(self) -> None:
        new = [key for row, key in self.heard.keys.items() if row not in self.given]
        if new and self.has_gone_on:
            self.node.add(self.heard.number(new), [key.row for key in new], goes_on=False)
            self.given.update(key.row for key in new)

    def read(self) -> None:
        event = read_event(self.node.sent.pop(0).removesuffix(b"\n\n"))
        assert event is not None
        for _ in self.heard.heard(event):
            if self.amid:
                self.amid.pop(0)(self)
            for client in list(self.clients):
                client.take()
        self.has_gone_on = self.has_gone_on or event.position is not None

    def drop_unused(self) -> None:
        used = {key for client in self.clients for key in client.keys}
        gone = [key for key in self.heard.keys.values() if key not in used]
        for number in self.heard.drop(gone):
            self.node.watch.drop(number)
        self.given -= {key.row for key in gone}


@dataclass
class Client:
    """A watcher of some keys, and what it was told of each: versions, or ranges that it was told to have missed."""

    router: Router
    indexes: list[int]
    is_quick: bool
    keys: list[FeedKey] = field(default_factory=list)
    watch: Watch | None = None
    known: dict[int, int] = field(default_factory=dict)
    """The version up to which it knows each key."""
    after: int | None = None
    """The position that it comes back with."""
    position: int = -1
    missed: list[Missed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keys = [self.router.key(ROWS[index]) for index in self.indexes]

    def take(self, *, reads: bool = False) -> None:
        if not (self.is_quick or reads) or not all(key.is_ready for key in self.keys):
            return
        heard, truth = self.router.heard, self.router.truth
        if self.watch is None and not self.begin():
            return
        assert self.watch is not None
        batch = self.watch.take(1000, wants_position=True)
        for telling in batch.tellings:
            index, key = self.indexes[telling.at], self.keys[telling.at]
            if telling.is_first:
                self.known[index] = max(heard.version, key.version)
                data = orjson.loads(key.event.partition(b"data: ")[2])
                assert not truth.changes(index, data["version"], self.known[index]), "the value is of the version"
                first = orjson.loads(heard.first_event(key).partition(b"data: ")[2])
                assert first["version"] == self.known[index]
                continue
            unsent = truth.changes(index, self.known[index], key.version)
            if telling.missed is not None:
                self.check_missed(index, telling.missed, unsent)
            else:
                assert unsent == [key.version], "the next change, or it is told what was missed"
            self.known[index] = max(key.version, 0 if telling.missed is None else telling.missed.last)
            assert orjson.loads(key.event.partition(b"data: ")[2])["version"] == key.version
        if batch.position is not None:
            position = decode_position(batch.position).version
            assert position > self.position
            self.position = position
            for index in self.indexes:
                assert not truth.changes(index, self.known[index], position), "a position covers what was sent"

    def begin(self) -> bool:
        """Begin to watch. Whether the feed has the position that it comes back with."""
        heard, after = self.router.heard, self.after
        if after is not None and heard.version < after:
            return False
        self.watch = Watch([(key, heard) for key in self.keys], after)
        if after is not None:  # the history up to what is known of the keys was read, and sent
            last = known_until(heard, self.keys)
            self.known = dict.fromkeys(self.indexes, last)
            self.position = after
            for at, key in enumerate(self.keys):
                self.watch.was_sent(at, last, key.changes)
        return True

    def check_missed(self, index: int, missed: Missed, unsent: list[int]) -> None:
        self.missed.append(missed)
        assert missed.first == self.known[index] + 1
        assert all(missed.first <= version <= missed.last for version in unsent)
        assert missed.changes is None or missed.changes >= len(unsent) - 1, "what the history told may be counted again"


Step = Callable[[Router], None]


def commit(changed: set[int]) -> Step:
    return lambda router: router.truth.history.append(changed)


def show(more: int) -> Step:
    return lambda router: router.node.show(min(router.truth.newest, router.node.part.version + more))


def send(size: int) -> Step:
    return lambda router: router.node.send(size)


def read(events: int) -> Step:
    def step(router: Router) -> None:
        for _ in range(min(events, len(router.node.sent))):
            router.read()

    return step


def join(indexes: list[int], is_quick: bool) -> Step:
    return lambda router: router.clients.append(Client(router, indexes, is_quick))


def read_slowly(which: int) -> Step:
    def step(router: Router) -> None:
        for client in router.clients[which : which + 1]:
            client.take(reads=True)

    return step


def leave(which: int) -> Step:
    def step(router: Router) -> None:
        del router.clients[which : which + 1]
        router.drop_unused()

    return step


def come_back(which: int) -> Step:
    """A watcher is cut off, and comes back with its last position."""

    def step(router: Router) -> None:
        for client in router.clients[which : which + 1]:
            after = None if client.position < 0 else client.position
            router.clients[which] = Client(router, client.indexes, client.is_quick, after=after)

    return step


def die(shown: int) -> Step:
    return lambda router: router.reconnect(shown)


def amid(step: Step) -> Step:
    return lambda router: router.amid.append(step)


indexes = st.lists(st.integers(0, KEYS - 1), min_size=1, unique=True)
steps = st.one_of(
    st.builds(commit, st.sets(st.integers(0, KEYS - 1))),
    st.builds(show, st.integers(1, 3)),
    st.builds(send, st.sampled_from([1, 25, 1000])),
    st.builds(read, st.integers(1, 4)),
    st.just(Router.give),
    st.builds(join, indexes, st.booleans()),
    st.builds(read_slowly, st.integers(0, 5)),
    st.builds(leave, st.integers(0, 5)),
    st.builds(come_back, st.integers(0, 5)),
    st.builds(die, st.integers(0, 20)),
    st.builds(amid, st.builds(join, indexes, st.booleans())),
    st.builds(amid, st.builds(come_back, st.integers(0, 5))),
)


def settle(router: Router) -> None:
    """All that is left happens: then each watcher knows everything."""
    for _ in range(4):
        router.give()
        router.node.show(router.truth.newest)
        for _ in range(2 * KEYS + 2):
            router.node.send(1)
        while router.node.sent:
            router.read()
    for client in router.clients:
        client.take(reads=True)


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, min_size=15, max_size=80))
def test_each_watcher_of_a_feed_gets_each_change_of_its_keys_once_and_in_order(
    given_steps: list[Step],
) -> None:
    router = Router(Truth())
    join(list(range(KEYS)), is_quick=False)(router)
    settle(router)
    for step in given_steps:
        step(router)
    settle(router)
    for client in router.clients:
        assert all(client.known[index] >= 0 for index in client.indexes), "it has begun"
        assert client.position == router.heard.version == router.truth.newest
        for index in client.indexes:
            assert not router.truth.changes(index, client.known[index], router.truth.newest), "the last is never missed"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, KEYS - 1)), st.booleans()), max_size=20))
def test_quick_watchers_miss_no_version_while_nodes_take_over_from_each_other(
    versions: list[tuple[set[int], bool]],
) -> None:
    router = Router(Truth())
    client = Client(router, list(range(KEYS)), is_quick=True)
    router.clients.append(client)
    settle(router)
    for changed, dies in versions:
        router.truth.history.append(changed)
        if dies:
            router.reconnect(router.truth.newest)
        else:
            router.node.show(router.truth.newest)
            router.node.send(1000)
        while router.node.sent:
            router.read()
    settle(router)
    assert client.position == router.truth.newest
    assert not client.missed
