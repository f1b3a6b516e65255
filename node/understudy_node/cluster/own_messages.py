"""The messages of this node about itself: its heartbeat and its catalogue.

It decides what to send if the full message does not validate: the least heartbeat, which shows that the node lives,
and no catalogue. `unsaid` then says why, and the next turn tries again with the state of that time.
"""

from __future__ import annotations

from pydantic import ValidationError

from understudy_node.cluster.catalogue import CatalogueWriter
from understudy_node.cluster.context import MemberContext
from understudy_node.cluster.heartbeat import MemberStatus, heartbeat_of, least_heartbeat
from understudy_node.cluster.load import LoadMeter
from understudy_node.degraded import OWN_MESSAGE
from understudy_shared.base.plausible import Succession, succession
from understudy_shared.bus.messages import Catalogue, Farewell, Heartbeat


class OwnMessages:
    """The messages of one node, with their sequence numbers."""

    def __init__(self, context: MemberContext, *, zone: str, load: LoadMeter) -> None:
        self.unsaid: str | None = None
        """The reason why a message of this node cannot be sent, None if all can."""
        self._node = context.node
        self._gossip = context.gossip
        self._member_id = context.member_id
        self._zone = zone or None
        self._load = load
        self._heartbeat_ms = context.heartbeat_ms
        self._clock = context.clock
        self._sequence = 0
        self._catalogue = CatalogueWriter(context.node, context.gossip)

    def causes(self) -> dict[str, str]:
        """Return why the node is degraded by its own messages, by cause."""
        return {} if self.unsaid is None else {OWN_MESSAGE: self.unsaid}

    def heartbeat(self, status: MemberStatus) -> Heartbeat:
        """Return the next heartbeat, of the present state; the least heartbeat if it does not validate."""
        self._sequence += 1
        try:
            catalogue, now_ms = self.catalogue(), self._clock.monotonic_ms()
            return heartbeat_of(
                self._node,
                self._member_id,
                status,
                sequence=self._sequence,
                zone=self._zone,
                heartbeat_ms=self._heartbeat_ms,
                catalogue=None if catalogue is None else catalogue[0],
                load=self._load.read(now_ms),
                now_ms=now_ms,
            )
        except ValidationError as error:
            self.cannot_say("heartbeat", error)
            return least_heartbeat(
                self._node,
                self._member_id,
                status.state,
                sequence=self._sequence,
                heartbeat_ms=self._heartbeat_ms,
            )

    def farewell(self) -> Farewell:
        """Return the last message of this process."""
        node_id, incarnation = self._member_id
        return Farewell(application_id=self._gossip.application_id, node_id=node_id, incarnation=incarnation)

    def catalogue(self) -> tuple[str, Catalogue] | None:
        """Return the digest and the catalogue of the served generation; None before there is one."""
        return self._catalogue.now()

    async def write_catalogue(self, now_ms: float) -> None:
        """Write the catalogue to the bus when it is due. Raises BusError."""
        try:
            await self._catalogue.tell(now_ms)
        except ValidationError as error:
            self.cannot_say("catalogue", error)

    def bus_came_back(self) -> None:
        """Have the catalogue written again: the bus may have lost it."""
        self._catalogue.bus_came_back()

    def cannot_say(self, kind: str, error: ValidationError) -> None:
        """Note and count a message of this node that does not validate: no other process would accept it."""
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or kind
        self.unsaid = f"this node cannot send its {kind}: {place} is wrong: {first['msg']}"
        self._gossip.refuse(f"own-{kind}", self.unsaid)

    def refute(self, heard: Heartbeat) -> bool:
        """Skip past the number of a heartbeat in this process' name that this process has not sent.

        Return True if it was one.
        """
        is_own = (heard.node_id, heard.incarnation) == self._member_id
        if not is_own or heard.sequence <= self._sequence:
            return False
        self._gossip.refuse("heartbeat", f"a heartbeat in this node's own name, numbered {heard.sequence}")
        found = succession(heard.sequence, self._sequence, later_ms=0, heartbeat_ms=self._heartbeat_ms)
        if found is Succession.NEWER:
            self._sequence = heard.sequence
        return True
