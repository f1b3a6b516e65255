"""A watch by both shells over real sockets: bad servers end it with a clear error, and nothing of it stays (Q55)."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.support.clients.asking import Asking, asking
from tests.support.services.bad_servers import Behaviour, bad_server, sending
from tests.support.spark.queries import wait_until
from tests.unit.client.client.test_watch_steps import event, token

from understudy import AsyncClient, Client, VersionGoneError
from understudy.client.core.exchange import Failure
from understudy.client.transports.base import StreamParser
from understudy.client.transports.sockets import SocketStream
from understudy.client.transports.streams import MAX_HELD_BYTES, LiveStream

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
GONE = b'{"type":"version-gone","title":"t","status":410,"detail":"d"}'
REFUSED = b"HTTP/1.1 410 Gone\r\ncontent-type: application/problem+json\r\ncontent-length: %d\r\n\r\n%b"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def watched(*streams: bytes, piece: int = 1 << 20) -> Behaviour:
    """A server that sends one of these streams for each request, in pieces, each time cut; and then says 410."""
    left = list(streams)

    def behave(connection: socket.socket, _: bytes, __: threading.Event) -> None:
        if not left:
            connection.sendall(REFUSED % (len(GONE), GONE))
            return
        events = left.pop(0)
        connection.sendall(HEAD)
        for at in range(0, len(events), piece):
            connection.sendall(chunk(events[at : at + piece]))
        connection.shutdown(socket.SHUT_RDWR)

    return behave


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def events_of(client: Asking, **options: Any) -> list[tuple[str, Any]]:
    """What is told until the watch ends with 410."""
    found: list[tuple[str, Any]] = []

    def told(each: Any) -> Any:
        watch = each.store("words").watch("a", **options)
        return _collected(watch, found) if hasattr(watch, "__aiter__") else _collected_at_once(watch, found)

    with pytest.raises(VersionGoneError):
        client.ask(told)
    return found


async def _collected(watch: Any, found: list[tuple[str, Any]]) -> None:
    async for each in watch:
        found.append((each.kind, each.version))  # noqa: PERF401  # those before an error must stay


def _collected_at_once(watch: Any, found: list[tuple[str, Any]]) -> None:
    for each in watch:
        found.append((each.kind, each.version))  # noqa: PERF401


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_events_come_whole_in_whatever_pieces_and_streams_they_are_sent(kind: str, piece: int) -> None:
    first = b"retry: 100\n\n" + event("snapshot", 3) + event("value", 4)
    behave = watched(first, event("value", 4) + event("value", 5), piece=piece)
    with bad_server(behave) as server, asking(kind, server.url, retries=0) as client:
        assert events_of(client) == [("snapshot", 3), ("value", 4), ("value", 5)]
    behind = [b"last-event-id: %b" % token(version).encode() for version in (4, 5)]
    assert all(header in request for header, request in zip(behind, server.requests[1:], strict=True))


def sockets() -> int:
    """The number of sockets of this process."""
    gc.collect()
    return sum(_target(each).startswith("socket:") for each in Path("/proc/self/fd").iterdir())


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


QUIET = sending(HEAD, chunk(event("snapshot", 3)))
"""A server that has nothing new."""


def test_a_watch_that_is_left_closed_or_ended_by_another_thread_leaves_no_descriptor() -> None:
    """Q55."""
    with bad_server(QUIET) as server:
        client = Client(server.url)
        before = sockets()

        def ended() -> bool:
            return sockets() == before

        for each in client.store("words").watch("a"):
            assert each.version == 3
            break
        wait_until(ended, what="the socket of a loop that was left")
        with client.store("words").watch("a") as watch:
            assert next(watch).version == 3
        wait_until(ended, what="the socket of a block")
        watch = client.store("words").watch("a")
        assert next(watch).version == 3
        ending = threading.Timer(0.05, watch.close)
        ending.start()
        assert list(watch) == [], "close ends a thread that waits"
        ending.join()
        wait_until(ended, what="the socket of a watch that another thread closed")


def test_a_stream_that_is_closed_while_it_is_read_keeps_its_descriptor_until_its_reader_has_left() -> None:
    ours, theirs = socket.socketpair()
    number = ours.fileno()

    class Closing:
        """A socket whose stream another thread closes when the reader is about to wait."""

        def settimeout(self, timeout_s: float) -> None:
            ours.settimeout(timeout_s)

        def recv(self, most: int) -> bytes:
            stream.close()
            assert ours.fileno() == number
            return ours.recv(most)

        def shutdown(self, how: int) -> None:
            ours.shutdown(how)

        def close(self) -> None:
            ours.close()

    stream = SocketStream(Closing(), StreamParser())  # type: ignore[arg-type]  # what it uses of a socket
    with theirs:
        assert isinstance(stream.receive(monotonic() + 60), Failure)
    assert ours.fileno() == -1
    assert isinstance(stream.receive(monotonic() + 60), Failure)


def test_a_reader_that_is_slow_stops_the_connection_and_holds_little() -> None:
    count = 20_000
    events = b"".join(event("value", version) for version in range(1, count + 1))

    async def main(url: str) -> None:
        async with AsyncClient(url) as client:
            watch = client.store("words").watch("a")
            assert (await anext(watch)).version == 1
            stream = watch._stream
            assert isinstance(stream, LiveStream)
            await asyncio.get_running_loop().run_in_executor(None, paused, stream)
            assert stream._parser.held <= MAX_HELD_BYTES + 256 * 1024
            assert [(await anext(watch)).version for _ in range(count - 1)] == [*range(2, count + 1)]

    def paused(stream: LiveStream) -> None:
        wait_until(lambda: stream._is_paused, what="a connection that is read no more")

    with bad_server(watched(events)) as server:
        asyncio.run(main(server.url))
