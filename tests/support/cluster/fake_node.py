"""A node made by hand: answers hops as a test sets it up, over HTTP on loopback, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import httptools

from understudy_shared.http.problems import Problem, ProblemType, refused
from understudy_shared.http.target import APPLICATION_HEADER
from understudy_shared.questions.lookup.hop import (
    FOUND,
    PATH,
    PROBLEM,
    HopGroup,
    HopKey,
    HopOutcome,
    HopReply,
    HopRequest,
    decode_request,
    encode_reply,
)
from understudy_shared.reads.bounds import Refusal

Answer = Callable[[HopGroup, HopKey], HopOutcome]


@dataclass(frozen=True, slots=True)
class Raw:
    """A whole reply, written as it is. Empty: the connection is reset instead."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Hang:
    """No reply at all."""


def found(value: str) -> HopOutcome:
    """The rest of an answer with a value."""
    return HopOutcome(FOUND, b'"found":true,"value":{"by":"%b"},' % value.encode(), b'"version":7}\n')


def problem(kind: ProblemType, detail: str = "as the test wants it") -> HopOutcome:
    """An outcome that is a node's problem."""
    return HopOutcome(PROBLEM, Problem(kind, detail).body())


def refusal(reason: Refusal, *, version: int = 3, offset_lag: int = 4) -> HopOutcome:
    """An outcome of a node that may not answer under the bound."""
    replica = {"host": "127.0.0.1", "port": 1, "role": "standby", "state": "RUNNING", "reason": str(reason)}
    candidate = {**replica, "version": version, "offset_lag": offset_lag, "time_lag_ms": 40}
    return HopOutcome(PROBLEM, refused(reason, candidates=[candidate]).body())


def status(code: int, body: bytes) -> Raw:
    """An HTTP reply other than a hop's."""
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return Raw((head + b"%b") % (code, len(body), body))


RESET = Raw(b"")


def says(outcome: HopOutcome) -> Answer:
    """A node that answers every key so."""
    return lambda _group, _key: outcome


A, B, C = (says(found(name)) for name in "abc")


@dataclass(slots=True)
class FakeNode:
    """`answer` gives each key's outcome, or one thing for the whole hop. `documents` are bodies by GET path."""

    node_id: str
    answer: Answer | Raw | Hang = field(default=RESET)
    once: Raw | None = None
    """Given to the next hop only."""
    term: int = 1
    epoch: int = 1
    end_version: int = 7
    documents: dict[str, bytes] = field(default_factory=dict)
    hops: list[HopRequest] = field(default_factory=list)
    """Without the probes, which ask for nothing."""
    probes: int = 0
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    named: list[tuple[str, str]] = field(default_factory=list)
    """The paths of requests, and the applications that their headers named."""
    connections: set[asyncio.Transport] = field(default_factory=set)
    accepted: int = 0
    held: asyncio.Event | None = None
    """Replies wait for it."""
    delay_ms: int = 0
    """Each reply leaves so much later."""
    port: int = 0
    server: asyncio.Server | None = None

    @property
    def keys(self) -> list[int]:
        """Keys of each hop that it was sent."""
        return [sum(len(group.keys) for group in hop.groups) for hop in self.hops]

    async def start(self) -> None:
        """Listen, on the port it had before if it had one."""
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: _Conversation(self), "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Behave like a killed process: the port is closed, every connection is reset."""
        if self.server is not None:
            self.server.close()
            self.server = None
        self.drop()
        await asyncio.sleep(0)

    def drop(self) -> None:
        """Reset the connections; the node still listens."""
        for transport in list(self.connections):
            transport.abort()

    def reply_to(self, method: str, path: str, body: bytes) -> bytes | None:
        """The bytes of a reply; None: none."""
        if path != PATH:
            self.requests.append((f"{method} {path}", body))
            document = self.documents.get(path)
            return status(404, b"{}").data if document is None else status(200, document).data
        hop = decode_request(body)
        if hop.groups:
            self.hops.append(hop)
        else:
            self.probes += 1
        once, self.once = self.once, None
        if once is not None:
            return once.data
        if isinstance(self.answer, Raw):
            return self.answer.data
        if isinstance(self.answer, Hang):
            return None
        outcomes = [self.answer(group, key) for group in hop.groups for key in group.keys]
        reply = HopReply(self.term, self.epoch, self.end_version, outcomes)
        return status(200, encode_reply(reply)).data


class _Conversation(asyncio.Protocol):
    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self._parser = httptools.HttpRequestParser(self)
        self._path = ""
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._node.connections.add(self._transport)
        self._node.accepted += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._node.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == APPLICATION_HEADER:
            self._node.named.append((self._path, value.decode()))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path, body, self._path, self._body = self._path, self._body, "", b""
        reply = self._node.reply_to(self._parser.get_method().decode(), path, body)
        if reply == b"":
            self._transport.abort()
        elif reply is not None and self._node.delay_ms:
            asyncio.get_running_loop().call_later(self._node.delay_ms / 1000, self._write_when_free, reply)
        elif reply is not None:
            self._write_when_free(reply)

    def _write_when_free(self, reply: bytes) -> None:
        held = self._node.held
        if held is None or held.is_set():
            self._transport.write(reply)
        else:
            asyncio.get_running_loop().call_later(0.002, self._write_when_free, reply)


@asynccontextmanager
async def fake_nodes(*answers: Answer | Raw | Hang) -> AsyncIterator[Sequence[FakeNode]]:
    """Nodes a, b, c ... that listen until the block ends."""
    nodes = [FakeNode(chr(ord("a") + number), answer) for number, answer in enumerate(answers)]
    try:
        for node in nodes:
            await node.start()
        yield nodes
    finally:
        for node in nodes:
            await node.kill()
