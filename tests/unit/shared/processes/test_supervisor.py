"""Whether a worker says at its own port that it is alive."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.services.certificates import Signer

from understudy_shared.base.ports import free_port
from understudy_shared.processes.supervisor import WorkerOrder, says_alive

HOST = "127.0.0.1"


@asynccontextmanager
async def answering(said: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that answers every request with these bytes; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /livez HTTP/1.1\r\n")
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]


def order(port: int, **settings: str) -> WorkerOrder:
    return WorkerOrder("", {"host": HOST, **settings}, port)


@pytest.mark.parametrize(
    ("said", "is_alive"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (b"", False),
        (b"x" * 1_000_000, False),
    ],
)
async def test_a_worker_is_alive_when_it_answers_200(said: bytes, is_alive: bool) -> None:
    async with answering(said) as port:
        assert await says_alive(order(port)) is is_alive
    assert not await says_alive(order(free_port()))


async def test_a_worker_that_speaks_tls_is_asked_by_tls(tmp_path: Path) -> None:
    files = Signer(tmp_path).issue("router")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*files)
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n", tls) as port:
        assert await says_alive(order(port, tls_cert_file=str(files.certificate)))
        assert not await says_alive(order(port))
