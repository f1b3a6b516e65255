"""Limits on how often something happens (pure: time is passed in).

Retries add load when there is too much of it already. So each retry is paid from what was earned: a share of the keys
that readers ask for, and a few units a second so that a quiet router can retry too. The budget starts empty: a router
that starts during an outage adds no retries to it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

FIRST_GAP_MS = 10_000
MAX_GAP_MS = 600_000

REPEAT_MS = 60_000
MAX_KINDS = 1024


class Reminder:
    """A schedule for logging one lasting fault: at once, after ten seconds, then after twice as long each time. It
    starts again when the fault was gone.
    """

    def __init__(self) -> None:
        self._next_ms = float("-inf")
        self._gap_ms = FIRST_GAP_MS

    def is_due(self, now_ms: float) -> bool:
        """Whether to log the fault now; if so, the next time is later."""
        if now_ms < self._next_ms:
            return False
        self._next_ms, self._gap_ms = now_ms + self._gap_ms, min(2 * self._gap_ms, MAX_GAP_MS)
        return True

    def reset(self) -> None:
        self._next_ms, self._gap_ms = float("-inf"), FIRST_GAP_MS


class LogThrottle:
    """A filter for log lines that a flood of requests would write: it admits one line of each kind in a minute."""

    def __init__(self, *, forgets: bool = False) -> None:
        """Admit lines of at most MAX_KINDS kinds in a minute. With `forgets`, admit them all, and forget the kind that
        was logged longest ago: for logs that something else bounds.
        """
        self._forgets = forgets
        self._refused = 0
        """Lines of kinds without room, since the last admitted line."""
        self._logged: dict[Hashable, tuple[float, int]] = {}
        """The time at which a line of each kind was logged last, and how many were left out since; the oldest first."""

    def admit(self, kind: Hashable, now_ms: float) -> dict[str, int] | None:
        """Return the field that says how many lines of this kind were left out since the last one, if any were, with
        those of kinds that had no room. None: leave this one out as well.
        """
        logged_ms, left_out = self._logged.get(kind, (float("-inf"), 0))
        if now_ms - logged_ms < REPEAT_MS:
            self._logged[kind] = (logged_ms, left_out + 1)
            return None
        self._logged.pop(kind, None)
        if len(self._logged) >= MAX_KINDS:
            oldest, (oldest_ms, _) = next(iter(self._logged.items()))
            if now_ms - oldest_ms < REPEAT_MS and not self._forgets:
                self._refused += 1
                return None
            del self._logged[oldest]
        self._logged[kind] = (now_ms, 0)
        left_out, self._refused = left_out + self._refused, 0
        return {"left_out": left_out} if left_out else {}


_ONE = 1 - 1e-9
"""As good as one token: sums of fractions are not exact, and after a wait of `wait_s` a token must be there."""


class TokenBucket:
    """A bucket that is full at first. Rule: 0 <= tokens <= burst, so in any `t` seconds at most `burst + per_s * t` are
    taken, and what was given.
    """

    __slots__ = ("_at_s", "_burst", "_per_s", "_tokens")

    def __init__(self, *, per_s: float, burst: float, now_s: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._tokens, self._at_s = burst, now_s

    def __repr__(self) -> str:
        return f"TokenBucket({self._tokens:.1f} of {self._burst:g})"

    def take(self, now_s: float) -> bool:
        """Take one token, if there is one. A clock that goes back adds nothing."""
        if now_s > self._at_s:
            self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._per_s)
            self._at_s = now_s
        if self._tokens < _ONE:
            return False
        self._tokens = max(0.0, self._tokens - 1)
        return True

    def give(self, tokens: float) -> None:
        self._tokens = min(self._burst, self._tokens + tokens)

    def wait_s(self) -> float:
        """Return how long after the last `take` the next token is there."""
        return max(0.0, (1 - self._tokens) / self._per_s)


FADE_MS = 10_000.0
"""The time constant, in ms, with which an unspent unit fades. So there are never more than 10 s worth of units,
whatever the traffic: enough for all reads in flight to a node that fails, too little for a day's savings to become a
storm. (Venice's bucket holds 5 s; Finagle's units live for 10 s.)"""


class RetryBudget:
    """The balance of units; a unit is one key sent to one more node. Rule: spent <= earned, and 0 <= balance <= FADE_MS
    of earning.
    """

    def __init__(self, *, percent: float, per_s: float, now_ms: float) -> None:
        """Earn `percent` of the keys that readers ask for, and `per_s` units a second."""
        self.spent = 0
        self._share = percent / 100
        self._per_ms = per_s / 1000
        self._balance = 0.0
        self._keys = 0
        self._at_ms = now_ms

    def __repr__(self) -> str:
        return f"RetryBudget({self._balance:.1f} left, {self.spent} spent)"

    def asked(self, keys: int) -> None:
        """Count keys that readers ask for. They are earned when the balance is next read."""
        self._keys += keys

    def balance(self, now_ms: float) -> float:
        """Return the units that may be spent now."""
        elapsed_ms = max(0.0, now_ms - self._at_ms)
        fades = elapsed_ms / FADE_MS
        # Units were earned evenly since the last reading and faded since: this share of them is left.
        left = -math.expm1(-fades) / fades if fades > 0 else 1.0
        self._balance = self._balance * math.exp(-fades) + (self._keys * self._share + elapsed_ms * self._per_ms) * left
        self._at_ms += elapsed_ms
        self._keys = 0
        return self._balance

    def try_spend(self, keys: int, now_ms: float) -> bool:
        """Pay for sending so many keys to another node, for all of them at once. Return False when the balance is too
        low.
        """
        if self.balance(now_ms) < keys:
            return False
        self._balance -= keys
        self.spent += keys
        return True
