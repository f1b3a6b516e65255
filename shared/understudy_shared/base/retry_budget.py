"""The retry budget: how many requests beyond the first a router or a client may send (pure: time is passed in).

Retries add load when there is too much of it already. So each retry is paid from what was earned: a share of the keys
that readers ask for, and a few units a second so that a quiet router can retry too. The budget starts empty: a router
that starts during an outage adds no retries to it.
"""

from __future__ import annotations

import math

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
        """Count keys that readers ask for. They are earned at the next look at the balance."""
        self._keys += keys

    def balance(self, now_ms: float) -> float:
        """Return the units that may be spent now."""
        elapsed_ms = max(0.0, now_ms - self._at_ms)
        fades = elapsed_ms / FADE_MS
        # Units were earned evenly since the last look and faded since: this share of them is left.
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
