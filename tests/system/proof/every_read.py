"""Every kind of read of a service, as a request about keys that it has, and whether many of it are answered at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

import orjson
from tests.system.proof.http_talk import HOST, within
from tests.system.proof.snapshot_reads import TTL_S

AT_ONCE: Final[Mapping[str, int]] = {
    "lookup": 64,
    "batch": 16,
    "history": 4,
    "read": 16,
    "lease": 16,
    "scan": 4,
    "export": 2,
    "changes": 2,
    "watch": 64,
    "watch of a prefix": 64,
}
"""Each kind, and how many of it are asked at once: all that a service answers at its defaults, where that is few."""

KEYS: Final = 20
READ_BYTES: Final = 1 << 16
WAIT_MS: Final = 2_000
LIMIT_S: Final = 30.0
PAUSE_S: Final = 0.5
WATCHED: Final = "value"
"""The kind of the stores that are asked: watches of the others tell the same."""

END_OF_HEAD: Final = b"\r\n\r\n"
STREAMS: Final = frozenset({"watch", "watch of a prefix"})
HAS_END: Final = frozenset({"export", "changes"})


async def every_read(port: int, application: str) -> dict[str, bytes]:
    """Return a request for each kind of read, about keys that a service has. Raises LookupError without keys."""
    stores = (await _document(port, within(application, "/v1/stores")))["stores"]
    for store in sorted(each["store"] for each in stores if each["kind"] == WATCHED):
        page = await _document(port, within(application, f"/v1/stores/{store}/scan?limit={KEYS}&wait_ms={WAIT_MS}"))
        keys = [[*row["key"].values()] for row in page["rows"]]
        if keys:
            return _requests(application, store, keys, page["version"])
    raise LookupError(f"no store of kind {WATCHED!r} has a key")


def _requests(application: str, store: str, keys: Sequence[list[Any]], version: int) -> dict[str, bytes]:
    key, of = quote(json.dumps(keys[0]), safe=""), f"/v1/stores/{store}"
    waiting = f"wait_ms={WAIT_MS}"
    asked: dict[str, tuple[str, object]] = {
        "lookup": (f"{of}/lookup?key={key}", None),
        "batch": (f"{of}/lookup", {"keys": keys}),
        "history": (f"{of}/history?key={key}&from={version}&to={version}", None),
        "read": ("/v1/read", {"reads": [{"store": store, "keys": keys[:1]}], "wait_ms": WAIT_MS}),
        "lease": ("/v1/snapshots", {"ttl_s": TTL_S, "wait_ms": WAIT_MS}),
        "scan": (f"{of}/scan?limit=1000&{waiting}", None),
        "export": (f"{of}/export?{waiting}", None),
        "changes": (f"{of}/changes?from={version}&to={version}", None),
        "watch": (f"{of}/watch", {"keys": keys}),
        "watch of a prefix": (f"{of}/watch", {"prefix": keys[0][:1]}),
    }
    assert asked.keys() == AT_ONCE.keys()
    return {kind: _request(within(application, target), body) for kind, (target, body) in asked.items()}


def _request(target: str, body: object) -> bytes:
    lines = "host: proof\r\nconnection: close\r\n"
    if body is None:
        return f"GET {target} HTTP/1.1\r\n{lines}\r\n".encode()
    content = orjson.dumps(body)
    lines += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
    return f"POST {target} HTTP/1.1\r\n{lines}\r\n".encode() + content


async def _document(port: int, target: str) -> Any:
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(_request(target, None))
            head, _, body = (await reader.read(-1)).partition(END_OF_HEAD)
        finally:
            writer.transport.abort()
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise LookupError(f"{target}: {head[:20]!r} {body[:200]!r}")
    return orjson.loads(body)


async def at_once(port: int, kind: str, request: bytes, number: int, until_s: float) -> list[str]:
    """Send a request so many times at once. Return what each answer lacks, where one lacks anything. Streams stay open
    until all of them have begun, and one that did not begin is sent again until then: many that begin take their time.
    """
    begun = asyncio.Barrier(number)
    every = await asyncio.gather(*(_lacks(port, kind, request, begun, until_s) for _ in range(number)))
    return [lacks for lacks in every if lacks]


async def _lacks(port: int, kind: str, request: bytes, begun: asyncio.Barrier, until_s: float) -> str:
    while True:
        received, writer = b"", None
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(min(LIMIT_S, max(PAUSE_S, until_s - time.monotonic()))):
                reader, writer = await asyncio.open_connection(HOST, port)
                writer.write(request)
                while not is_whole(kind, received) and (piece := await reader.read(READ_BYTES)):
                    received += piece
        lacks = "" if is_whole(kind, received) else f"{len(received)} bytes of an answer: {received[:300]!r}"
        if not lacks and kind in STREAMS:
            with suppress(TimeoutError, asyncio.BrokenBarrierError):
                async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
                    await begun.wait()
        if writer is not None:
            writer.transport.abort()
        if not lacks or kind not in STREAMS or time.monotonic() > until_s:
            return lacks
        await asyncio.sleep(PAUSE_S)


def is_whole(kind: str, received: bytes) -> bool:
    """Whether what was received of an answer is all that it takes: of a stream the first event, of others the end, and
    of each key whether it is there.
    """
    head, end, body = received.partition(END_OF_HEAD)
    if not end or not head.split(b"\r\n", 1)[0].split(b" ")[1].startswith(b"2"):
        return False
    if kind in STREAMS:
        return b"event: snapshot\n" in body or b"event: version\n" in body  # the latter where no key is there any more
    if kind in HAS_END:
        return b'{"end":' in body
    length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:")
    return len(body) >= length and all("found" in result for result in _results(kind, body))


def _results(kind: str, body: bytes) -> Iterator[Mapping[str, object]]:
    """Yield the result of each key: in a batch one may have a problem by itself."""
    if kind in {"batch", "read"}:
        document = orjson.loads(body)
        for read in document["reads"] if kind == "read" else [document]:
            yield from read["results"]
