"""What watchers ask for, and what they make of the events (pure but for the clock, which is passed in)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tests.system.proof.history import Told, Watch
from tests.system.proof.kinds_keys import SCATTERED
from tests.system.proof.question import key_text, said_by
from tests.system.proof.subjects import Subject

from understudy import WatchEvent
from understudy_shared.reads.tokens import decode_position

KEYS: Final = 20
WATCHED: Final = frozenset({"value", SCATTERED})
"""Kinds of which a key has one value."""

LASTS_S: Final = (8.0, 40.0)
"""The shortest and the longest time of a watch: keys of the proof live for a minute."""

MAX_EVENTS: Final = 20_000


@dataclass(frozen=True, slots=True)
class WatchQuestion:
    """Keys of a store, or a prefix of them; and the position to go on behind."""

    store: str
    keys: tuple[tuple[str, ...], ...]
    prefix: tuple[str, ...] | None = None
    position: str | None = None


def choose_watch(
    subject: Subject, chance: random.Random, newest: int, before: Watching | None, *, of_prefix: bool
) -> WatchQuestion | None:
    """Choose what to watch, of a store whose keys have one value; None where there is no such store. The last keys in
    their order are the newest of queries by time, which change most. Each second watch goes on where the one before
    ended.
    """
    stores = {store for store, kind in subject.kinds.items() if kind in WATCHED} - subject.added
    if not stores:
        return None
    if before is not None and before.position is not None and before.question.position is None:
        asked = before.question
        return WatchQuestion(asked.store, asked.keys, asked.prefix, before.position)
    drawn = [subject.choose(chance, newest) for _ in range(20 * KEYS)]
    store = chance.choice(sorted(stores))
    keys = sorted({each.key for each in drawn if each.store == store}, reverse=True)
    if of_prefix:
        return WatchQuestion(store, (), chance.choice(keys[: 2 * KEYS])[:1])
    return WatchQuestion(store, tuple(keys[:KEYS]))


@dataclass(slots=True)
class Watching:
    """A watch that is made, and what it told so far."""

    number: int
    way: str
    question: WatchQuestion
    began_ms: float
    position: str | None = None
    events: list[Told] = field(default_factory=list)

    def took(self, at_ms: float, event: WatchEvent[Any]) -> None:
        """Add an event."""
        self.position = event.position
        raw = event.raw
        self.events.append(
            Told(
                at_ms,
                event.kind,
                "" if raw.get("key") is None else key_text(*raw["key"].values()),
                event.version,
                None if event.position is None else decode_position(event.position).version,
                said_by(raw) if event.found else None,
                event.first_version,
                event.changes if event.kind == "coalesced" else None,
            )
        )
        assert len(self.events) < MAX_EVENTS, f"{self.question} has no end"

    def ended(self, now_ms: Callable[[], float], why: str = "") -> Watch:
        """Return the record of the watch; `why` it failed, if it did."""
        asked = self.question
        outcome: Literal["ended", "failed"] = "failed" if why else "ended"
        return Watch(
            self.number,
            self.began_ms,
            now_ms(),
            self.way,
            asked.store,
            tuple(key_text(*key) for key in asked.keys),
            None if asked.prefix is None else key_text(*asked.prefix),
            None if asked.position is None else decode_position(asked.position).version,
            outcome,
            why,
            tuple(self.events),
        )
