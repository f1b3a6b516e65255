"""Compression of long answers with gzip, for clients that accept it. Single lookups, event streams and problems are
sent as they are.

Rule: compression never holds the event loop. It works slice by slice and yields to the loop in between, and only a few
answers are compressed at a time. Level 1 compresses 180 MB of JSON a second to an eighth; the highest level takes ten
times as long.

An attacker who can have chosen text compressed together with a secret, and sees the length of the result, can guess the
secret (BREACH). So three kinds of answers are never compressed: those that a page of another site makes a browser
request, problems, which repeat parts of the request, and sign-ins, which do not pass here.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, MutableMapping
from typing import Any

from understudy_shared.http.edge import Scope, Send
from understudy_shared.http.origins import why_foreign
from understudy_shared.settings import Compression

MIN_BYTES = 16 * 1024
"""Least size of a compressed answer, in bytes: a shorter one is a few packets on the wire."""

MIN_BATCH_BYTES = 64 * 1024
"""The same for the answer to a batch. Programs nearby send many batches, and Python's clients accept gzip without need.
"""

SLICE_BYTES = 64 * 1024
"""Bytes compressed at a time, in about a third of a millisecond."""

AT_ONCE = 4
"""Number of answers of which a slice is compressed in one turn of the loop."""

LEVEL = 1
_GZIP_WINDOW = zlib.MAX_WBITS + 16
_MAX_ACCEPTED_BYTES = 512
"""Length of the longest `Accept-Encoding` that is read; those of browsers have 40 bytes."""

_TYPES = frozenset(
    (
        *(b"application/json", b"image/svg+xml"),
        *(b"text/css", b"text/csv", b"text/html", b"text/javascript", b"text/plain"),
    )
)
_VARY = (b"vary", b"accept-encoding")
VARIES = (_VARY,)
"""The headers of an answer that another client may get compressed."""

Message = MutableMapping[str, Any]


def accepts_gzip(accept_encoding: bytes) -> bool:
    """Whether a client accepts gzip, by its `Accept-Encoding` (RFC 9110, 12.5.3)."""
    if len(accept_encoding) > _MAX_ACCEPTED_BYTES:
        return False
    weights: dict[bytes, bool] = {}
    for part in accept_encoding.lower().split(b","):
        coding, *parameters = (each.strip() for each in part.split(b";"))
        weights[coding] = _is_above_0(parameters)
    return weights.get(b"gzip", weights.get(b"x-gzip", weights.get(b"*", False)))


def _is_above_0(parameters: Iterable[bytes]) -> bool:
    for each in parameters:
        name, _, value = each.partition(b"=")
        if name.strip() == b"q":
            digits = value.strip().replace(b".", b"", 1)
            return digits.isdigit() and bool(digits.strip(b"0"))
    return True


class Packer:
    """The compressor of the long answers of a service. With `Compression.NONE` it compresses nothing."""

    def __init__(self, compression: Compression = Compression.GZIP) -> None:
        self._is_on = compression is Compression.GZIP
        self._slots = asyncio.Semaphore(AT_ONCE)

    def packing(self, scope: Scope, send: Send) -> Send:
        """Return the function that sends the answer to a request.

        It is `send` itself, unless this answer may be compressed, or the same answer may be compressed for another
        client.
        """
        if not self._is_on:
            return send
        is_batch = scope["method"] == "POST"
        may_pack = scope["http_version"] == "1.1" and may_compress(scope["headers"])
        if is_batch and not may_pack:
            return send
        least = MIN_BATCH_BYTES if is_batch else MIN_BYTES
        return _Answer(send, self._slots, least if may_pack else None, is_head=scope["method"] == "HEAD").send


def may_compress(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a long answer to a request with these headers may be compressed."""
    named = {name: value for name, value in headers if name in _ASKED}
    if not accepts_gzip(named.get(b"accept-encoding", b"")):
        return False
    return why_foreign({name.decode(): value.decode("latin-1") for name, value in named.items()}) is None


_ASKED = frozenset((b"accept-encoding", b"host", b"origin", b"sec-fetch-site"))


class _Answer:
    """One answer on its way to the client. It is compressed if it has `least_bytes` or more; with None it never is."""

    def __init__(self, send: Send, slots: asyncio.Semaphore, least_bytes: int | None, *, is_head: bool) -> None:
        self._send = send
        self._slots = slots
        self._least_bytes = least_bytes
        self._is_head = is_head
        self._packed: Any = None
        """The compressor, once it is clear that the answer is compressed."""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._send(self._begun(message))
        elif self._packed is None or self._is_head:
            await self._send(message)
        else:
            await self._pack(message.get("body", b""), is_last=not message.get("more_body", False))

    def _begun(self, message: Message) -> Message:
        """Return the start of the answer. Its `Vary` header tells caches that the encoding differs by client."""
        headers: list[tuple[bytes, bytes]] = list(message["headers"])
        named = dict(headers)
        is_known = message["status"] == 304 and b"etag" in named
        if message["status"] != 200 or named.get(b"content-type", b"").partition(b";")[0] not in _TYPES:
            return {**message, "headers": [*headers, _VARY]} if is_known else message
        least = self._least_bytes
        if least is None or b"content-encoding" in named or int(named.get(b"content-length", least)) < least:
            return {**message, "headers": [*headers, _VARY]}
        self._packed = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        kept = [
            (name, _weak(value) if name == b"etag" else value) for name, value in headers if name != b"content-length"
        ]
        return {**message, "headers": [*kept, (b"content-encoding", b"gzip"), _VARY]}

    async def _pack(self, body: bytes, *, is_last: bool) -> None:
        """Send the compressed bytes of a piece, a slice at a time."""
        for at in range(0, len(body), SLICE_BYTES):
            async with self._slots:
                made = self._packed.compress(body[at : at + SLICE_BYTES])
                await asyncio.sleep(0)
            if made:
                await self._send({"type": "http.response.body", "body": made, "more_body": True})
        if is_last:
            await self._send({"type": "http.response.body", "body": self._packed.flush()})


def _weak(tag: bytes) -> bytes:
    """Return the weak entity tag of a compressed answer: equal in content, but not in bytes."""
    return tag if tag.startswith(b"W/") else b"W/" + tag
