"""A token bucket: it allows a rate per second, and a burst (pure: time is passed in)."""

from __future__ import annotations

_ONE = 1 - 1e-9
"""As good as one token: sums of fractions are not exact, and after a wait of `wait_s` a token must be there."""


class TokenBucket:
    """A bucket that is full at first. Rule: 0 <= tokens <= burst, so in any `t` seconds at most `burst + per_s * t` are
    taken, and
    what was given.
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
        """Put some in besides those that time brings."""
        self._tokens = min(self._burst, self._tokens + tokens)

    def wait_s(self) -> float:
        """Return how long after the last `take` the next token is there."""
        return max(0.0, (1 - self._tokens) / self._per_s)
