"""What is remembered on disk and what nodes answer is judged like what is heard: used, or refused by type."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest
from tests.fuzz.documents import ASSIGNMENT, CATALOGUE, HEARTBEAT, WIDE
from tests.fuzz.hunting import hunt, sizes
from tests.fuzz.mutation import bad_bytes, bad_document
from tests.support.bus.documents import APPLICATION

from understudy_router.cluster.watching import RouterMemory
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Assignment, Catalogue, Heartbeat, Message
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.cluster.without_bus import MAGIC, Remembered

KINDS: dict[type[Message], Sequence[bytes]] = {
    Assignment: [ASSIGNMENT.encode()],
    Catalogue: [CATALOGUE.encode(), WIDE.encode()],
    Heartbeat: [HEARTBEAT.encode()],
}
ALL = [seed for seeds in KINDS.values() for seed in seeds]


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """Mute the log: each refusal logs a warning."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def files(rng: Random, count: int) -> list[bytes]:
    """Files with a hash that fits, mostly: an attacker who damages a file can write that too."""
    made = []
    for _ in range(count):
        document = bad_document(rng.choice(ALL), rng)
        content = MAGIC + b" " + hashlib.sha256(document).hexdigest().encode() + b"\n" + document
        made.append(bad_bytes(content, rng) if rng.random() < 0.2 else content)
    return made


@sizes(4_000)
def test_no_remembered_file_ends_a_start(inputs: int, tmp_path: Path) -> None:
    remembered = Remembered(tmp_path, APPLICATION)

    def attempt(batch: Sequence[bytes]) -> None:
        for content in batch:
            for kind in KINDS:
                (tmp_path / f"{kind.__name__.lower()}.remembered").write_bytes(content)
                found = remembered.load(kind)
                assert found is None or isinstance(found, kind)
        asyncio.run(recall())

    async def recall() -> None:
        memory = RouterMemory(remembered)
        await memory.recall()
        await memory.flush()

    hunt("remembered", inputs, files, attempt)


@sizes(4_000)
def test_no_reply_of_a_node_is_taken_for_a_document(inputs: int) -> None:
    def replies(rng: Random, count: int) -> list[bytes]:
        return [bad_document(rng.choice(ALL), rng) for _ in range(count)]

    async def ask(batch: Sequence[bytes]) -> None:
        calls = NodeCalls(APPLICATION)
        rng, body = Random(len(batch)), b""
        handlers: list[asyncio.Task[None] | None] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            handlers.append(asyncio.current_task())
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while head := await reader.readuntil(b"\r\n\r\n"):
                    if head.startswith(b"POST"):
                        await reader.readuntil(b"}")
                    kind = rng.choice(
                        ["application/json", "application/json", "application/problem+json", "text/html", ""]
                    )
                    status = rng.choice([200, 200, 200, 202, 301, 404, 503, 599])
                    head = (
                        f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
                    )
                    writer.write(head + body)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            node = HostInfo(*server.sockets[0].getsockname()[:2])
            for body in batch:  # noqa: B007  # `answer` sends it
                for call in (calls.heartbeat, calls.catalogue, calls.assignment, partial(_drained, calls)):
                    try:
                        assert isinstance(await call(node), (Message, dict))
                    except UnderstudyError:
                        continue
            await calls.close()
            await asyncio.gather(*[each for each in handlers if each is not None])

    hunt("calls", inputs, replies, lambda batch: asyncio.run(ask(batch)))


async def _drained(calls: NodeCalls, node: HostInfo) -> dict[str, object]:
    status, document = await calls.drain(node, drain=True)
    assert status in {200, 202, 404, 503, 599}
    return document
