"""Whether a call tries again, when, and at which server (pure).

The deadline comes first: an attempt is made, and a pause is taken, only inside it. Retries that cost a server work are
few for one call, and paid from a budget over all calls.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from understudy.client.core.judging import Judged, Meaning

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
MIN_ATTEMPT_S = 0.02
"""Time that has to be left for another attempt to be worth its cost."""


class Where(Enum):
    """The server of the next attempt."""

    SAME = auto()
    NEXT = auto()


class Again(NamedTuple):
    """The decision to try again, after a pause. `is_paid`: a unit of the budget was needed."""

    where: Where
    pause_s: float = 0.0
    is_paid: bool = False


class Tries(NamedTuple):
    """The attempts of a call so far. `untried` is the number of servers that it has not asked."""

    paid: int
    max_paid: int
    not_sent: int
    servers: int
    untried: int
    has_resent: bool
    has_new_credential: bool
    left_s: float


def decide(judged: Judged, tries: Tries, *, jitter: float) -> Again | None:
    """Return the next attempt, or None to give up. `jitter` is from 0 to 1."""
    if tries.left_s < MIN_ATTEMPT_S:
        return None
    match judged.meaning:
        case Meaning.STALE if not tries.has_resent:
            return Again(Where.SAME)
        case Meaning.UNAUTHENTICATED if tries.has_new_credential:
            return Again(Where.SAME)
        case Meaning.NOT_SENT if tries.untried:
            return Again(Where.NEXT)
        case Meaning.NOT_SENT if tries.not_sent < tries.servers + tries.max_paid:
            return _within(_backoff_s(tries.not_sent - tries.servers, jitter), Where.NEXT, tries)
        case Meaning.BUSY | Meaning.FAILED | Meaning.STALE if tries.untried and tries.paid < tries.max_paid:
            return Again(Where.NEXT, is_paid=True)
        case Meaning.BUSY | Meaning.FAILED | Meaning.STALE | Meaning.LIMITED if tries.paid < tries.max_paid:
            where = Where.SAME if judged.meaning is Meaning.LIMITED else Where.NEXT
            pause_s = judged.retry_after_s + _backoff_s(tries.paid, jitter)
            return _within(pause_s, where, tries, is_paid=True)
    return None


def _within(pause_s: float, where: Where, tries: Tries, *, is_paid: bool = False) -> Again | None:
    """Return a pause and an attempt after it; None where the deadline would be over."""
    return Again(where, pause_s, is_paid) if pause_s + MIN_ATTEMPT_S < tries.left_s else None


def _backoff_s(count: int, jitter: float) -> float:
    pause_s: float = FIRST_PAUSE_S * 2.0 ** min(max(count, 0), 16)
    return min(LONGEST_PAUSE_S, pause_s) * (0.5 + jitter / 2)


def attempt_s(left_s: float, wait_s: float) -> float:
    """Return the time of an attempt while another server is untried, for which half of what is left is kept: a server
    that hangs must not use up the call. The time that a server was asked to wait is its own.
    """
    return min(left_s, wait_s + max(0.0, left_s - wait_s) / 2)
