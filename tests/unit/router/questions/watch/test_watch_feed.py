"""One feed of a router before nodes that a test makes: what it asks of them, and what watchers get when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cluster.fake_cluster import until
from tests.support.router.fed_watchers import Client, Router, Step
from tests.support.router.feeding_node import KEYS, Truth

from understudy_router.cluster.candidates import Candidate
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding import context
from understudy_router.forwarding.context import ReadContext
from understudy_router.questions.watch import feed as watch_feed
from understudy_router.questions.watch.feed import WatchFeed
from understudy_router.questions.watch.service import MissedChanges
from understudy_router.routing.choose import Choice
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.words import ApplicationId, HostInfo, Lineage
from understudy_shared.cluster.node_calls import BadNodeReplyError, NodeCalls
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.watch import hop as watch_feed_state
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
from understudy_shared.reads.tokens import Position, decode_position

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


@pytest.fixture(autouse=True, scope="module")
def slices_of_one() -> Iterator[None]:
    """Watchers look between any two events that count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_feed_state, "COUNTED_AT_ONCE", 1)
        yield


def commit(changed: set[int]) -> Step:
    return lambda router: router.truth.history.append(changed)


def show(more: int) -> Step:
    return lambda router: router.node.show(min(router.truth.newest, router.node.part.version + more))


def send(size: int) -> Step:
    return lambda router: router.node.send(size)


def read(events: int) -> Step:
    def step(router: Router) -> None:
        for _ in range(min(events, len(router.node.sent))):
            router.read()

    return step


def join(indexes: list[int], is_quick: bool) -> Step:
    return lambda router: router.clients.append(Client(router, indexes, is_quick))


def read_slowly(which: int) -> Step:
    def step(router: Router) -> None:
        for client in router.clients[which : which + 1]:
            client.take(reads=True)

    return step


def leave(which: int) -> Step:
    def step(router: Router) -> None:
        del router.clients[which : which + 1]
        router.drop_unused()

    return step


def come_back(which: int) -> Step:
    """A watcher is cut off, and comes back with its last position."""

    def step(router: Router) -> None:
        for client in router.clients[which : which + 1]:
            after = None if client.position < 0 else client.position
            router.clients[which] = Client(router, client.indexes, client.is_quick, after=after)

    return step


def die(shown: int) -> Step:
    return lambda router: router.reconnect(shown)


def amid(step: Step) -> Step:
    return lambda router: router.amid.append(step)


indexes = st.lists(st.integers(0, KEYS - 1), min_size=1, unique=True)
steps = st.one_of(
    st.builds(commit, st.sets(st.integers(0, KEYS - 1))),
    st.builds(show, st.integers(1, 3)),
    st.builds(send, st.sampled_from([1, 25, 1000])),
    st.builds(read, st.integers(1, 4)),
    st.just(Router.give),
    st.builds(join, indexes, st.booleans()),
    st.builds(read_slowly, st.integers(0, 5)),
    st.builds(leave, st.integers(0, 5)),
    st.builds(come_back, st.integers(0, 5)),
    st.builds(die, st.integers(0, 20)),
    st.builds(amid, st.builds(join, indexes, st.booleans())),
    st.builds(amid, st.builds(come_back, st.integers(0, 5))),
)


def settle(router: Router) -> None:
    """All that is left happens: then each watcher knows everything."""
    for _ in range(4):
        router.give()
        router.node.show(router.truth.newest)
        for _ in range(2 * KEYS + 2):
            router.node.send(1)
        while router.node.sent:
            router.read()
    for client in router.clients:
        client.take(reads=True)


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, min_size=15, max_size=80))
def test_each_watcher_of_a_feed_gets_each_change_of_its_keys_once_and_in_order(
    given_steps: list[Step],
) -> None:
    router = Router(Truth())
    join(list(range(KEYS)), is_quick=False)(router)
    settle(router)
    for step in given_steps:
        step(router)
    settle(router)
    for client in router.clients:
        assert all(client.known[index] >= 0 for index in client.indexes), "it has begun"
        assert client.position == router.heard.version == router.truth.newest
        for index in client.indexes:
            assert not router.truth.changes(index, client.known[index], router.truth.newest), "the last is never missed"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, KEYS - 1)), st.booleans()), max_size=20))
def test_quick_watchers_miss_no_version_while_nodes_take_over_from_each_other(
    versions: list[tuple[set[int], bool]],
) -> None:
    router = Router(Truth())
    client = Client(router, list(range(KEYS)), is_quick=True)
    router.clients.append(client)
    settle(router)
    for changed, dies in versions:
        router.truth.history.append(changed)
        if dies:
            router.reconnect(router.truth.newest)
        else:
            router.node.show(router.truth.newest)
            router.node.send(1000)
        while router.node.sent:
            router.read()
    settle(router)
    assert client.position == router.truth.newest
    assert not client.missed


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n\x00\x01",
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
    ids=["upgrade", "not HTTP"],
)
async def test_what_no_node_sends_is_a_bad_reply(reply: bytes) -> None:
    has_ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(reply)
        with suppress(ConnectionError):  # who gives up resets the connection
            await reader.read()
        writer.close()
        has_ended.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host = HostInfo(*server.sockets[0].getsockname()[:2])
        calls = NodeCalls("flights")
        with pytest.raises(BadNodeReplyError):
            await calls.begin(host, "/watch", b"{}", accept="text/event-stream", limit_s=5.0)
        await has_ended.wait()
        await calls.close()


async def test_watchers_that_come_back_are_refused_when_their_store_goes_meanwhile() -> None:
    gone = Problem(ProblemType.UNKNOWN_STORE, "the store is unknown")

    def route() -> StoreRoute:
        raise ProblemError(gone)

    feed = Mock(heard=Mock(version=4), of=Mock(partition=0))
    missed = MissedChanges(Mock())
    asked = [missed.since(feed, route, (), decode_position(token(3))) for _ in range(2)]
    for refused in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(refused, ProblemError)
        assert refused.problem is gone
