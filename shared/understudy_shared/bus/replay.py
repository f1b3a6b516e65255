"""The check whether a signed message is new or a replay of an old one (pure: time is passed in).

Each process numbers its messages. A number counts once, as in RFC 4303: messages of one process may overtake each other
by WIDTH numbers and LATE_MS of its own time. A message whose time is further than WINDOW_MS from this host's clock is
refused, so that what a process has not heard itself cannot be sent to it later. That is the one place where clocks of
two hosts are compared: only to refuse, and as roughly as Kerberos does. No age and no lag comes from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from understudy_shared.bus.signing import Stamp

WINDOW_MS = 300_000
"""Kerberos' limit between two clocks (RFC 4120): five minutes."""

WIDTH = 64
LATE_MS = 10_000
"""Time by which a message may be late: above the longest call to the bus, on a slow connection."""

MAX_SESSIONS = 16_384
"""Limit on sessions: four times the nodes that may be known; each has a valid signature of the last five minutes."""

_ALL = (1 << WIDTH) - 1


class Timeliness(Enum):
    """The freshness of a message by its number and its time."""

    FRESH = "fresh"
    OVERTAKEN = "overtaken"
    """The message was read from a key while a newer one arrived: not used, and no sign of an attack."""
    REPLAYED = "replayed"
    OUTDATED = "outdated"


@dataclass(slots=True)
class _Session:
    """The numbers that were heard of one process. Bit i of `heard` is number `highest` - i."""

    highest: int
    heard: int
    sent_ms: int


class ReplayGuard:
    """The numbers of each process, for as long as its messages are in the window."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._sweep_at = WIDTH

    def __len__(self) -> int:
        return len(self._sessions)

    def heard(self, stamp: Stamp, *, now_ms: int) -> Timeliness:
        """Judge a message that was heard, and remember it if it is fresh."""
        if abs(stamp.sent_ms - now_ms) > WINDOW_MS:
            return Timeliness.OUTDATED
        known = self._sessions.get(stamp.session)
        if known is None:
            # A message that was sent before may be a recording.
            self._remember(stamp, _Session(stamp.number, _ALL, stamp.sent_ms), now_ms)
            return Timeliness.FRESH
        step = stamp.number - known.highest
        if step > 0:
            known.heard = ((known.heard << step) | 1) & _ALL if step < WIDTH else 1
            known.highest, known.sent_ms = stamp.number, max(known.sent_ms, stamp.sent_ms)
            return Timeliness.FRESH
        if -step >= WIDTH or (known.heard >> -step) & 1 or stamp.sent_ms < known.sent_ms - LATE_MS:
            return Timeliness.REPLAYED
        known.heard |= 1 << -step
        return Timeliness.FRESH

    def read(self, stamp: Stamp, *, now_ms: int, kept_ms: int) -> Timeliness:
        """Judge a message that was read from a key, which stores it for `kept_ms`. It may be heard as well, once."""
        if not -WINDOW_MS <= now_ms - stamp.sent_ms <= WINDOW_MS + kept_ms:
            return Timeliness.OUTDATED
        known = self._sessions.get(stamp.session)
        if known is None:
            self._remember(stamp, _Session(stamp.number, 0, stamp.sent_ms), now_ms)
            return Timeliness.FRESH
        step = stamp.number - known.highest
        if step >= 0:
            known.heard = (known.heard << step) & _ALL if step < WIDTH else 0
            known.highest, known.sent_ms = stamp.number, max(known.sent_ms, stamp.sent_ms)
            return Timeliness.FRESH
        return Timeliness.OVERTAKEN if -step < WIDTH else Timeliness.REPLAYED

    def _remember(self, stamp: Stamp, session: _Session, now_ms: int) -> None:
        """Remember a number. Make room first: sessions out of the window would be refused by their time."""
        if len(self._sessions) >= self._sweep_at:
            begin_ms = now_ms - WINDOW_MS
            self._sessions = {name: known for name, known in self._sessions.items() if known.sent_ms >= begin_ms}
            while len(self._sessions) >= MAX_SESSIONS:
                del self._sessions[min(self._sessions, key=lambda name: self._sessions[name].sent_ms)]
            self._sweep_at = min(MAX_SESSIONS, max(WIDTH, 2 * len(self._sessions)))
        self._sessions[stamp.session] = session
