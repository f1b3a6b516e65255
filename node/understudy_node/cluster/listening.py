"""Passes what a node hears of its cluster to the part that needs it (see `understudy_shared.cluster.follower`)."""

from __future__ import annotations

from collections.abc import Callable

from understudy_node.cluster.context import MemberContext
from understudy_node.cluster.following import AssignmentFollower
from understudy_node.cluster.own_messages import OwnMessages
from understudy_node.cluster.remembering import Remembering
from understudy_shared.bus.announcement import Announcement
from understudy_shared.bus.gossip import AgedHeartbeat, Spoken
from understudy_shared.bus.messages import Assignment, CommitHint, Farewell, Heartbeat


class NodeListener:
    """The `ClusterDelegate` of one node. `bus_came_back` is called after all keys were read."""

    def __init__(
        self,
        context: MemberContext,
        *,
        follower: AssignmentFollower,
        remembering: Remembering,
        own: OwnMessages,
        bus_came_back: Callable[[], None],
    ) -> None:
        self.ask_others = remembering.ask_others
        self._context = context
        self._follower = follower
        self._remembering = remembering
        self._own = own
        self._bus_came_back = bus_came_back

    def hear(self, heard: Spoken) -> None:
        """Take in a message of the bus."""
        context = self._context
        match heard:
            case Heartbeat():
                if self._own.refute(heard):
                    context.changed.set()
                context.heard(heard)
            case Farewell():
                context.neighbours.left(heard, context.clock.monotonic_ms())
                context.changed.set()
            case Assignment():
                self._follower.follow(heard)
            case CommitHint():
                context.node.wake()
            case Announcement():
                context.node.announce(heard)

    def take_nodes(self, seen: list[AgedHeartbeat]) -> None:
        """Start again from the nodes whose keys are on the bus."""
        self._context.neighbours.read(seen, now_ms=self._context.clock.monotonic_ms())

    async def take_keys(self, seen: list[AgedHeartbeat], assignment: Assignment | None) -> None:
        """Take in the assignment and the announcement. Raises BusError."""
        context = self._context
        announcement = await context.gossip.announcement()
        self._bus_came_back()
        self._own.bus_came_back()
        context.bus_state.subscribed(None)
        # The remembered assignment comes first: it shows whether the one on the bus is forged.
        await self._remembering.bus_is_there(assignment)
        if assignment is not None:
            self._follower.follow(assignment)
        if announcement is not None:
            context.gossip.handle(announcement, self.hear)
        context.changed.set()

    def bus_lost(self, why: str) -> None:
        """Note that messages do not arrive."""
        self._context.bus_state.subscribed(why)
