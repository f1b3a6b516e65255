"""A node that cannot be had is one error; a call that ends anywhere leaves no place taken and no connection open."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop
from tests.support.bus.documents import APPLICATION
from tests.support.cluster.fake_cluster import until
from tests.support.services.certificates import Signer, uri

from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import HostInfo
from understudy_shared.cluster import node_calls
from understudy_shared.cluster.node_calls import (
    MAX_SMALL_REPLY_BYTES,
    BadNodeReplyError,
    CallKind,
    CallOutcome,
    NodeCallError,
    NodeCalls,
    NodeTimeoutError,
)
from understudy_shared.cluster.wire import connect
from understudy_shared.tls.certificates import tls_plan
from understudy_shared.tls.service_tls import ServiceTls
from understudy_shared.tls.trouble import PeerRole


@pytest.mark.parametrize("end", ["reset", "eof", "silence"])
async def test_however_a_call_fails_the_node_is_said_not_to_answer(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_calls, "TIMEOUT_S", 0.05 if end == "silence" else 60.0)

    async def fails(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if end == "reset":
            writer.transport.abort()
        elif end == "silence":
            await reader.read()
        writer.close()

    calls = NodeCalls("flights")
    server = await asyncio.start_server(fails, "127.0.0.1", 0)
    async with server:
        host = HostInfo(*server.sockets[0].getsockname()[:2])
        with pytest.raises(NodeCallError, match="does not answer") as raised:
            await calls.heartbeat(host)
        assert isinstance(raised.value, NodeTimeoutError) == (end == "silence")
    with pytest.raises(NodeCallError, match="does not answer: cannot connect"):
        await calls.heartbeat(host)
    with pytest.raises(NodeCallError, match="names no host"):
        await calls.heartbeat(HostInfo("127.0.0.1 \r\nx: y", host.port))
    outcome = CallOutcome.LATE if end == "silence" else CallOutcome.FAILED
    assert calls.counts == Counter([(CallKind.MEMBERSHIP, each) for each in (outcome, "failed", "failed")])
    await calls.close()


@asynccontextmanager
async def node_that_answers(reply: bytes, *, then: bytes = b"") -> AsyncIterator[tuple[HostInfo, list[bytes]]]:
    """A real listener that sends bytes, and then the same bytes for ever; and what it was asked."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(reply)
            while then:
                writer.write(then)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield HostInfo("127.0.0.1", server.sockets[0].getsockname()[1]), asked
    finally:
        server.close()


def reply(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"\r\n".join((b"HTTP/1.1 " + status, b"content-length: %d" % len(body), *headers))
    return head + b"\r\n\r\n" + body


JSON = b"content-type: application/json"
ENDLESS = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "then", "why"),
    [
        (reply(b"<html>", b"content-type: text/html"), b"", "text/html, not JSON"),
        (reply(b"{}"), b"", "of no named type"),
        (reply(gzip.compress(bytes(MAX_SMALL_REPLY_BYTES)), JSON, b"content-encoding: gzip"), b"", "compressed"),
        (reply(b"{}", JSON, b"location: http://127.0.0.1:1/", status=b"307 Moved"), b"", "answers 307"),
        (reply(b"{}", JSON, status=b"777 X"), b"", "answers 777"),
        (ENDLESS, b" " * 65_536, "more than"),
        (reply(b"[", JSON), b"", "JSON"),
    ],
    ids=["html", "no type", "compressed", "redirect", "unknown status", "without end", "no JSON"],
)
async def test_what_no_node_of_ours_answers_is_refused_before_it_is_used(sent: bytes, then: bytes, why: str) -> None:
    calls = NodeCalls("flights")
    async with node_that_answers(sent, then=then) as (host, asked):
        with pytest.raises(BadNodeReplyError, match=why):
            await calls.drain(host, drain=True)
        assert len(asked) == 1
        with pytest.raises(UnderstudyError):
            await calls.heartbeat(host)
    await calls.close()


PLACES, CALLS, TURNS, LIMIT_S, IN_ALL_S = 2, 3, 36, 5.0, 15.0
"""One call of each round waits for a place. A call to a node that answers at once takes fewer turns than these. The
limits of a call, and of a test, are far above what they take: what hangs is a failure soon."""

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n"


class Node:
    """A node that answers as `mode` says, and what it has seen."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.open: set[asyncio.StreamWriter] = set()
        self.host = HostInfo("", 0)
        self.connections = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        self.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError, RuntimeError):  # uvloop's, for a connection that was closed
            for number in range(1_000):
                await reader.readuntil(b"{}")
                if self.mode in {"silent", "deaf"} or (self.mode == "stale" and number):
                    break
                closes = b"connection: close\r\n" if self.mode == "closing" else b""
                pieces = [HEAD[:20], HEAD[20:] + closes, b"\r\n", b"nu", b"ll"]
                for piece in pieces if self.mode == "bits" else [b"".join(pieces)]:
                    writer.write(piece)
                    await asyncio.sleep(0)
                if self.mode == "closing":
                    break
            if self.mode == "silent":
                await reader.read()
        self.open.discard(writer)
        writer.close()


@asynccontextmanager
async def listening(mode: str, tls: ssl.SSLContext | None) -> AsyncIterator[Node]:
    node = Node(mode)
    server = await asyncio.start_server(node.answer, "127.0.0.1", 0, ssl=tls)
    node.host = HostInfo(*server.sockets[0].getsockname()[:2])
    try:
        yield node
    finally:
        server.close()
        for each in list(node.open):  # a server waits for its connections, for ever for one that the caller leaks
            each.transport.abort()
        await server.wait_closed()


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("ours"))


def identity_of(signer: Signer | None) -> ClusterIdentity:
    if signer is None:
        return ClusterIdentity(None, APPLICATION)
    files = signer.issue("router", uri("router", application=APPLICATION))
    plan = tls_plan(APPLICATION, PeerRole.ROUTER, server=(None, None), peer=files, peer_ca=signer.file)
    assert plan is not None
    return ClusterIdentity(None, APPLICATION, ServiceTls(plan))


def tls_of(signer: Signer | None) -> ssl.SSLContext | None:
    if signer is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*signer.issue("node", uri("node", application=APPLICATION)))
    return context


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("mode", ["whole", "bits", "closing", "stale", "silent"])
def test_calls_that_are_cancelled_at_any_turn_leave_all_places_free_and_no_connection_open(
    mode: str,
    is_tls: bool,
    loop: Callable[[], asyncio.AbstractEventLoop],
    signer: Signer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_calls, "MAX_IN_FLIGHT", PLACES)
    of = signer if is_tls else None
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(cancel_at_each_turn(mode, identity_of(of), tls_of(of)), IN_ALL_S))


async def cancel_at_each_turn(mode: str, identity: ClusterIdentity, tls: ssl.SSLContext | None) -> None:
    calls = NodeCalls(APPLICATION, identity=identity)

    async def ask(node: Node) -> tuple[int, bytes]:
        return await calls.ask(CallKind.SCAN, node.host, "/", b"{}", max_bytes=9, limit_s=LIMIT_S)

    async with listening(mode, tls) as node, listening("whole", tls) as other:
        try:
            for turns in range(TURNS):
                tasks = [asyncio.ensure_future(ask(node)) for _ in range(CALLS)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                for number, task in enumerate(tasks):
                    if number != turns % (CALLS + 1) or mode == "silent":  # now and then one of them goes on
                        task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(isinstance(each, asyncio.CancelledError) or each == (200, b"null") for each in ends)
                places = calls._places[CallKind.SCAN]
                assert (places.of_all.free, places.waiting) == (PLACES, 0), f"after {turns} turns"
                assert all(each.is_idle or not each.is_open for each, _ in calls._kept._kept), (
                    "one that owes a reply is kept"
                )
                assert (await ask(other))[0] == 200
        finally:
            await calls.close()  # uvloop's servers wait for their connections
        await until(lambda: not node.open and not other.open)


async def test_a_kind_whose_places_are_all_taken_takes_none_of_another_kind_or_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_calls, "MAX_IN_FLIGHT", PLACES)
    kept = node_calls.KeptConnections()
    calls, others = NodeCalls(APPLICATION, kept=kept), NodeCalls("others", kept=kept)

    async def ask(of: NodeCalls, kind: CallKind, node: Node, limit_s: float = LIMIT_S) -> int:
        return (await of.ask(kind, node.host, "/", b"{}", max_bytes=9, limit_s=limit_s))[0]

    async with asyncio.timeout(IN_ALL_S), listening("silent", None) as silent, listening("whole", None) as node:
        taken = [asyncio.ensure_future(ask(calls, CallKind.SCAN, silent)) for _ in range(PLACES)]
        await until(lambda: len(silent.open) == PLACES)
        with pytest.raises(node_calls.NoPlaceError, match="as many calls of its kind as may be are in flight, 2"):
            await ask(calls, CallKind.SCAN, node, limit_s=0.05)
        for kind in set(CallKind) - {CallKind.SCAN}:
            assert await ask(calls, kind, node) == 200
        assert await ask(others, CallKind.SCAN, node) == 200
        monkeypatch.setattr(node_calls, "MAX_WAITING", 0)
        with pytest.raises(node_calls.NoPlaceError, match="0 calls wait for a place"):
            await ask(calls, CallKind.SCAN, node)
        for task in taken:
            task.cancel()
        await asyncio.wait(taken)
        assert await ask(calls, CallKind.SCAN, node) == 200
        counted = {outcome: calls.counts[CallKind.SCAN, outcome] for outcome in node_calls.CallOutcome}
        assert counted == {"answered": 1, "waited": 0, "failed": 0, "late": 0, "no-place": 2}
        kept.close()
        await until(lambda: not node.open and not silent.open)


async def test_a_node_that_hangs_leaves_places_of_its_kind_for_calls_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped_s = 0.0
    monkeypatch.setattr(node_calls, "monotonic", lambda: time.monotonic() + skipped_s)
    calls = NodeCalls(APPLICATION)

    async def ask(node: Node, limit_s: float = LIMIT_S) -> int:
        return (await calls.ask(CallKind.SCAN, node.host, "/", b"{}", max_bytes=9, limit_s=limit_s))[0]

    async with asyncio.timeout(IN_ALL_S), listening("silent", None) as hangs, listening("whole", None) as well:
        asked = [asyncio.ensure_future(ask(hangs)) for _ in range(2 * node_calls.MAX_IN_FLIGHT)]
        await until(lambda: len(hangs.open) == node_calls.MAX_PER_NODE)
        assert await asyncio.gather(*(ask(well) for _ in range(4))) == [200] * 4
        assert (len(hangs.open), calls._places[CallKind.SCAN].waiting) == (node_calls.MAX_PER_NODE, 48)
        hangs.mode, skipped_s = "whole", node_calls.LONG_WAIT_S
        for each in list(hangs.open):
            each.transport.abort()
        # Those that waited for these places are sent now, and were kept waiting for long.
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(each == 200 for each in ends) == 48
        assert calls.counts[CallKind.SCAN, node_calls.CallOutcome.WAITED] == 48
        free = [each.free for each in calls._places[CallKind.SCAN].of_nodes.values()]
        assert free == [node_calls.MAX_PER_NODE] * 2
        await calls.close()
        await until(lambda: not hangs.open and not well.open)


async def test_a_stale_connection_is_replaced_once_and_no_more() -> None:
    """A node closes a connection before it answers: a used one might have been stale, a new one was not."""
    calls = NodeCalls(APPLICATION)
    async with asyncio.timeout(IN_ALL_S), listening("stale", None) as node:
        for _ in range(3):
            assert await calls.ask(CallKind.LEASE, node.host, "/", b"{}", max_bytes=9, limit_s=LIMIT_S) == (
                200,
                b"null",
            )
        node.mode, before = "deaf", node.connections
        with pytest.raises(node_calls.NodeCallError, match="closed the connection"):
            await calls.ask(CallKind.LEASE, node.host, "/", b"{}", max_bytes=9, limit_s=LIMIT_S)
        assert node.connections - before == 1
        await calls.close()
        await until(lambda: not node.open)


async def test_a_connection_that_stands_when_its_caller_stops_waiting_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, stands = asyncio.get_running_loop(), asyncio.Event()
    create = loop.create_connection

    async def hands_out_late(*args: Any, **options: Any) -> object:
        made = await create(*args, **options)
        stands.set()
        await asyncio.Event().wait()
        return made

    monkeypatch.setattr(loop, "create_connection", hands_out_late)
    async with asyncio.timeout(IN_ALL_S), listening("silent", None) as node:
        opening = asyncio.ensure_future(connect(node.host, LIMIT_S, ClusterIdentity(None, APPLICATION)))
        await stands.wait()
        await until(lambda: node.open)
        opening.cancel()
        await asyncio.wait([opening])
        await until(lambda: not node.open)


async def test_a_stream_that_does_not_begin_leaves_no_connection_open() -> None:
    calls = NodeCalls(APPLICATION)
    async with asyncio.timeout(IN_ALL_S), listening("silent", None) as silent, listening("whole", None) as node:
        with pytest.raises(node_calls.BadNodeReplyError, match="not text/event-stream"):
            await calls.begin(node.host, "/", b"{}", accept="text/event-stream", limit_s=LIMIT_S)
        begins = asyncio.ensure_future(
            calls.begin(silent.host, "/", b"{}", accept="text/event-stream", limit_s=LIMIT_S)
        )
        await until(lambda: silent.open)
        begins.cancel()
        await asyncio.wait([begins])
        await until(lambda: not silent.open and not node.open)


async def test_a_handshake_that_does_not_end_closes_its_connection(
    signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = NodeCalls(APPLICATION, identity=identity_of(signer))
    async with asyncio.timeout(IN_ALL_S), listening("silent", None) as node:
        given_up = asyncio.ensure_future(calls.heartbeat(node.host))
        await until(lambda: node.open)
        given_up.cancel()
        await asyncio.wait([given_up])
        await until(lambda: not node.open)
        monkeypatch.setattr(node_calls, "TIMEOUT_S", 0.3)
        with pytest.raises(NodeCallError, match="does not answer"):
            await calls.heartbeat(node.host)
        await until(lambda: not node.open)
        await calls.close()


@pytest.mark.parametrize("ends", ["cancelled", "late"])
async def test_a_call_that_waits_for_a_place_of_all_gives_its_nodes_place_back(ends: str) -> None:
    places = node_calls.PlacesOfKind()
    until_s = time.monotonic() + 60
    for port in range(node_calls.MAX_IN_FLIGHT):
        await places.take(HostInfo("127.0.0.1", 1 + port), until_s)
    host = HostInfo("127.0.0.1", 9_999)
    waiting = asyncio.ensure_future(places.take(host, until_s if ends == "cancelled" else time.monotonic() + 0.01))
    if ends == "cancelled":
        await until(lambda: places.waiting == 1, what="the call to wait")
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError if ends == "cancelled" else node_calls.NoPlaceError):
        await waiting
    assert (places.waiting, places.of_nodes[host].free) == (0, node_calls.MAX_PER_NODE)
