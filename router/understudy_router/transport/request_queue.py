"""A bounded first-in first-out queue of requests that wait for a connection to one node (pure: time is passed in)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from understudy_router.transport.node_requests import NodeRequest, take

MAX_WAITING_KEYS = 16_384
"""Most keys that may wait for one node, about 4 MB of small keys. The next one is refused as overloaded."""


class RequestQueue:
    """Requests in the order of their arrival. `keys` counts their keys; it may count cancelled ones until the next
    purge.
    """

    def __init__(self) -> None:
        self.requests: deque[NodeRequest] = deque()
        self.keys = 0
        self._has_dropped = False

    def __bool__(self) -> bool:
        return bool(self.requests)

    def append(self, request: NodeRequest) -> bool:
        """Add a request at the end. Returns False when there is no room."""
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
        """Put requests whose hop was lost at the front of the queue."""
        self._keep([*(request for request in requests if request.is_wanted), *self.requests])

    def drop(self, request: NodeRequest) -> None:
        """Cancel a request that its reader no longer wants."""
        request.drop()
        self._has_dropped = True

    def take(self) -> list[NodeRequest]:
        """Take the requests of the next hop; an empty list when all were cancelled."""
        self._purge()
        requests = take(self.requests)
        self.keys -= sum([len(request.keys) for request in requests])
        return requests

    def take_late(self, now_ms: float) -> list[NodeRequest]:
        """Take the requests whose deadline has passed."""
        self._purge()
        if not any(request.until_ms <= now_ms for request in self.requests):
            return []
        late = [request for request in self.requests if request.until_ms <= now_ms]
        self._keep([request for request in self.requests if request.until_ms > now_ms])
        return late

    def take_all(self) -> list[NodeRequest]:
        """Empty the queue."""
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
