"""A transport whose other end is the test: it keeps what a protocol writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from understudy_shared.server.answers import Answers
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.protocol import HttpProtocol


class Wire(asyncio.Transport):
    """Keeps what is written, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = False
        self.reads = True

    @property
    def data(self) -> bytes:
        return b"".join(self.writes)

    @property
    def bodies(self) -> list[bytes]:
        """The body of each response, whose length its head says."""
        found, rest = [], self.data
        while rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            found.append(rest[:size])
            rest = rest[size:]
        return found

    def write(self, data: Any) -> None:
        assert not self.is_closed, "nothing is written after the end"
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_reading(self) -> bool:
        return self.reads

    def can_write_eof(self) -> bool:
        return False


class NoParser:
    """Stands where a parser would be asked."""

    def feed_data(self, data: bytes) -> None:
        raise AssertionError(f"{data!r} is parsed")


def connected(app: Any, answers: Answers, wires: Iterable[Wire]) -> list[HttpProtocol]:
    """Connections of one service, each over its wire."""
    config = Config(app, lifespan="off", log_config=None, access_log=False)
    config.load()
    guard, made = ConnectionGuard(), list[HttpProtocol]()
    for wire in wires:
        made.append(HttpProtocol(config, ServerState(), {}, guard=guard, answers=answers))
        made[-1].connection_made(wire)
    return made
