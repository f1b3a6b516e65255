"""Polls silent members before they count as dead, because the bus or the network may cause the silence.

Only the node with the lease polls, and only the nodes of its assignment: no other node moves tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from understudy_node.cluster.context import MemberContext
from understudy_shared.bus.messages import Assignment
from understudy_shared.cluster.asking import SilentNodes
from understudy_shared.cluster.polling import Polls

MAX_POLLED = 32
"""Most nodes polled at the same time, each on its own connection; the rest follow after the next search."""


async def poll_silent_members(
    context: MemberContext, *, assigns: Callable[[], bool], take: Callable[[Assignment], None]
) -> None:
    """Poll silent members while this node `assigns`, until cancelled. `take` receives a later assignment."""
    polls = Polls(context.calls, context.neighbours, heard=context.heard, assigned=take, at_once=MAX_POLLED)
    silent = SilentNodes(
        context.neighbours,
        polls.poll,
        most=MAX_POLLED,
        # The holder of a lease in Redis is not cut off itself, so one hung peer of two counts as dead, too.
        others_heard=lambda node_id, since_ms: True,
        clock=context.clock,
        but=context.node_id,
    )
    while True:
        await asyncio.sleep(context.heartbeat_ms / 4 / 1000)
        polls_now = assigns() and context.neighbours.assignment is not None
        if polls_now and await silent.ask_due(context.heartbeat_ms):
            context.changed.set()
