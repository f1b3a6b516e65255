"""A router with one feed and its watchers: what the product makes of the events of a node.

Each watcher holds what it is sent to the true history as it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import orjson
from tests.support.router.feeding_node import ROWS, Node, Truth

from understudy_shared.questions.watch.choice import KeyWatcher, Missed
from understudy_shared.questions.watch.events import read_event
from understudy_shared.questions.watch.hop import FeedKey, HeardFeed
from understudy_shared.reads.tokens import decode_position


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
    watch: KeyWatcher | None = None
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
        self.watch = KeyWatcher([(key, heard) for key in self.keys], after)
        if after is not None:  # the history up to what is known of the keys was read, and sent
            self.known = dict.fromkeys(self.indexes, heard.version)
            self.position = after
            for at, key in enumerate(self.keys):
                self.watch.was_sent(at, heard.version, heard.changes_shown(key))
        return True

    def check_missed(self, index: int, missed: Missed, unsent: list[int]) -> None:
        self.missed.append(missed)
        assert missed.first == self.known[index] + 1
        assert all(missed.first <= version <= missed.last for version in unsent)
        assert missed.changes is None or missed.changes == len(unsent) - 1


Step = Callable[[Router], None]
