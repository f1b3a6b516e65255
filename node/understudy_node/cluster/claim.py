"""Claims a node id before the node serves: heartbeats of two processes with one id would replace each other."""

from __future__ import annotations

import asyncio

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS, Gossip
from understudy_shared.bus.messages import Heartbeat


class IdentityError(UnderstudyError):
    """Another process of the cluster uses this node's id."""


async def claim(gossip: Gossip, first: Heartbeat) -> None:
    """Take the node id for this incarnation. Raises IdentityError when another process keeps using it.

    The entry of a process that died expires by itself.
    """
    for _ in range(EXPIRY_HEARTBEATS + 2):
        if await gossip.beat(first):
            return
        await asyncio.sleep(first.heartbeat_ms / 1000)
    raise IdentityError(
        f"another process of the cluster uses node id {first.node_id}",
        where=f"application {first.application_id}",
        fix="Give each node an id of its own with --node-id, or stop the other process",
    )
