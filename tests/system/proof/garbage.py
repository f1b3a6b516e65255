"""What no Redis says: the header of a reply that is longer than any, and a stream behind it.

A parser that allocates what is announced, or that waits for all of it, is stopped by a few bytes or filled.
"""

from __future__ import annotations

import asyncio
from itertools import cycle, repeat

HEADERS = cycle((b"*2147483647\r\n", b"$999999999\r\n"))
"""Each connection hears another one than the one before."""

PIECE = b"x" * (1 << 20)
PIECES = 128
"""Twice what the claim about memory allows, and no more: it is a test's machine, too."""

LOOK_EVERY_S = 0.01


async def flood(to: asyncio.WriteTransport) -> None:
    """Send a header and a stream, as fast as they are taken, until the connection closes."""
    pieces = [next(HEADERS), *repeat(PIECE, PIECES)]
    for piece in pieces:
        if to.is_closing():  # a client that refuses what it heard closes at once
            return
        to.write(piece)
        while to.get_write_buffer_size() and not to.is_closing():  # noqa: ASYNC110  # a transport has no event for it
            await asyncio.sleep(LOOK_EVERY_S)
