"""Any bytes as a hop, or as its reply, are answered, or refused by type; nothing else is raised."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, MutableMapping, Sequence
from random import Random
from typing import Any

import orjson
import pytest
from tests.fuzz.hunting import MEMORY_BASE, MEMORY_PER_BYTE, hunt, peak_bytes, sizes
from tests.fuzz.mutation import bad_bytes, bad_document
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.hop_client import group_of, keys_of, request_of
from tests.support.cluster.served_node import ServedNode, served_node

from understudy_node.http.app import create_app
from understudy_router.transport.client_context import decoded_reply
from understudy_shared.cluster.wire import HopFailure, WireReply
from understudy_shared.questions.lookup.hop import (
    MAX_HOP_KEYS,
    PATH,
    HopOutcome,
    HopReply,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.hop_fields import BadHopError

VERSION = 2
REFUSALS = {"bad-request", "too-large", "deadline"}
"""A hop that is longer than one slice, and whose deadline is 0, is refused by the last."""

TAIL = b'"version":7}\n'
PROBLEM = b'{"type":"overloaded","title":"x","status":429,"detail":"busy","candidates":[{"reason":"dead"}]}'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    folder = tmp_path_factory.mktemp("hops")
    checkpoint = HandmadeCheckpoint(folder / "checkpoint").create().add(1, VERSION)
    with served_node(checkpoint.path, folder / "data") as node:
        node.wait_for_version(VERSION)
        yield node


def with_header(body: bytes, change: Any) -> bytes:
    """The same packed parts behind another header of any length."""
    length = struct.unpack_from("<I", body, 4)[0]
    header: bytes = change(body[8 : 8 + length])
    return body[:4] + struct.pack("<I", len(header)) + header + body[8 + length :]


def bad_hops(good: Sequence[bytes]) -> Any:
    def make(rng: Random, count: int) -> list[bytes]:
        made = []
        for _ in range(count):
            body = rng.choice(good)
            if rng.random() < 0.7:
                body = with_header(body, lambda header: bad_document(header, rng))
            made.append(bad_bytes(body, rng) if rng.random() < 0.4 else body)
        return made

    return make


async def asked(app: Any, body: bytes) -> tuple[int, bytes]:
    status, parts = 0, []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    scope = {"type": "http", "method": "POST", "raw_path": PATH.encode(), "path": PATH, "query_string": b""}
    await app(scope | {"headers": []}, receive, send)
    return status, b"".join(parts)


def good_requests(served: ServedNode) -> list[bytes]:
    keys = keys_of(served, [["word-0"], ["word-1"], ["absent"]])
    bounded = group_of(served, keys[:1], bound=Bound(max_lag=1, require_active=True))
    plain = group_of(served, keys)
    return [encode_request(request_of(served, plain)), encode_request(request_of(served, bounded, plain))]


@sizes(60_000)
def test_no_hop_is_answered_by_anything_but_outcomes_or_a_problem(inputs: int, served: ServedNode) -> None:
    app = create_app(served.node)

    async def attempt(batch: Sequence[bytes]) -> None:
        for body in batch:
            status, answer = await asked(app, body)
            if status == 200:
                read = decode_request(body)
                assert decode_request(encode_request(read)) == read
                keys = sum(len(group.keys) for group in read.groups)
                assert len(decode_reply(answer).outcomes) == keys
            else:
                assert orjson.loads(answer)["type"] in REFUSALS, answer

    hunt("hop", inputs, bad_hops(good_requests(served)), lambda batch: asyncio.run(attempt(batch)))


@sizes(60_000)
def test_no_reply_of_a_node_is_anything_but_outcomes_or_a_failure(inputs: int) -> None:
    outcomes = [HopOutcome(0, b'"found":true,', TAIL), HopOutcome(1, b"", TAIL), HopOutcome(2, PROBLEM)]
    good = [encode_reply(HopReply(1, 1, 7, outcomes)), encode_reply(HopReply(0, 0, 0, []))]
    hops = bad_hops(good)

    def make(rng: Random, count: int) -> list[bytes]:
        return [*hops(rng, count // 2), *(bad_document(PROBLEM, rng) for _ in range(count - count // 2))]

    def attempt(batch: Sequence[bytes]) -> None:
        for body in batch:
            for status in (200, 429, 500):
                reply = decoded_reply(WireReply(status, body), keys=3)
                assert isinstance(reply, HopFailure) or decode_reply(encode_reply(reply)) == reply
                if isinstance(reply, HopFailure):
                    assert len(f"{reply.reason}{reply.detail}") < 2000, "it is kept with the events, and shown"

    hunt("reply", inputs, make, attempt)


def header_of(header: bytes, rest: bytes = b"") -> bytes:
    return b"USH1" + struct.pack("<I", len(header)) + header + rest


def both(count: bytes) -> bytes:
    """A header whose counts, as a request's and as a reply's, are this."""
    return b'{"count":' + count + b',"tails":[],"groups":[{"count":' + count + b"}]}"


EXTREME = {
    "deep": header_of(b'{"groups":' + b"[" * 900 + b"]" * 900 + b"}"),
    "deeper": header_of(b'{"count":' + b"[" * 1_000_000),
    "a deep count": header_of(both(b"[" * 1000 + b"]" * 1000)),
    "a long count": header_of(both(b"[" + b"1," * 1_000_000 + b"1]")),
    "as many keys as may be": header_of(both(b"%d" % MAX_HOP_KEYS), bytes(40_000)),
    "more keys": header_of(both(b"18446744073709551615")),
    "a long store": header_of(b'{"count":0,"groups":[{"count":0,"store":"' + b"x" * 4_000_000 + b'"}]}'),
    "zeros": bytes(8 * 1024 * 1024),
}


@pytest.mark.parametrize("body", EXTREME.values(), ids=EXTREME)
@pytest.mark.parametrize("decode", [decode_request, decode_reply])
def test_the_largest_hop_costs_a_known_multiple_of_its_size(body: bytes, decode: Any) -> None:
    def attempt() -> None:
        with pytest.raises(BadHopError) as caught:
            decode(body)
        assert len(str(caught.value)) < 1000

    assert peak_bytes(attempt) < MEMORY_BASE + MEMORY_PER_BYTE * len(body)
