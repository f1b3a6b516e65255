"""One feed of a router before nodes that a test makes: what it asks of them, and what watchers get when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest
from tests.support.cluster.fake_cluster import until

from understudy_router.cluster.candidates import Candidate
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding import context
from understudy_router.forwarding.context import ReadContext
from understudy_router.questions.watch import feed as watch_feed
from understudy_router.questions.watch.feed import WatchFeed
from understudy_router.routing.choose import Choice
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.words import ApplicationId, HostInfo, Lineage
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.watch.events import KeyEvent, at_fed_key, key_event, version_text, with_tail
from understudy_shared.questions.watch.hop import (
    KEYS_PATH,
    OPEN_PATH,
    FeedHop,
    WatchKey,
    decode_feed_hop,
    decode_feed_keys,
)
from understudy_shared.questions.watch.streams import WatchEndedError, WatchStream
from understudy_shared.reads.bounds import EVERYTHING
from understudy_shared.reads.tokens import Position

IDENTITY = ClusterIdentity(None, "flights")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def token(version: int) -> str:
    return Position(ApplicationId("flights"), Lineage("l1"), version, None).encode()


def reply(status: int, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@dataclass
class FeedNode:
    """A node with feeds of one partition. `refuses` is what it answers calls instead; one that `stands_still` answers
    nothing, and no heartbeat comes from it.
    """

    version: int = 3
    stands_still: bool = False
    refuses: dict[str, Problem] = field(default_factory=dict)
    opened: list[FeedHop] = field(default_factory=list)
    numbers: dict[bytes, int] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    stream: asyncio.StreamWriter | None = None
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    host: HostInfo = field(default_factory=lambda: HostInfo("", 0))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ")[1].decode()
                body = await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r")[0]))
                if self.stands_still:
                    continue
                if path in self.refuses:
                    problem = self.refuses[path]
                    writer.write(reply(problem.type.status, "application/problem+json", problem.body()))
                elif path == OPEN_PATH:
                    self.opened.append(decode_feed_hop(body))
                    self.stream = writer
                    writer.write(HEAD + b": there is no news\n\n")
                else:
                    self.add(body)
                    writer.write(reply(200, "application/json", b"{}"))
        writer.close()
        self.writers.remove(writer)

    def add(self, body: bytes) -> None:
        hop = decode_feed_keys(body)
        self.dropped += hop.dropped
        for number, key in enumerate(hop.keys, hop.first):
            self.numbers[key.row] = number
            if not hop.goes_on:
                self.tell(key.row, KeyEvent.SNAPSHOT)
        if hop.goes_on:
            self.tell_version()

    def tell(self, row: bytes, kind: KeyEvent = KeyEvent.VALUE) -> None:
        """Tell the value of a key at this version."""
        data = b'{"key":"%b","version":%d}' % (row, self.version)
        self._send(key_event(kind, data) + at_fed_key(self.numbers[row], self.version, 0))

    def tell_version(self) -> None:
        self._send(version_text(self.version, token(self.version)))

    def _send(self, event: bytes) -> None:
        assert self.stream is not None
        self.stream.write(with_tail(event, token(self.version), b'"tail":1}'))

    def die(self) -> None:
        assert self.stream is not None
        self.stream.transport.abort()


@asynccontextmanager
async def listening(*nodes: FeedNode) -> AsyncIterator[None]:
    servers = []
    for node in nodes:
        server = await asyncio.start_server(node.answer, "127.0.0.1", 0)
        servers.append(server)
        node.host = HostInfo(*server.sockets[0].getsockname()[:2])
    try:
        yield
    finally:
        for server in servers:
            server.close()
        for node in nodes:
            for writer in node.writers:
                writer.transport.abort()
        await until(lambda: not any(node.writers for node in nodes))


def candidate(name: str, node: FeedNode) -> Candidate:
    return Candidate(name, node.host, "active", "RUNNING", node.version, 0, 0, 0, is_live=True, is_heard=True)


@dataclass
class Choosing:
    """The choice of nodes, the first first."""

    nodes: dict[str, FeedNode]
    looks: int = 0

    def choose(self, *_: object) -> Choice:
        self.looks += 1
        return Choice(tuple(candidate(name, node) for name, node in self.nodes.items()), (), ())


@asynccontextmanager
async def feed_of(**nodes: FeedNode) -> AsyncIterator[tuple[WatchFeed, Choosing, list[WatchFeed]]]:
    """A feed in front of nodes, the choice of them, and where it says that it cannot go on."""
    route = SimpleNamespace(application_id="flights", lineage="l1", name="op0", layout="a", partitions=1, operator_id=0)
    ended: list[WatchFeed] = []
    async with listening(*nodes.values()):
        choosing = Choosing(nodes)
        watcher = SimpleNamespace(is_heard_of=lambda node_id: not nodes[node_id].stands_still)
        read_context = SimpleNamespace(choices=choosing, deadline_ms=2_000, rejected=lambda _: None, watcher=watcher)
        calls = NodeCalls("flights", identity=IDENTITY)
        feed = WatchFeed(
            cast(ReadContext, read_context),
            calls,
            lambda: cast(StoreRoute, route),
            partition=0,
            selection=EVERYTHING,
            ended=ended.append,
        )
        feed.start()
        try:
            yield feed, choosing, ended
        finally:
            feed.close()
            await calls.close()


async def end_of(stream: WatchStream) -> None:
    while True:
        await stream.wait()


def keys(*rows: bytes) -> Sequence[WatchKey]:
    return [WatchKey(0, row, b'"%b"' % row) for row in rows]


async def joined(feed: WatchFeed, *rows: bytes) -> WatchStream:
    stream = WatchStream(len(rows), lambda: None)
    await feed.ready(feed.join(keys(*rows), stream), stream)
    return stream


async def test_any_number_of_watchers_opens_one_stream_and_asks_for_each_key_once() -> None:
    node = FeedNode()
    async with feed_of(a=node) as (feed, _, _):
        await asyncio.gather(*(joined(feed, b"k%d" % (number % 3)) for number in range(100)))
        late = await joined(feed, b"k0", b"k9")
        assert (len(node.opened), sorted(node.numbers.values())) == (1, [0, 1, 2, 3])
        feed.leave([feed.heard.keys[b"k9"]], late)
        assert feed.sweep(), "others are watched"
        await until(lambda: node.dropped == [node.numbers[b"k9"]])
        assert sorted(feed.heard.keys) == [b"k0", b"k1", b"k2"]


async def test_another_node_goes_on_behind_the_position_with_the_keys_that_are_watched() -> None:
    first, second = FeedNode(), FeedNode(version=5)
    async with feed_of(a=first, b=second) as (feed, choosing, _):
        stream = await joined(feed, b"k0")
        first.version = 4
        first.tell(b"k0")
        await until(lambda: feed.heard.version == 4)
        del choosing.nodes["a"]
        first.die()
        await until(lambda: feed.heard.version == 5)
        (hop,) = second.opened
        assert hop.after is not None
        assert (hop.after.version, hop.goes_on_with, list(second.numbers)) == (4, 1, [b"k0"])
        second.tell(b"k0")
        await until(lambda: feed.heard.keys[b"k0"].version == 5)
        assert feed.heard.keys[b"k0"].changes == 2
        stream.require_open()


async def test_a_node_that_stands_still_while_another_is_ahead_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_feed, "LOOK_S", 0.02)
    stuck, other = FeedNode(), FeedNode()
    async with feed_of(a=stuck, b=other) as (feed, choosing, _):
        await joined(feed, b"k0")
        monkeypatch.setattr(watch_feed, "BEHIND_S", 0.0)
        choosing.nodes = {"b": other, "a": stuck}
        looks = choosing.looks
        await until(lambda: choosing.looks > looks + 4)
        assert len(stuck.opened) == 1, "as far as the other"
        other.version = 4
        await until(lambda: feed.heard.version == 4)


async def test_another_node_begins_when_the_first_stands_still_before_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context, "LOOK_S", 0.02)
    stopped, other = FeedNode(stands_still=True), FeedNode()
    async with feed_of(a=stopped, b=other) as (feed, _, _):
        await joined(feed, b"k0")
        assert list(other.numbers) == [b"k0"]
        other.stands_still, stopped.stands_still = True, False
        await until(lambda: b"k0" in stopped.numbers)


async def test_keys_that_a_node_has_no_room_for_are_refused_and_others_go_on() -> None:
    node = FeedNode()
    async with feed_of(a=node) as (feed, _, _):
        kept = await joined(feed, b"k0")
        node.refuses[KEYS_PATH] = Problem(ProblemType.OVERLOADED, "no room for more keys")
        with pytest.raises(ProblemError, match="no room"):
            await joined(feed, b"k1")
        node.version = 4
        node.tell(b"k0")
        await until(lambda: feed.heard.keys[b"k0"].version == 4)
        kept.require_open()


async def test_a_feed_that_no_node_can_open_says_why_and_ends_its_watchers() -> None:
    node = FeedNode()
    async with feed_of(a=node) as (feed, _, ended):
        stream = await joined(feed, b"k0")
        node.refuses[OPEN_PATH] = Problem(ProblemType.BAD_REQUEST, "there is a feed of this name")
        node.die()
        with pytest.raises(WatchEndedError) as why:
            await end_of(stream)
        assert (why.value.reason, ended) == ("unavailable", [feed])
        with pytest.raises(ProblemError, match="feed of this name"):
            await joined(feed, b"k0")


@pytest.mark.parametrize(
    "event",
    [
        b"event: value\ndata: {}\nat: 0 x\n\n",
        b"event: version\ndata: {}\nid: us1.garbage\n\n",
        b"event: coalesced\ndata: {}\nat: 0 4 0\ntail: {}\nid: %b\n\n" % token(4).encode(),
    ],
    ids=["no number", "no position", "no range"],
)
async def test_an_event_that_no_node_sends_ends_the_stream_and_not_the_watchers(event: bytes) -> None:
    liar, honest = FeedNode(), FeedNode()
    async with feed_of(a=liar, b=honest) as (feed, choosing, _):
        stream = await joined(feed, b"k0")
        del choosing.nodes["a"]
        assert liar.stream is not None
        liar.stream.write(event)
        await until(lambda: honest.opened)
        honest.version = 4
        await until(lambda: b"k0" in honest.numbers)
        honest.tell(b"k0")
        await until(lambda: feed.heard.keys[b"k0"].version == 4)
        stream.require_open()
