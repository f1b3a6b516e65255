"""A node with the feed of a router, and the true history beside it: what the product sends, as a list of events."""

from __future__ import annotations

from dataclasses import dataclass, field

from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.questions.watch.choice import FeedWatch, SharedKey, SharedPart
from understudy_shared.questions.watch.events import (
    KeyEvent,
    at_fed_key,
    coalesced_event,
    key_event,
    version_text,
    with_id,
    with_tail,
)
from understudy_shared.reads.tokens import Position

KEYS = 4
ROWS = [b"k%d" % index for index in range(KEYS)]


def token(version: int) -> str:
    return Position(ApplicationId("app"), Lineage("one"), version, version * 1000).encode()


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
        self.goes_on_later = False
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
            self.go_on()

    def open(self, after: int | None) -> None:
        self.after, self.goes_on_later = after, after is not None

    def add(self, first: int, rows: list[bytes], *, goes_on: bool) -> None:
        for number, row in enumerate(rows, first):
            self.watch.add(number, self.keys[row], self.after if goes_on else None)

    def go_on(self) -> None:
        """Send what was missed by the keys that were added, version by version, once they are compared with `after`."""
        if self.after is None or not self.goes_on_later or self.part.version < self.after:
            return
        self.goes_on_later = False
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
            self.watch.was_sent(number, self.part.version, key.changes)

    def send(self, size: int) -> None:
        if self.goes_on_later:
            return
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
