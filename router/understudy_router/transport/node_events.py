"""The events of one watch at a node: a reply without an end, read no faster than it is passed on.

Each stream has a connection of its own. What the router does not read stays with the node, which then sends the newest
value only; so no queue grows anywhere.
"""

from __future__ import annotations

from typing import Final

from understudy_shared.cluster.wire import WireConnection, WireError

MAX_EVENT_BYTES: Final = 64 * 1024 * 1024
"""Limit on one event: it holds a value, which may be as long as any."""


class NodeEvents:
    """A watch that a node has begun. `next` returns its events."""

    def __init__(self, connection: WireConnection) -> None:
        self._connection = connection
        self._body = bytearray()
        self._searched = 0
        self._is_complete = False

    async def next(self) -> bytes | None:
        """Return the next event, without its empty line; None at the end. It may be cancelled and called again. Raises
        OSError for a connection that breaks, ValueError for what no node sends.
        """
        while True:
            event = self.buffered()
            if event is not None:
                return event
            if self._searched > MAX_EVENT_BYTES:
                raise ValueError(f"an event has more than {MAX_EVENT_BYTES} bytes")
            if self._is_complete:
                return None
            part = await self._connection.read()
            self._body += part
            self._is_complete = not part

    def buffered(self) -> bytes | None:
        """Return the next event, if all of it was read."""
        body = self._body
        end = body.find(b"\n\n", max(0, self._searched - 1))
        if end < 0:
            self._searched = len(body)
            return None
        event = bytes(body[:end])
        del body[: end + 2]
        self._searched = 0
        return event

    def close(self) -> None:
        """Close the connection."""
        self._connection.give_up(WireError.RESET, "the watch has ended")
