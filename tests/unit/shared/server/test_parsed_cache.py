"""Caches of parsed requests: bounded, and never an answer to another request; and the phases of a connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.services.wire import NoParser, Wire, connected

from understudy_shared.http.edge import Receive, Scope, Send, send_reply
from understudy_shared.server import parsed_cache, phases
from understudy_shared.server.answers import Answers
from understudy_shared.server.direct import DirectExchange, Exchange
from understudy_shared.server.parsed_cache import MAX_HEAD_BYTES, ParsedCache, ParsedHead
from understudy_shared.server.phases import Phase, Transition
from understudy_shared.server.protocol import HttpProtocol


def entries(cache: ParsedCache[int]) -> int:
    return len(cache._young) + len(cache._old)


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=200))
def test_a_cache_answers_only_what_was_kept_and_has_room_for_so_many(steps: list[tuple[bool, int]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parsed_cache, "MAX_ENTRIES", 8)
        cache: ParsedCache[int] = ParsedCache(max_key_bytes=20)
        for keeps, number in steps:
            key = b"%d" % number
            if keeps:
                cache.keep(key, number)
                assert cache.get(key) == number
            else:
                assert cache.get(key) in {None, number}
            assert entries(cache) <= 8


@given(st.lists(st.integers(1, 60), max_size=200))
def test_a_cache_has_room_for_so_many_bytes_of_keys(sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parsed_cache, "MAX_BYTES", 200)
        cache: ParsedCache[int] = ParsedCache(max_key_bytes=50)
        for number, size in enumerate(sizes):
            key = bytes([number % 7]) * size
            cache.keep(key, number)
            assert cache.get(key) == (number if size <= 50 else None)
            assert sum(map(len, [*cache._young, *cache._old])) <= 200


def test_what_is_used_again_outlives_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsed_cache, "MAX_ENTRIES", 8)
    cache: ParsedCache[int] = ParsedCache(max_key_bytes=20)
    for number in range(100):
        cache.keep(b"%d" % number, number)
        cache.keep(b"used", -1) if number == 0 else cache.get(b"used")
    assert (cache.get(b"used"), cache.get(b"1"), cache.get(b"99")) == (-1, None, 99)


HOST = b"host: x\r\n"
HEADERS = [HOST, HOST + b"accept: */*\r\n", HOST + b"connection: close\r\n", HOST + b"content-length: 0\r\n", b""]
BROKEN_HEADERS = [HOST + b"a b: c\r\n", HOST + b"connection: upgrade\r\nupgrade: h2c\r\n", b"\r\nGET /x HTTP/1.1\r\n"]
KEYS = st.one_of(
    st.text(st.sampled_from("ab0/%?&=:,'()~-_.@$"), max_size=12).map(str.encode),
    st.text(st.sampled_from(' #\t\r\n\\"<>^`{|}é\x7f\0ab/%'), max_size=6).map(str.encode),
    st.binary(max_size=6),
)
REQUESTS = st.tuples(
    st.sampled_from([b"GET", b"GET", b"GET", b"HEAD", b"get", b"POST"]),
    st.sampled_from([b"/v1/stores/e/keys/", b"/v1/stores/e/keys/", b"/v1/stores/e/metadata/", b"/livez"]),
    KEYS,
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0"]),
    st.sampled_from(HEADERS * 3 + BROKEN_HEADERS),
)


class Asked:
    """An application that answers GETs of keys directly, and says what it was asked."""

    def __init__(self) -> None:
        self.direct: list[bytes] = []

    def answer_directly(self, target: bytes, exchange: Exchange) -> bool:
        if b"/keys/" not in target:
            return False
        self.direct.append(target)
        exchange.reply(200, b"text/plain", target)
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_reply(send, 200, b"%b %b" % (scope["method"].encode(), scope["raw_path"]), b"text/plain")


class Connections:
    def __init__(self, *, remembers: bool) -> None:
        self.app = Asked()
        self.heads = ParsedCache[ParsedHead](max_key_bytes=MAX_HEAD_BYTES if remembers else 0)
        self._answers = Answers(direct=self.app, heads=self.heads)

    def open(self) -> tuple[HttpProtocol, Wire]:
        transport = Wire()
        (protocol,) = connected(self.app, self._answers, [transport])
        return protocol, transport

    async def answers(self, requests: Sequence[bytes], *, on_one: bool = False) -> list[tuple[bytes, bool]]:
        """What is written for each request, and whether its connection was closed then. Each has a connection of its
        own, or all have `on_one`, until it is closed.
        """
        found = []
        protocol, transport = self.open()
        for request in requests:
            if transport.is_closed or not on_one:
                protocol, transport = self.open()
            before = len(transport.data)
            protocol.data_received(request)
            for _ in range(3):  # a request that is answered by ASGI has a task
                await asyncio.sleep(0)
            found.append((transport.data[before:], transport.is_closed))
        return found


def request(method: bytes, path: bytes, key: bytes, version: bytes, headers: bytes) -> bytes:
    return b"%b %b%b %b\r\n%b\r\n" % (method, path, key, version, headers)


def get(key: bytes, headers: bytes = HOST) -> bytes:
    return request(b"GET", b"/v1/stores/e/keys/", key, b"HTTP/1.1", headers)


@pytest.mark.parametrize("key", [b"b", b"a%2Fb", b"a/b?max_lag=3", b"~(x)'"])
async def test_a_lookup_is_not_parsed_when_its_headers_were(key: bytes) -> None:
    connections = Connections(remembers=True)
    protocol, transport = connections.open()
    protocol.data_received(get(b"a"))
    protocol.parser = NoParser()  # type: ignore[assignment]
    protocol.data_received(get(key))
    assert connections.app.direct == [b"/v1/stores/e/keys/a", b"/v1/stores/e/keys/" + key]
    assert transport.data.endswith(key)


@pytest.mark.parametrize("headers", [HOST + b"connection: close\r\n", HOST + b"content-length: 0\r\n"])
async def test_headers_that_change_how_a_request_is_answered_are_always_parsed(headers: bytes) -> None:
    connections = Connections(remembers=True)
    await connections.answers([get(b"a"), get(b"a", headers), get(b"a", headers)])
    protocol, _ = connections.open()
    protocol.parser = NoParser()  # type: ignore[assignment]
    with pytest.raises(AssertionError, match="is parsed"):
        protocol.data_received(get(b"b", headers))


@pytest.mark.parametrize("on_one", [False, True])
@settings(deadline=None, max_examples=150)
@given(parts=st.lists(REQUESTS, min_size=1, max_size=6))
@example(parts=[(b"GET", b"/v1/stores/e/keys/", b"a HTTP/1.1\r\n\r\nGET /x", b"HTTP/1.1", HOST)])
@example(parts=[(b"GET", b"/v1/stores/e/metadata/", b"a", b"HTTP/1.1", HOST)])
def test_known_headers_change_no_answer(on_one: bool, parts: list[tuple[bytes, bytes, bytes, bytes, bytes]]) -> None:
    requests = [get(b"known", headers) for headers in HEADERS] + [request(*each) for each in parts]

    async def run() -> None:
        knowing, parsing = Connections(remembers=True), Connections(remembers=False)
        assert await knowing.answers(requests, on_one=on_one) == await parsing.answers(requests, on_one=on_one)
        assert knowing.app.direct == parsing.app.direct

    asyncio.run(run())


EVENTS = [each for each in vars(phases).values() if isinstance(each, Transition)]
OF_THE_GUARD = {Phase.UNREAD, Phase.IDLE_INTERNAL}


def test_every_phase_is_reached_from_the_first_one_and_left_again() -> None:
    reached = {Phase.SILENT}
    for _ in Phase:
        reached |= {event[phase] for event in EVENTS for phase in reached if phase in event}
    assert reached == set(Phase) - OF_THE_GUARD
    for phase in reached - {Phase.CLOSED}:
        assert any(event.get(phase, phase) is not phase for event in EVENTS), phase


def test_a_request_is_answered_once_and_begins_when_the_one_before_it_is_answered() -> None:
    assert not set(phases.ANSWER) & (phases.AT_REST | {Phase.HEAD, Phase.SURPLUS, Phase.LINGERING})
    assert set(phases.BEGIN) == phases.AT_REST | {Phase.CLOSED}
    assert phases.TAKE[Phase.IDLE] is phases.TAKE[Phase.SILENT] is Phase.DIRECT, "lookups take this as known"
    assert phases.ANSWER[Phase.DIRECT] is Phase.IDLE


async def test_an_illegal_transition_closes_its_connection_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(remembers=True)
    protocol, transport = connections.open()
    other, its_transport = connections.open()
    protocol.data_received(get(b"a"))
    with caplog.at_level(logging.ERROR):
        DirectExchange(protocol._reply).reply(200, b"text/plain", b"of nobody")
    assert transport.is_closed
    assert b"of nobody" not in transport.data
    protocol.data_received(get(b"b"))
    assert connections.app.direct == [b"/v1/stores/e/keys/a"]
    other.data_received(get(b"c"))
    assert its_transport.data.endswith(b"c")
    assert not its_transport.is_closed
    assert [record.getMessage() for record in caplog.records] == [
        "a connection is closed by a bug: its answer is complete in phase IDLE"
    ]
