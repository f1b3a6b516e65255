"""A call to a node that is given up leaves no connection behind, wherever it was."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from tests.support.bus.documents import APPLICATION, heartbeat
from tests.support.services.certificates import Signer, uri

from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.words import HostInfo
from understudy_shared.cluster import node_calls
from understudy_shared.cluster.node_calls import NodeCallError, NodeCalls
from understudy_shared.tls.certificates import tls_plan
from understudy_shared.tls.service_tls import ServiceTls
from understudy_shared.tls.trouble import PeerRole

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("ours"))


@pytest.fixture
def identity(signer: Signer) -> ClusterIdentity:
    files = signer.issue("router", uri("router", application=APPLICATION))
    plan = tls_plan(APPLICATION, PeerRole.ROUTER, server=(None, None), peer=files, peer_ca=signer.file)
    assert plan is not None
    return ClusterIdentity(None, APPLICATION, ServiceTls(plan))


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes get less time than usual to answer, so that what is given up ends soon."""
    monkeypatch.setattr(node_calls, "TIMEOUT_S", 0.3)


class Listener:
    """What a node that listens has seen of its callers."""

    def __init__(self) -> None:
        self.port = 0
        self.calls = 0
        self.opened = asyncio.Event()
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.ends = asyncio.Event()
        self.left_open: set[asyncio.StreamWriter] = set()
        self.is_free = asyncio.Event()

    @property
    def host(self) -> HostInfo:
        return HostInfo("127.0.0.1", self.port)


@asynccontextmanager
async def listener(context: ssl.SSLContext | None, body: bytes = b"") -> AsyncIterator[Listener]:
    """A node that answers when it may, by TLS if it has a context. Without a body it never says anything, so handshakes
    hang. Without a context it ends its side of each connection when `ends` is set.
    """
    seen = Listener()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.left_open.add(writer)
        seen.opened.set()
        with suppress(OSError, asyncio.IncompleteReadError):
            if body:
                await reader.readuntil(b"\r\n\r\n")
                seen.calls += 1
                seen.asked.set()
                await seen.may_answer.wait()
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
                writer.write(head + body)
                if context is None:
                    await seen.ends.wait()
                    writer.write_eof()
            await reader.read()  # until the caller closes it
        seen.left_open.discard(writer)
        if not seen.left_open:
            seen.is_free.set()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=context)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
        for writer in tuple(seen.left_open):
            writer.close()


@pytest.fixture
def node_context(signer: Signer) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*signer.issue("node", uri("node", application=APPLICATION)))
    return context


async def give_up(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_handshake_that_is_given_up_closes_its_connection(identity: ClusterIdentity) -> None:
    calls = NodeCalls(APPLICATION, identity=identity)
    async with listener(None) as node:
        tasks: list[asyncio.Task[object]] = [
            asyncio.get_running_loop().create_task(calls.heartbeat(node.host)) for _ in range(3)
        ]
        await asyncio.wait_for(node.opened.wait(), LIMIT_S)
        for task in tasks:
            await give_up(task)
        await asyncio.wait_for(node.is_free.wait(), LIMIT_S)
        assert node.left_open == set()
    await calls.close()


async def test_a_call_that_is_given_up_closes_its_connection_and_the_next_one_is_answered(
    identity: ClusterIdentity, node_context: ssl.SSLContext
) -> None:
    calls = NodeCalls(APPLICATION, identity=identity)
    async with listener(node_context, heartbeat("n1").encode()) as node:
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(calls.heartbeat(node.host))
        await asyncio.wait_for(node.asked.wait(), LIMIT_S)
        await give_up(task)
        node.may_answer.set()
        assert (await calls.heartbeat(node.host)).node_id == "n1"
        await calls.close()
        await asyncio.wait_for(node.is_free.wait(), LIMIT_S)


@pytest.mark.usefixtures("_soon")
async def test_a_node_that_never_answers_the_handshake_is_said_not_to_answer(identity: ClusterIdentity) -> None:
    calls = NodeCalls(APPLICATION, identity=identity)
    async with listener(None) as node:
        with pytest.raises(NodeCallError, match="does not answer"):
            await calls.heartbeat(node.host)
        await asyncio.wait_for(node.is_free.wait(), LIMIT_S)
    await calls.close()
