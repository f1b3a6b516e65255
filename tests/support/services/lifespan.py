"""The start and end of an application that has nothing to start."""

from __future__ import annotations

from understudy_shared.http.edge import Receive, Send


async def lifespan(receive: Receive, send: Send) -> None:
    """What an application without anything to start answers to its server."""
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})
