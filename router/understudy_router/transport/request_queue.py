"""What waits for a connection to one node: first come first served, and bounded (pure: no I/O, time passed in)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from understudy_router.transport.node_requests import NodeRequest, take

MAX_WAITING_KEYS = 16_384
"""Keys that wait for one node; one more is refused as overloaded. About 4 MB of small keys."""


class RequestQueue:
    """`keys` is how many keys wait: those of the asks in it, unless some were dropped since the last look."""

    def __init__(self) -> None:
        self.requests: deque[NodeRequest] = deque()
        self.keys = 0
        self._has_dropped = False

    def __bool__(self) -> bool:
        return bool(self.requests)

    def append(self, request: NodeRequest) -> bool:
        """Let it wait behind all others; False when there is no room."""
        keys = self.keys + len(request.keys)
        if keys > MAX_WAITING_KEYS:
            self._purge()
            keys = self.keys + len(request.keys)
            if keys > MAX_WAITING_KEYS:
                return False
        self.requests.append(request)
        self.keys = keys
        return True

    def put_back(self, requests: Sequence[NodeRequest]) -> None:
        """They travelled in vain, and go first."""
        self._keep([*(request for request in requests if request.is_wanted), *self.requests])

    def drop(self, request: NodeRequest) -> None:
        """Nobody wants it any more; it need not wait here."""
        request.drop()
        self._has_dropped = True

    def take(self) -> list[NodeRequest]:
        """The asks of the next hop; none when all were dropped."""
        self._purge()
        requests = take(self.requests)
        self.keys -= sum([len(request.keys) for request in requests])
        return requests

    def take_late(self, now_ms: float) -> list[NodeRequest]:
        """Those whose time is over."""
        self._purge()
        if not any(request.until_ms <= now_ms for request in self.requests):
            return []
        late = [request for request in self.requests if request.until_ms <= now_ms]
        self._keep([request for request in self.requests if request.until_ms > now_ms])
        return late

    def take_all(self) -> list[NodeRequest]:
        """Everybody."""
        requests = list(self.requests)
        self._keep([])
        return requests

    def _purge(self) -> None:
        if self._has_dropped:
            self._has_dropped = False
            self._keep([request for request in self.requests if request.is_wanted])

    def _keep(self, requests: list[NodeRequest]) -> None:
        self.requests = deque(requests)
        self.keys = sum(len(request.keys) for request in requests)
