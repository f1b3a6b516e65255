"""The head of a response by ASGI goes out with its first bytes.

uvicorn writes them apart, and a transport sends each write at once: two system calls, and a reader that wakes up twice.
"""

from __future__ import annotations

import asyncio


class JoinedHead:
    """The transport of one response, as its cycle uses it: the first write is the head, and waits for the next one.

    It waits for one turn of the loop at most. The protocol has to `flush` it when the response ends, before it writes
    anything else: a response to HEAD has no other write.
    """

    __slots__ = ("_begun", "_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._begun, self._head = False, b""

    def write(self, data: bytes) -> None:
        """Write bytes, or hold the first ones."""
        head, self._head = self._head, b""
        if head:
            self._transport.writelines((head, data))
        elif self._begun:
            self._transport.write(data)
        else:
            self._begun, self._head = True, data
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what is held, unless the connection was lost."""
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)

    def close(self) -> None:
        """Write what is held, and close the connection behind it."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()
