"""Lookups, batches and pages of one key have the same answer whether the protocol hands them over or ASGI does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.services.raw_http import RawClient
from tests.support.spark.counting_query import WORDS

from understudy_node.questions.lookup.service import NodeLookups
from understudy_shared.questions.scan.service import DirectPages
from understudy_shared.server.direct import DirectExchange, Exchange

BY_ASGI = b"content-length: 0\r\n"
"""A GET with a body is answered by ASGI."""

PACKED_BY_ASGI = b"accept-encoding: gzip\r\n"
"""An answer that may be compressed is made by ASGI."""

PASSING = re.compile(rb'"time_lag_ms":\d+')

Answer = tuple[int, dict[str, str], bytes]


class BothWays:
    """A node, and a connection to it for each way. `direct` holds the targets that were not answered by ASGI."""

    def __init__(self, node: ServedNode, clients: ExitStack) -> None:
        self.direct: list[bytes] = []
        self.pages: list[bytes] = []
        self.batches: list[bytes] = []
        self._port = node.node.host.port
        self._clients = clients
        self._connections: dict[bytes, RawClient] = {}

    def ask(self, target: bytes) -> tuple[Answer, Answer]:
        """The answers to a GET, directly and by ASGI, without what time changes."""
        return self.ask_once(target, b""), self.ask_once(target, BY_ASGI)

    def send(self, target: bytes, body: bytes) -> tuple[Answer, Answer]:
        """The answers to a batch, the same two ways."""
        length = b"content-length: %d\r\n" % len(body)
        ways = (length, length + PACKED_BY_ASGI)
        directly, by_asgi = (self.ask_once(target, headers, b"POST", body) for headers in ways)
        return directly, by_asgi

    def ask_once(self, target: bytes, headers: bytes, method: bytes = b"GET", body: bytes = b"") -> Answer:
        client = self._connections.get(headers)
        if client is None:
            client = self._connections[headers] = self._clients.enter_context(RawClient(self._port))
        client.send(b"%b %b HTTP/1.1\r\nhost: x\r\n%b\r\n%b" % (method, target, headers, body))
        status, head, body = client.reply()
        if "connection" in head:  # it was closed
            del self._connections[headers]
        masked = PASSING.sub(b'"time_lag_ms":0', body)
        return status, {name: value for name, value in head.items() if name != "content-length"}, masked


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BothWays]:
    folder = tmp_path_factory.mktemp("both-ways")
    checkpoint = HandmadeCheckpoint(folder / "checkpoint").create().add(1, 2)
    with (
        served_node(checkpoint.path, folder / "data") as node,
        pytest.MonkeyPatch.context() as patched,
        ExitStack() as clients,
    ):
        node.wait_for_version(2)
        ways = BothWays(node, clients)
        answer = NodeLookups.answer

        def watched(self: NodeLookups, target: bytes, exchange: Exchange) -> None:
            if isinstance(exchange, DirectExchange):
                ways.direct.append(target)
            answer(self, target, exchange)

        patched.setattr(NodeLookups, "answer", watched)
        page = DirectPages.answer_directly

        def watched_page(self: DirectPages, target: bytes, exchange: Exchange) -> bool:
            taken = page(self, target, exchange)
            ways.pages.extend([target] if taken else [])
            return taken

        patched.setattr(DirectPages, "answer_directly", watched_page)
        batch = NodeLookups.answer_batch

        def watched_batch(self: NodeLookups, target: bytes, body: bytes, exchange: DirectExchange) -> None:
            ways.batches.append(target)
            batch(self, target, body, exchange)

        patched.setattr(NodeLookups, "answer_batch", watched_batch)
        yield ways


WORD = WORDS[0]
TARGETS = {
    "found": f"/v1/stores/op0/keys/{WORD}",
    "absent": "/v1/stores/op0/keys/nowhere",
    "the exact form": f"/v1/stores/op0/lookup?key={quote(json.dumps([WORD]))}",
    "whole numbers as text": f"/v1/stores/op0/keys/{WORD}?longs=string",
    "a bound that holds": f"/v1/stores/op0/keys/{WORD}?max_lag=0",
    "a bound that does not": f"/v1/stores/op0/keys/{WORD}?max_staleness_ms=0",
    "a bad bound": f"/v1/stores/op0/keys/{WORD}?max_lag=none",
    "an unknown store": "/v1/stores/op9/keys/a",
}


OF_ONE_KEY = f"?prefix={quote(json.dumps([WORD]))}"


@pytest.mark.parametrize(
    "query",
    [
        *("", "?limit=1", "?prefix=%5B%5D", "?prefix=[", f"?prefix={quote(json.dumps([WORD, 1]))}", "?limit=none"),
        *(OF_ONE_KEY + more for more in ("", "&max_lag=0", "&max_staleness_ms=0", "&explain=true", "&partition=0")),
    ],
)
def test_a_page_has_the_same_answer_directly_and_by_asgi(both: BothWays, query: str) -> None:
    before = len(both.pages)
    directly, by_asgi = both.ask(f"/v1/stores/op0/scan{query}".encode())
    assert directly == by_asgi
    assert len(both.pages) - before == 1


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("op0/scan?prefix=1&prefix=2", b""),
        ("a%2Fb/scan", b""),
        ("op0/scan", PACKED_BY_ASGI),
        ("op0/scan?limit=1", PACKED_BY_ASGI),
    ],
)
def test_a_page_that_cannot_be_parsed_or_may_be_compressed_is_answered_by_asgi(
    both: BothWays, target: str, headers: bytes
) -> None:
    before = len(both.pages)
    for _ in range(2):  # with another head, and with the one that is known
        both.ask_once(f"/v1/stores/op0/keys/{WORD}".encode(), headers)
        both.ask_once(f"/v1/stores/{target}".encode(), headers)
    assert len(both.pages) == before


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_a_lookup_has_the_same_answer_directly_and_by_asgi(both: BothWays, target: str) -> None:
    before = len(both.direct)
    directly, by_asgi = both.ask(target.encode())
    assert directly == by_asgi
    assert both.direct[before:] == [target.encode()]


ONE, COMPACT = json.dumps({"keys": [[WORD]]}), "/v1/stores/op0/lookup?compact=true"
BATCHES = {
    "in full": ("/v1/stores/op0/lookup", ONE),
    "compact": (COMPACT, ONE),
    "of many keys": (COMPACT, json.dumps({"keys": [[word] for word in (*WORDS, "nowhere")] * 100})),
    "without keys": (COMPACT, json.dumps({"keys": []})),
    "of too many keys": (COMPACT, json.dumps({"keys": [[WORD]] * 1001})),
    "whole numbers as text": (COMPACT + "&longs=string", ONE),
    "a bound that holds": (COMPACT, json.dumps({"keys": [[WORD]], "bounds": {"max_lag": 0}})),
    "a bound that does not": (COMPACT, json.dumps({"keys": [[WORD]], "bounds": {"max_staleness_ms": 0}})),
    "an unknown bound": (COMPACT, json.dumps({"keys": [[WORD]], "bounds": {"lag": 0}})),
    "no JSON": (COMPACT, "{"),
    "an unknown store": ("/v1/stores/op9/lookup", ONE),
}


@pytest.mark.parametrize(("target", "body"), BATCHES.values(), ids=BATCHES.keys())
def test_a_batch_has_the_same_answer_directly_and_by_asgi(both: BothWays, target: str, body: str) -> None:
    before = len(both.batches)
    directly, by_asgi = both.send(target.encode(), body.encode())
    by_asgi[1].pop("vary", None)  # nor is a batch that is answered directly
    assert directly == by_asgi
    assert both.batches[before:] == [target.encode()]


SEGMENTS = st.one_of(
    st.sampled_from(["op0", "keys", "lookup", WORD, "%2F", "%25", "%ff", "..", ".", "", "metadata", "%6beys"]),
    st.text("ab%29?/\"[]{}:,+&=é|^`<>\\~*;'!$()@", max_size=6),
)
QUERIES = st.lists(
    st.one_of(
        st.sampled_from(["key=%5B%22a%22%5D", "max_lag=1", "longs=string", "require_active=true", "wait_ms=1", "?"]),
        st.text("ab%2=&+?é", max_size=6),
    ),
    max_size=3,
).map("&".join)


@settings(max_examples=300, deadline=None)
@given(path=st.lists(SEGMENTS, max_size=4).map("/".join), query=QUERIES)
@example(path="op0/keys/a", query="?")
def test_so_has_every_target_that_http_allows(both: BothWays, path: str, query: str) -> None:
    target = f"/v1/stores/{path}{'?' if query else ''}{query}".encode()
    directly, by_asgi = both.ask(target)
    assert directly == by_asgi
