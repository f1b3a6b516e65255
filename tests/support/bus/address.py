"""An address that stays while its server changes: HAProxy, a virtual IP, a managed primary endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.bus.redis_server import RedisServer


class Address:
    """Leads new connections to `server`; those that are open stay where they are."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.url = ""
        self.open: set[asyncio.Task[None]] = set()
        """The connections that are open."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on, both ways, until one side ends."""
        task = asyncio.current_task()
        assert task is not None
        self.open.add(task)
        ways: list[asyncio.Task[None]] = []
        try:
            there, to_server = await asyncio.open_connection("127.0.0.1", self.server.port)
            ways = [asyncio.ensure_future(_pass(reader, to_server)), asyncio.ensure_future(_pass(there, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for way in ways:
                way.cancel()
            writer.close()
            self.open.discard(task)


@asynccontextmanager
async def address_of(server: RedisServer) -> AsyncIterator[Address]:
    """An address that leads to this server at first."""
    made = Address(server)
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}/0"
    try:
        yield made
    finally:
        listening.close()
        ending = set(made.open)
        for each in ending:
            each.cancel()
        if ending:
            await asyncio.wait(ending)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
