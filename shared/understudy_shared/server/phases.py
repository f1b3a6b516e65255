"""The phases of a connection, and a row of legal transitions for each event.

The design is that of h11's `_state.py`. A phase says which side is active; `connection_limits.py` says how long it may
last.
"""

from __future__ import annotations

import logging
from enum import IntEnum

log = logging.getLogger(__name__)


class Phase(IntEnum):
    """A phase of a connection. If there are too many connections, those with the lowest value are closed first. A
    connection in BUSY or a higher phase is not closed for others.
    """

    SILENT = 0
    """No request has begun."""
    LINGERING = 1
    """Refused, and still open so that the peer can read why; what it sends is dropped."""
    UNREAD = 2
    """The peer does not read its answers. Only the guard uses this phase: the condition can occur in every other phase.
    """
    HANDSHAKE = 3
    """The TLS handshake has begun."""
    HEAD = 4
    """The head of a request arrives."""
    BODY = 5
    """The body of a request arrives, and ASGI answers the request meanwhile.

    The guard sees RECEIVING and SURPLUS as this.
    """
    IDLE = 6
    """A request was answered, and no other has begun since."""
    IDLE_INTERNAL = 7
    """The same as IDLE, for a connection of a node or router; only the guard uses this phase."""
    BUSY = 8
    """The whole request has arrived, and ASGI answers it."""
    DIRECT = 9
    """The whole request has arrived, and is answered by callback."""
    RECEIVING = 10
    """The body of a request arrives, for an application that answers it directly."""
    SURPLUS = 11
    """The request was answered before the end of its body; the rest is read and dropped."""
    INSIDE = 12
    """The TLS handshake is done: the protocol inside has a phase of its own."""
    CLOSED = 13


class Transition(dict[Phase, Phase]):
    """An event of a connection, with the phase that follows on each phase in which the event may happen."""

    def __init__(self, name: str, legal: dict[Phase, Phase]) -> None:
        super().__init__(legal)
        self.name = name
        self[Phase.CLOSED] = Phase.CLOSED  # work that was under way may end, and changes nothing

    def __missing__(self, phase: Phase) -> Phase:
        """Close the connection and log the bug: the event must not happen in this phase."""
        said, extra = "a connection is closed by a bug: %s in phase %s", {"action": "phase-bug"}
        log.error(said, self.name, phase.name, stack_info=True, extra=extra)
        return Phase.CLOSED


SILENT, LINGERING, UNREAD, HANDSHAKE, HEAD, BODY = list(Phase)[: Phase.IDLE]
IDLE, IDLE_INTERNAL, BUSY, DIRECT, RECEIVING, SURPLUS, INSIDE, CLOSED = list(Phase)[Phase.IDLE :]
"""The same phases by name: to look a member up in its class costs as much as a call."""

BEGIN = Transition("a request begins", {SILENT: HEAD, IDLE: HEAD})
START = Transition("its head is read, and ASGI starts", {HEAD: BODY})
TAKE = Transition("an application takes it", {HEAD: RECEIVING, SILENT: DIRECT, IDLE: DIRECT})
"""The transition from SILENT and IDLE is for a request whose head is cached, and is not parsed."""
DECLINE = Transition("the application does not answer it", {RECEIVING: HEAD, DIRECT: IDLE})
END = Transition("the request ends", {BODY: BUSY, RECEIVING: DIRECT, SURPLUS: IDLE})
ANSWER = Transition("its answer is complete", {BODY: SURPLUS, RECEIVING: SURPLUS, BUSY: IDLE, DIRECT: IDLE})
REFUSE = Transition(
    "it is refused with a problem", dict.fromkeys((SILENT, HANDSHAKE, HEAD, BODY, RECEIVING, IDLE), LINGERING)
)
GREET = Transition("a handshake goes on", {SILENT: HANDSHAKE, HANDSHAKE: HANDSHAKE})
SECURE = Transition("a handshake ends", {HANDSHAKE: INSIDE})
CLOSE = Transition("the connection is closed", dict.fromkeys(Phase, CLOSED))

AT_REST = frozenset({SILENT, IDLE})
"""The phases in which a request may begin."""
IN_BODY = frozenset({BODY, RECEIVING, SURPLUS})
IN_MESSAGE = IN_BODY | {HEAD}
ANSWERING = frozenset({DIRECT, BUSY})
"""The phases in which bytes that arrive belong to a later request, and wait."""
