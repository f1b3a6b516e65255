"""An answer of many pieces: whole when it is short, sent while it is made when it is long, and never at one stretch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from starlette.responses import StreamingResponse

from understudy_shared.base import background
from understudy_shared.server import app
from understudy_shared.server.app import streamed_json_response

PIECE = b"0123456789"


@pytest.fixture(autouse=True)
def each_piece_is_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "SLICE_S", 0)


class Pieces:
    """Pieces of an answer. `made` counts those that were asked for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.made = 0

    def __iter__(self) -> Iterator[bytes]:
        for _ in range(self.count):
            self.made += 1
            yield PIECE
            yield b""


async def body_of(response: StreamingResponse) -> bytes:
    sent = [bytes(each) async for each in response.body_iterator]  # type: ignore[arg-type]  # these are bytes
    assert all(sent), "an empty piece is not sent"
    return b"".join(sent)


async def test_a_short_answer_has_its_length_and_a_long_one_is_made_while_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "LONG_BYTES", 5 * len(PIECE))
    short = await streamed_json_response(iter(Pieces(5)))
    assert (short.body, short.headers["content-length"]) == (5 * PIECE + b"\n", "51")
    pieces = Pieces(100)
    long = await streamed_json_response(iter(pieces))
    assert isinstance(long, StreamingResponse)
    assert (pieces.made, long.headers.get("content-length")) == (6, None)
    assert await body_of(long) == 100 * PIECE + b"\n"
    assert {each.headers["content-type"] for each in (short, long)} == {"application/json"}


@pytest.mark.parametrize("count", [20, 200])
async def test_others_have_the_loop_between_two_pieces(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "LONG_BYTES", 100 * len(PIECE))
    turns, is_done = 0, False

    async def answer() -> None:
        nonlocal is_done
        response = await streamed_json_response(iter(Pieces(count)))
        if isinstance(response, StreamingResponse):
            await body_of(response)
        is_done = True

    async def other() -> None:
        nonlocal turns
        while not is_done:
            turns += 1
            await asyncio.sleep(0)

    await asyncio.gather(answer(), other())
    assert turns >= 2 * count - 2
