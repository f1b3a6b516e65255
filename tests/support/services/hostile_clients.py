"""Clients that mean harm, for a bounded time, over loopback: `python -m tests.support.services.hostile_clients SECONDS
PORT...`.

At each port: pipelines whose answers are never read, headers without end, and connections that say nothing. A client
whose connection is closed comes back. A process of its own: what it costs is not the load's.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import suppress

PIPELINES = 9
HEADERS = 3
SILENT = 200
PIPELINE_BYTES = 12 << 20
HEADER_BYTES = 32 << 20
COMES_BACK_S = 0.5
SMALL_BUFFER_BYTES = 4096

FLOOD = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * (1 << 15)
"""1 MiB of requests."""

VALUE = b"v" * (1 << 20)


async def connected(port: int) -> socket.socket:
    peer = socket.socket()
    peer.setblocking(False)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    try:
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", port))
    except BaseException:
        peer.close()
        raise
    return peer


async def send(peer: socket.socket, block: bytes, size_bytes: int) -> None:
    """Send as much as the other side takes, in blocks."""
    for _ in range(size_bytes // len(block)):
        await asyncio.get_running_loop().sock_sendall(peer, block)


async def pipeline(peer: socket.socket) -> None:
    await send(peer, FLOOD, PIPELINE_BYTES)
    await asyncio.get_running_loop().create_future()  # and never reads


async def endless_header(peer: socket.socket) -> None:
    await asyncio.get_running_loop().sock_sendall(peer, b"GET /livez HTTP/1.1\r\nhost: x\r\nx-long: ")
    await send(peer, VALUE, HEADER_BYTES)


async def silence(peer: socket.socket) -> None:
    while await asyncio.get_running_loop().sock_recv(peer, 1):
        pass


async def again_and_again(port: int, attack: object) -> None:
    """One client."""
    assert callable(attack)
    while True:
        with suppress(OSError):
            peer = await connected(port)
            with peer:
                await attack(peer)
        await asyncio.sleep(COMES_BACK_S)


async def main(seconds: float, ports: list[int]) -> None:
    attacks = [pipeline] * PIPELINES + [endless_header] * HEADERS + [silence] * SILENT
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(again_and_again(port, attack) for port in ports for attack in attacks))


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
