"""The head of a response is sent with its first bytes, and never later than the next turn of the loop."""

from __future__ import annotations

import asyncio
from typing import Any

from understudy_shared.server.joined_head import JoinedHead


class Wire(asyncio.Transport):
    """Keeps what is written, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = self.is_lost = False

    def write(self, data: Any) -> None:
        assert not self.is_closing(), "nothing is written behind the end"
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed or self.is_lost

    def close(self) -> None:
        self.is_closed = True


def joined() -> tuple[Wire, JoinedHead]:
    wire = Wire()
    return wire, JoinedHead(wire, asyncio.get_running_loop())


async def test_head_and_body_are_one_write_and_what_follows_is_written_as_it_comes() -> None:
    wire, response = joined()
    for piece in (b"head", b"body", b"more"):
        response.write(piece)
    assert wire.writes == [b"headbody", b"more"]
    await asyncio.sleep(0)
    assert wire.writes == [b"headbody", b"more"]


async def test_a_head_whose_body_is_still_to_come_is_sent_in_the_next_turn() -> None:
    wire, response = joined()
    response.write(b"head")
    assert wire.writes == []
    await asyncio.sleep(0)
    response.write(b"body")
    assert wire.writes == [b"head", b"body"]


async def test_a_response_without_a_body_is_sent_before_anything_else() -> None:
    wire, response = joined()
    response.write(b"head")
    response.flush()
    wire.write(b"the next answer")
    await asyncio.sleep(0)
    assert wire.writes == [b"head", b"the next answer"]


async def test_a_connection_is_closed_behind_the_head() -> None:
    wire, response = joined()
    response.write(b"head")
    response.close()
    await asyncio.sleep(0)
    assert (wire.writes, response.is_closing()) == ([b"head"], True)


async def test_nothing_is_written_to_a_connection_that_was_lost() -> None:
    wire, response = joined()
    response.write(b"head")
    wire.is_lost = True
    await asyncio.sleep(0)
    assert wire.writes == []
