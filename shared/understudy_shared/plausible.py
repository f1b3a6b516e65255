"""Which numbers that others say can be true (pure): the one place that judges them, heard, read or remembered.

A number is refused when it is far above all that a cluster counts to, or far above what is known here. Both leave room:
whatever is believed, there are numbers left above it. Redis' scripts count in doubles, which are exact up to 2^53.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

CEILING = 2**48
"""No document has a number above this. A thousand steps a second reach it in 8,900 years."""

FIRST_SIGHT = 2**47
"""The highest number that is believed while nothing is known: half of the room is left above it."""

MAX_JUMP = 2**24
"""Above what is known: half a year of one step a second that this process did not hear of, while it ran."""

LATE_HEARTBEATS = 1.5
"""A process beats within one. What it says so long after the number that is known was not said before that number."""

Order = tuple[int, int]
"""(term, epoch) of an assignment; (0, 0) is before the first."""


class Succession(Enum):
    """How a sequence number stands to the one that is known."""

    NEWER = "newer"
    OLDER = "older"
    ABSURD = "absurd"


def limit_above(known: int) -> int:
    """The highest number that can follow `known`; 0 means that nothing is known."""
    return min(CEILING, known + MAX_JUMP) if known else FIRST_SIGHT


def is_plausible(told: int, known: int) -> bool:
    """Whether a count that grows can have come from `known` to `told`. What lies below it always can."""
    return 0 <= told <= limit_above(known)


def is_plausible_order(told: Order, known: Order) -> bool:
    """Whether an assignment numbered `told` can exist where `known` is the last that is known."""
    return is_plausible(told[0], known[0]) and is_plausible(told[1], known[1])


def is_later(told: Order, known: Order) -> bool:
    """Whether an assignment numbered `told` can exist and comes after the one that is known."""
    return told > known and is_plausible_order(told, known)


def highest_plausible(told: Iterable[Order], known: Order) -> Order:
    """The highest of `told` that can exist beside `known`; (0, 0) when there is none."""
    return max((order for order in told if is_plausible_order(order, known)), default=(0, 0))


def is_far_ahead(own: Order, others: Iterable[Order]) -> bool:
    """Whether `own` cannot exist by what all others follow: then `own` is the forged one. (0, 0) says nothing."""
    following = [order for order in others if order != (0, 0)]
    return bool(following) and not is_plausible_order(own, max(following))


def succession(told: int, known: int, *, later_ms: float, heartbeat_ms: float) -> Succession:
    """How a sequence number stands to the one that is known of the same process; it was said `later_ms` after that one.

    Somebody else may have told the known one in the process' name. Then it does not fit what the process says next,
    which lies far below it, or goes on as if it had never been; so it counts no more than a heartbeat later.
    """
    step = told - known
    if told > CEILING:
        return Succession.ABSURD
    if later_ms > LATE_HEARTBEATS * heartbeat_ms and step != 0:
        return Succession.NEWER
    if step > MAX_JUMP:
        return Succession.ABSURD
    return Succession.NEWER if step > 0 or step < -MAX_JUMP else Succession.OLDER
