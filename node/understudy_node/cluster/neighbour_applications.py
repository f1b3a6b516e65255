"""Logs once which other applications are on the bus, if a node is the only one of its own.

That is normal for the first node of a query, and what a node with a mistyped `application_id` looks like.
"""

from __future__ import annotations

import asyncio
import logging

from understudy_shared.base.suggest import did_you_mean
from understudy_shared.bus.applications import Applications, named
from understudy_shared.bus.base import BusError
from understudy_shared.bus.gossip import Gossip

log = logging.getLogger(__name__)

RETRY_S = 5.0


async def log_other_applications(gossip: Gossip, *, where: str) -> None:
    """Look once the bus is available; then wait for the end of the process. `where` names the bus."""
    while True:
        try:
            text = alone_text(gossip.application_id, await gossip.applications(), where=where)
            break
        except BusError:  # the member logs that the bus is away
            await asyncio.sleep(RETRY_S)
    if text is not None:
        log.info("%s", text, extra={"action": "other-applications"})
    await asyncio.Event().wait()


def alone_text(application_id: str, found: Applications, *, where: str) -> str | None:
    """Return the log text for a node that is the only one of its application, if there are others; else None (pure)."""
    others = [*found.others(application_id), *found.without_nodes(application_id)]
    if not others or found.nodes.get(application_id, 0) > 1:
        return None
    return (
        f"this is the only node of application {application_id!r} on {where}; others there: {named(others)}. "
        f"{did_you_mean(application_id, others)}"
    ).rstrip()
