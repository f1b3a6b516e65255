"""Packed answers: the same in fewer bytes, for whoever asks for it, and nobody waits for them."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import MutableMapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.http.edge import Scope
from understudy_shared.server.compression import AT_ONCE, MIN_BATCH_BYTES, MIN_BYTES, SLICE_BYTES, Packer, accepts_gzip

JSON = (b"content-type", b"application/json")
GZIP = (b"accept-encoding", b"gzip, deflate, br, zstd")
LONG = b'{"partition": 7}' * MIN_BYTES
VARY, PACKED = (b"vary", b"accept-encoding"), (b"content-encoding", b"gzip")


@pytest.mark.parametrize(
    ("accepted", "does"),
    [
        (b"gzip", True),
        (b"x-gzip", True),
        (b"deflate, gzip;q=1.0, *;q=0.5", True),
        (b"br;q=1.0 , gzip ; q=0.001", True),
        (b"*", True),
        (b"", False),
        (b"br, zstd", False),
        (b"gzip;q=0", False),
        (b"gzip;q=0.000, *", False),
        (b"gzip;q=much", False),
        (b"gzip," * 1000, False),
    ],
)
def test_only_who_says_so_gets_gzip(accepted: bytes, does: bool) -> None:
    assert accepts_gzip(accepted) == does


class Sent:
    def __init__(self) -> None:
        self.start: MutableMapping[str, Any] = {}
        self.body = b""
        self.is_ended = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            return
        assert not self.is_ended
        self.body += message.get("body", b"")
        self.is_ended = not message.get("more_body", False)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return list(self.start["headers"])


async def answered(
    pieces: Sequence[bytes],
    *headers: tuple[bytes, bytes],
    asked: Sequence[tuple[bytes, bytes]] = (GZIP,),
    method: str = "GET",
    version: str = "1.1",
    status: int = 200,
    packer: Packer | None = None,
) -> Sent:
    """What a reader gets of an answer in these pieces; its length is told when there is one piece."""
    scope: Scope = {"method": method, "http_version": version, "headers": [(b"host", b"here"), *asked]}
    sent = Sent()
    send = (packer or Packer()).packing(scope, sent)
    length = [(b"content-length", b"%d" % len(pieces[0]))] if len(pieces) == 1 else []
    await send({"type": "http.response.start", "status": status, "headers": [*(headers or [JSON]), *length]})
    for number, piece in enumerate(pieces):
        body = b"" if method == "HEAD" else piece
        await send({"type": "http.response.body", "body": body, "more_body": number < len(pieces) - 1})
    assert sent.is_ended
    return sent


@given(st.lists(st.binary(max_size=300), min_size=2, max_size=8), st.integers(1, 3))
async def test_a_packed_answer_is_the_answer_however_its_pieces_come(pieces: list[bytes], times: int) -> None:
    pieces = [piece * 400 * times for piece in pieces]
    sent = await answered(pieces)
    assert PACKED in sent.headers
    assert gzip.decompress(sent.body) == b"".join(pieces)


async def test_a_long_answer_is_packed_without_its_old_length_and_with_a_weak_tag() -> None:
    sent = await answered([LONG], JSON, (b"etag", b'"a"'))
    assert gzip.decompress(sent.body) == LONG
    assert len(sent.body) < len(LONG) / 8
    assert sent.headers == [JSON, (b"etag", b'W/"a"'), PACKED, VARY]
    known = await answered([LONG], JSON, (b"etag", b'W/"a"'))
    assert (b"etag", b'W/"a"') in known.headers
    head = await answered([LONG], JSON, (b"etag", b'"a"'), method="HEAD")
    assert (head.headers, head.body) == (sent.headers, b"")


SSE = (b"content-type", b"text/event-stream")


@pytest.mark.parametrize(
    ("case", "varies"),
    [
        ({"asked": ()}, True),
        ({"pieces": [LONG[: MIN_BYTES - 1]]}, True),
        ({"version": "1.0"}, True),
        ({"asked": [GZIP, (b"sec-fetch-site", b"cross-site")]}, True),
        ({"asked": [GZIP, (b"origin", b"https://evil.example")]}, True),
        ({"headers": [JSON, (b"content-encoding", b"br")]}, True),
        ({"headers": [SSE], "pieces": [LONG, LONG]}, False),
        ({"headers": [(b"content-type", b"application/problem+json")], "status": 404}, False),
        ({"status": 404}, False),
        ({"method": "POST", "pieces": [LONG[: MIN_BATCH_BYTES - 1]]}, True),
        ({"method": "POST", "asked": ()}, False),
    ],
)
async def test_what_is_not_to_be_packed_is_sent_as_it_is(case: dict[str, Any], *, varies: bool) -> None:
    asked = {"pieces": [LONG], "headers": [JSON], **case}
    pieces, headers = asked.pop("pieces"), asked.pop("headers")
    sent = await answered(pieces, *headers, **asked)
    assert sent.body == b"".join(pieces)
    assert PACKED not in sent.headers
    assert (VARY in sent.headers) == varies


async def test_only_a_few_slices_are_packed_in_one_turn_of_the_loop_however_many_answers_wait() -> None:
    slices, answers = 8, 5 * AT_ONCE
    body = random.Random(1).randbytes(SLICE_BYTES // 8) * 8 * slices
    packer, turns, left = Packer(), 0, answers

    async def count() -> None:
        nonlocal turns
        while left:
            turns += 1
            await asyncio.sleep(0)

    async def answer() -> None:
        nonlocal left
        sent = await answered([body], packer=packer)
        left -= 1
        assert gzip.decompress(sent.body) == body

    await asyncio.gather(count(), *(answer() for _ in range(answers)))
    assert turns >= slices * answers / AT_ONCE
