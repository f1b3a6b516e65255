"""Receives messages of the bus, reads its keys, and passes each message to the part that needs it.

It decides when the keys must be read again: after a lost subscription, after a call that failed, and after a pause
of this process. Until then silence proves nothing, and this node assigns nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from understudy_node.cluster.context import MemberContext
from understudy_node.cluster.following import AssignmentFollower
from understudy_node.cluster.own_messages import OwnMessages
from understudy_shared.bus.base import Back, BusError, Lost
from understudy_shared.bus.gossip import BACK_SPREAD_HEARTBEATS, Spoken
from understudy_shared.bus.messages import Announcement, Assignment, CommitHint, Farewell, Heartbeat


class BusListener:
    """The listening side of one node."""

    def __init__(
        self,
        context: MemberContext,
        *,
        follower: AssignmentFollower,
        own: OwnMessages,
        bus_came_back: Callable[[], None],
    ) -> None:
        """Set the parts that messages go to. `bus_came_back` is called after all keys were read."""
        self._node = context.node
        self._gossip = context.gossip
        self._neighbours = context.neighbours
        self._follower = follower
        self._own = own
        self._bus_state = context.bus_state
        self._heartbeat_ms = context.heartbeat_ms
        self._clock = context.clock
        self._bus_came_back = bus_came_back
        self._changed = context.changed
        self._random = random.Random()  # noqa: S311  # jitter
        self._subscribed = False
        self._must_read = True
        self._reading = asyncio.Lock()
        self._was_away = False

    @property
    def is_current(self) -> bool:
        """Whether the subscription is active and all keys were read since; otherwise live nodes may seem missing."""
        return self._subscribed and not self._must_read and not self._reading.locked()

    def require_reading(self) -> None:
        """Have the keys read before the next judgement, because the view may be old or forged."""
        self._must_read = True

    def bus_failed(self) -> None:
        """Note that a call to the bus failed: while the bus did not answer, this node heard no other."""
        self._must_read = self._was_away = True

    async def read_if_required(self) -> None:
        """Read all keys if that is required and the subscription is active, unless a reading is under way."""
        if self._must_read and self._subscribed and not self._reading.locked():
            await self._read_all()

    async def run(self) -> None:
        """Listen until cancelled."""
        async for heard in self._gossip.listen():
            match heard:
                case Lost():
                    self._subscribed = False  # calls may succeed before messages arrive again
                    self._was_away = True
                    self._bus_state.subscribed(heard.why)
                case Back():
                    if self._was_away:
                        spread_ms = BACK_SPREAD_HEARTBEATS * self._heartbeat_ms
                        await asyncio.sleep(self._random.uniform(0, spread_ms) / 1000)
                    self._subscribed = self._must_read = True
                    await self._read_all()
                case _:
                    self._gossip.handle(heard, self._hear)

    def _hear(self, heard: Spoken) -> None:
        match heard:
            case Heartbeat():
                if self._own.refute(heard):
                    self._changed.set()
                self._neighbours.heard(heard, age_ms=0, now_ms=self._clock.monotonic_ms())
            case Farewell():
                self._neighbours.left(heard, self._clock.monotonic_ms())
                self._changed.set()
            case Assignment():
                self._follower.follow(heard)
            case CommitHint():
                self._node.wake()
            case Announcement():
                self._node.announce(heard)

    async def _read_all(self) -> None:
        """Read all keys. With an active subscription no later message is missed."""
        async with self._reading:
            await self._read_keys()

    async def _read_keys(self) -> None:
        try:
            seen = await self._gossip.nodes(known=self._neighbours.holders)
            self._neighbours.read(seen, now_ms=self._clock.monotonic_ms())
            assignment, announcement = await self._gossip.assignment(), await self._gossip.announcement()
        except BusError as error:
            self._must_read = True  # read again at the next heartbeat
            self._bus_state.subscribed(str(error))
            return
        self._must_read = self._was_away = False
        self._bus_came_back()
        self._own.bus_came_back()
        self._bus_state.subscribed(None)
        # The remembered assignment comes first: it shows whether the one on the bus is forged.
        await self._follower.remembering.bus_is_there(assignment)
        if assignment is not None:
            self._follower.follow(assignment)
        if announcement is not None:
            self._gossip.handle(announcement, self._hear)
        self._changed.set()
