"""The check whether a number in a message can be true (pure). Every number that is heard, read or remembered passes it.

A number is refused when it is far above all that a cluster counts to, or far above the number that this process knows.
Both limits leave room above every accepted number. Redis' scripts count in doubles, which are exact up to 2^53.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

CEILING = 2**48
"""The limit on every number in a document. A thousand steps a second reach it in 8,900 years."""

FIRST_SIGHT = 2**47
"""The highest number that is accepted while no number is known: half of the room is left above it."""

MAX_JUMP = 2**24
"""Highest accepted step above the known number: half a year of one step per second that this process missed."""

LATE_HEARTBEATS = 1.5
"""A process sends a heartbeat within one interval, so a message that arrives later than this after another one was also
sent later.
"""

Order = tuple[int, int]
"""The (term, epoch) of an assignment; (0, 0) is before the first."""


class Succession(Enum):
    """The relation of a sequence number to the known one."""

    NEWER = "newer"
    OLDER = "older"
    ABSURD = "absurd"


def limit_above(known: int) -> int:
    """Return the highest number that can follow `known`; 0 means that nothing is known."""
    return min(CEILING, known + MAX_JUMP) if known else FIRST_SIGHT


def is_plausible(claimed: int, known: int) -> bool:
    """Whether a growing count can have gone from `known` to `claimed`. A number below `known` always can be true."""
    return 0 <= claimed <= limit_above(known)


def is_plausible_order(claimed: Order, known: Order) -> bool:
    """Whether an assignment numbered `claimed` can exist when `known` is the last known one."""
    return is_plausible(claimed[0], known[0]) and is_plausible(claimed[1], known[1])


def is_later(claimed: Order, known: Order) -> bool:
    """Whether an assignment numbered `claimed` can exist and comes after the known one."""
    return claimed > known and is_plausible_order(claimed, known)


def highest_plausible(claimed: Iterable[Order], known: Order) -> Order:
    """Return the highest of `claimed` that is plausible given `known`; (0, 0) if none of them is."""
    return max((order for order in set(claimed) if is_plausible_order(order, known)), default=(0, 0))


def is_far_ahead(own: Order, others: Iterable[Order]) -> bool:
    """Whether `own` is too far above what all others follow to exist: then `own` was forged. (0, 0) does not count."""
    following = [order for order in others if order != (0, 0)]
    return bool(following) and not is_plausible_order(own, max(following))


def succession(claimed: int, known: int, *, later_ms: float, heartbeat_ms: float) -> Succession:
    """Return how a sequence number relates to the known one of the same process, which was sent `later_ms` earlier.

    Another process may have sent the known one under this name. The next number of the real process then lies far below
    it, or continues its own count. So the known number stops counting after LATE_HEARTBEATS.
    """
    step = claimed - known
    if claimed > CEILING:
        return Succession.ABSURD
    if later_ms > LATE_HEARTBEATS * heartbeat_ms and step != 0:
        return Succession.NEWER
    if step > MAX_JUMP:
        return Succession.ABSURD
    return Succession.NEWER if step > 0 or step < -MAX_JUMP else Succession.OLDER
