"""The audit log: who changed something through the admin API, and who read it. Nothing of readers' lookups is in it.

Each change has a line, before it is done. Reads have one per peer and path in a minute, with the number that were
left out: a page asks every second. As long as nobody says who he is, the principal is `anonymous`.
"""

from __future__ import annotations

import logging

from fastapi import Request

from understudy_shared.clock import Clock, SystemClock
from understudy_shared.http.cross_site import READING
from understudy_shared.printable import clipped
from understudy_shared.reminders import Repeats

log = logging.getLogger(__name__)

PREFIX = "/admin/v1/"
ANONYMOUS = "anonymous"


class Audit:
    """Writes the audit log of one service. `note` is a dependency of every route."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._reads = Repeats()

    async def note(self, request: Request) -> None:
        """Log the request, if it is one for operators."""
        path = str(request.scope["path"])
        if not path.startswith(PREFIX):
            return
        peer = request.client.host if request.client is not None else "unknown"
        said = {"principal": ANONYMOUS, "peer": peer, "method": request.method, "path": clipped(path)}
        if request.method not in READING:
            log.warning("%s %s is asked by %s of %s", request.method, clipped(path), ANONYMOUS, peer,
                extra={"action": "audit-change", **said})  # fmt: skip
            return
        left_out = self._reads.due((peer, path), self._clock.monotonic_ms())
        if left_out is not None:
            log.info("%s is read by %s of %s", clipped(path), ANONYMOUS, peer,
                extra={"action": "audit-read", "left_out": left_out, **said})  # fmt: skip
