"""The turns that the reader of a subscription gives to other tasks (pure: no I/O, no clock)."""

from __future__ import annotations

MESSAGES_AT_ONCE = 64
"""After so many messages other tasks get a turn, however many have arrived."""

MANY_A_SECOND = 200
PAUSE_S = 0.01
"""The pause after which messages are read together where many come, as in a large cluster: to wake for each of them
costs more than to read it.
"""


class ReadingTurns:
    """The turns of one connection."""

    def __init__(self, now_s: float) -> None:
        self._replies = 0
        self._began_s, self._counted = now_s, 0
        self._are_many = False
        """Whether many messages came in the last second or longer."""

    def took(self, now_s: float) -> None:
        """Count a message."""
        self._counted += 1
        if (lasted_s := now_s - self._began_s) >= 1:
            self._are_many = self._counted >= MANY_A_SECOND * lasted_s
            self._began_s, self._counted = now_s, 0

    def pause_s(self, *, has_more: bool) -> float | None:
        """Return the pause before the next reply is read, or `None`; `has_more`: it may have arrived already."""
        self._replies += 1
        if self._are_many and not has_more:
            return PAUSE_S
        return 0.0 if self._replies % MESSAGES_AT_ONCE == 0 else None
