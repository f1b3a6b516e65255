"""What waits for a connection to one node: first come first served, and bounded (pure: no I/O, time passed in)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from understudy_router.asks import Ask, take

MAX_WAITING_KEYS = 16_384
"""Keys that wait for one node; one more is refused as overloaded. About 4 MB of small keys."""


class AskQueue:
    """`keys` is how many keys wait: those of the asks in it, unless some were dropped since the last look."""

    def __init__(self) -> None:
        self.asks: deque[Ask] = deque()
        self.keys = 0
        self._has_dropped = False

    def __bool__(self) -> bool:
        return bool(self.asks)

    def append(self, ask: Ask) -> bool:
        """Let it wait behind all others; False when there is no room."""
        keys = self.keys + len(ask.keys)
        if keys > MAX_WAITING_KEYS:
            self._purge()
            keys = self.keys + len(ask.keys)
            if keys > MAX_WAITING_KEYS:
                return False
        self.asks.append(ask)
        self.keys = keys
        return True

    def put_back(self, asks: Sequence[Ask]) -> None:
        """They travelled in vain, and go first."""
        self._keep([*(ask for ask in asks if ask.is_wanted), *self.asks])

    def drop(self, ask: Ask) -> None:
        """Nobody wants it any more; it need not wait here."""
        ask.drop()
        self._has_dropped = True

    def take(self) -> list[Ask]:
        """The asks of the next hop; none when all were dropped."""
        self._purge()
        asks = take(self.asks)
        self.keys -= sum([len(ask.keys) for ask in asks])
        return asks

    def take_late(self, now_ms: float) -> list[Ask]:
        """Those whose time is over."""
        self._purge()
        if not any(ask.until_ms <= now_ms for ask in self.asks):
            return []
        late = [ask for ask in self.asks if ask.until_ms <= now_ms]
        self._keep([ask for ask in self.asks if ask.until_ms > now_ms])
        return late

    def take_all(self) -> list[Ask]:
        """Everybody."""
        asks = list(self.asks)
        self._keep([])
        return asks

    def _purge(self) -> None:
        if self._has_dropped:
            self._has_dropped = False
            self._keep([ask for ask in self.asks if ask.is_wanted])

    def _keep(self, asks: list[Ask]) -> None:
        self.asks = deque(asks)
        self.keys = sum(len(ask.keys) for ask in asks)
