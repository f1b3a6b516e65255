"""What a connection does, and what may follow on what: the phases, and a row of legal transitions for each event.

As in h11's `_state.py`. A phase says who speaks; how long it may last is the business of `connection_limits.py`.
"""

from __future__ import annotations

import logging
from enum import IntEnum

log = logging.getLogger(__name__)


class Phase(IntEnum):
    """When there are too many connections, those with the lowest value are closed first; from BUSY on, none."""

    SILENT = 0
    """No request has begun."""
    LINGERING = 1
    """Refused, and still open so that the peer can read why; what it sends is dropped."""
    UNREAD = 2
    """The peer does not read its answers. Only the guard sees it: it may be so in every phase."""
    HANDSHAKE = 3
    """The handshake of TLS has begun."""
    HEAD = 4
    """The head of a request comes."""
    BODY = 5
    """Its body comes, and the application answers by ASGI meanwhile. The guard sees RECEIVING and SURPLUS as this."""
    IDLE = 6
    """A request was answered, and none has begun since."""
    IDLE_INTERNAL = 7
    """The same of a node or router, as the guard sees it."""
    BUSY = 8
    """The request came whole, and is answered by ASGI."""
    DIRECT = 9
    """It came whole, and is answered by callback."""
    RECEIVING = 10
    """Its body comes, for an application that answers it directly."""
    SURPLUS = 11
    """It was answered before the end of its body; the rest is read and dropped."""
    INSIDE = 12
    """TLS is agreed upon: the protocol inside has a phase of its own."""
    CLOSED = 13


class Event(dict[Phase, Phase]):
    """What happens to a connection, with the phase that follows on each in which it may happen."""

    def __init__(self, name: str, legal: dict[Phase, Phase]) -> None:
        super().__init__(legal)
        self.name = name
        self[Phase.CLOSED] = Phase.CLOSED  # what was under way may end, and changes nothing

    def __missing__(self, phase: Phase) -> Phase:
        """A bug of ours: it costs the connection, and is logged."""
        said, extra = "a connection is closed by a bug: %s in phase %s", {"action": "phase-bug"}
        log.error(said, self.name, phase.name, stack_info=True, extra=extra)
        return Phase.CLOSED


SILENT, LINGERING, UNREAD, HANDSHAKE, HEAD, BODY = list(Phase)[: Phase.IDLE]
IDLE, IDLE_INTERNAL, BUSY, DIRECT, RECEIVING, SURPLUS, INSIDE, CLOSED = list(Phase)[Phase.IDLE :]
"""The same by name: to look a member up in its class costs as much as a call."""

BEGIN = Event("a request begins", {SILENT: HEAD, IDLE: HEAD})
START = Event("its head is read, and ASGI starts", {HEAD: BODY})
TAKE = Event("an application takes it", {HEAD: RECEIVING, SILENT: DIRECT, IDLE: DIRECT})
"""From SILENT and IDLE: its head is known, and is not parsed."""
DECLINE = Event("the application does not answer it", {RECEIVING: HEAD, DIRECT: IDLE})
END = Event("the request ends", {BODY: BUSY, RECEIVING: DIRECT, SURPLUS: IDLE})
ANSWER = Event("its answer is complete", {BODY: SURPLUS, RECEIVING: SURPLUS, BUSY: IDLE, DIRECT: IDLE})
REFUSE = Event(
    "it is refused with a problem", dict.fromkeys((SILENT, HANDSHAKE, HEAD, BODY, RECEIVING, IDLE), LINGERING)
)
GREET = Event("a handshake goes on", {SILENT: HANDSHAKE, HANDSHAKE: HANDSHAKE})
SECURE = Event("a handshake ends", {HANDSHAKE: INSIDE})
CLOSE = Event("the connection is closed", dict.fromkeys(Phase, CLOSED))

AT_REST = frozenset({SILENT, IDLE})
"""A request may begin."""
IN_BODY = frozenset({BODY, RECEIVING, SURPLUS})
IN_MESSAGE = IN_BODY | {HEAD}
ANSWERING = frozenset({DIRECT, BUSY})
"""What comes now is of a later request, and waits."""
