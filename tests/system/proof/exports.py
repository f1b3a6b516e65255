"""Exports as the proof's readers make them: one stream, and another one behind its last cursor where it was cut."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple

import orjson
from tests.system.proof.history import Scan, Value
from tests.system.proof.http_talk import HOST
from tests.system.proof.question import key_text, said_by
from tests.system.proof.scanning import Scanning

READ_BYTES = 1 << 16


class Stream(NamedTuple):
    """What came of an export: its status, 0 without one, and its body as far as it came."""

    status: int
    body: bytes


async def stream_of(port: int, request: bytes) -> Stream:
    """Send a request and read until the server closes. A connection that is refused or breaks ends the body."""
    received = bytearray()
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(request)
            while piece := await reader.read(READ_BYTES):
                received += piece
        finally:
            writer.transport.abort()
    head, _, rest = bytes(received).partition(b"\r\n\r\n")
    if not head:
        return Stream(0, b"")
    status = int(head.split(b" ", 2)[1])
    return Stream(status, _joined(rest) if b"chunked" in head.lower() else rest)


def _joined(chunked: bytes) -> bytes:
    """Return what the whole chunks of a body have in them."""
    found: list[bytes] = []
    at = 0
    while True:
        size, _, _ = chunked[at:].partition(b"\r\n")
        end = at + len(size) + 2 + (length := int(size or b"0", 16))
        if not length or len(chunked) < end + 2:
            return b"".join(found)
        found.append(chunked[end - length : end])
        at = end + 2


class Exporting:
    """An export that is being made. `scanning` keeps its rows, in place of pages the streams that it took."""

    def __init__(self, scanning: Scanning) -> None:
        self._scanning = scanning
        self._behind_cursor: list[tuple[str, Value]] = []

    def request(self) -> bytes:
        """Return the request for all rows, or for those behind the last cursor that came."""
        return self._scanning.question.request(self._scanning.cursor, "export")

    def took(self, ended_ms: float, stream: Stream) -> Scan | None:
        """Add what came; return the record of the export when it has ended with it. Without an end, it goes on behind
        its last cursor.
        """
        scanning = self._scanning
        if scanning.asks_again(stream.status):
            return None
        if stream.status not in (0, 200):
            return scanning.refused(ended_ms, orjson.loads(stream.body))
        scanning.pages += 1
        self._behind_cursor.clear()
        for line in stream.body.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            record = orjson.loads(line)
            if "row" in record:
                self._behind_cursor.append((key_text(*record["row"]["key"].values()), said_by(record["row"])))
            elif "export" in record:
                scanning.versions.add(record["export"]["version"])
            elif "cursor" in record:
                scanning.cursor = record["cursor"]
                self._confirm()
            elif "end" in record:
                self._confirm()
                return self._ended(ended_ms, record["end"])
        return None

    def _confirm(self) -> None:
        self._scanning.rows += self._behind_cursor
        self._behind_cursor.clear()

    def _ended(self, ended_ms: float, end: dict[str, int]) -> Scan:
        scanning = self._scanning
        if end["rows"] != len(scanning.rows) and scanning.pages == 1:
            return scanning.ended(ended_ms, "failed", detail=f"{len(scanning.rows)} rows came, its end says {end}")
        return scanning.ended(ended_ms, "whole")
