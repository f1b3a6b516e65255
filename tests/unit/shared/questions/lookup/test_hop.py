"""The hop between router and node: it comes back as it was, and what is cut or changed is refused, never a crash."""

from __future__ import annotations

import struct
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.questions.lookup.hop import (
    ABSENT,
    FOUND,
    HOP_SLICE_GROUPS,
    MAX_LAYOUT_CHARS,
    NO_PARTITION,
    PROBLEM,
    HopGroup,
    HopKey,
    HopKeys,
    HopOutcome,
    HopReply,
    HopRequest,
    HopTrace,
    decode_in_steps,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    indexes_by_partition,
)
from understudy_shared.reads.bounds import EVERYTHING, NO_BOUND, Bound, Selection, UnknownLag
from understudy_shared.reads.hop_fields import BadHopError
from understudy_shared.reads.tokens import PageCursor, Position
from understudy_shared.telemetry.spans import Trace

CURSOR = PageCursor("visits", "l1", "00", 3, None, 7)
counts = st.integers(0, 2**48)
maybe_counts = st.none() | counts
positions = st.builds(
    Position, st.text().map(ApplicationId), st.text().map(Lineage), st.integers(0, 2**40), maybe_counts
).filter(lambda position: len(position.encode()) <= 2048)
bounds = st.just(NO_BOUND) | st.builds(
    Bound,
    max_lag=maybe_counts,
    max_staleness_ms=maybe_counts,
    min_position=st.none() | positions,
    require_active=st.booleans(),
    unknown_lag=st.none() | st.sampled_from(UnknownLag),
    selection=st.sampled_from([EVERYTHING, Selection(5), Selection(1, CURSOR, include_expired=False)]),
)
keys = st.builds(HopKey, st.integers(0, 2**32 - 1), st.binary(max_size=40))
layouts = st.text(min_size=1, max_size=MAX_LAYOUT_CHARS)
groups = st.builds(HopGroup, st.text(), st.text(), counts, bounds, st.lists(keys, min_size=1, max_size=4), layouts)
requests = st.builds(HopRequest, st.text(), counts, counts, counts, counts, st.lists(groups, max_size=3), st.just(()))
tails = st.sampled_from([b'"version":1}', b'"version":2}']) | st.binary(min_size=1, max_size=9)
bodies = st.binary(max_size=40)
outcomes = st.builds(HopOutcome, st.sampled_from([FOUND, ABSENT]), bodies, tails) | st.builds(
    HopOutcome, st.just(PROBLEM), bodies
)
replies = st.builds(HopReply, counts, counts, counts, st.lists(outcomes, max_size=5))

REQUEST = HopRequest(
    "flights",
    7,
    1,
    2,
    900,
    [
        HopGroup("a", "l1", 8, NO_BOUND, [HopKey(3, b"key one"), HopKey(4, b"")], "x1"),
        HopGroup("b", "l1", 8, Bound(max_lag=0, require_active=True), [HopKey(0, b"\x00" * 16)], "x2"),
    ],
)
TAIL = b'"version":7}'
REPLY = HopReply(
    1,
    2,
    7,
    [
        HopOutcome(FOUND, b'"found":true,', TAIL),
        HopOutcome(PROBLEM, b"{}"),
        HopOutcome(ABSENT, b'"found":false,', TAIL),
        HopOutcome(ABSENT, b"", b'"version":8}'),
    ],
)


@given(requests)
def test_a_request_comes_back_as_it_was(request: HopRequest) -> None:
    assert decode_request(encode_request(request)) == request


@given(replies)
def test_a_reply_comes_back_as_it_was(reply: HopReply) -> None:
    assert decode_reply(encode_reply(reply)) == reply


def test_a_tail_travels_once_however_many_keys_have_it() -> None:
    reply = HopReply(0, 0, 0, [HopOutcome(FOUND, b"a", TAIL), HopOutcome(FOUND, b"b", TAIL)] * 50)
    assert encode_reply(reply).count(TAIL) == 1


def test_every_truncation_and_every_longer_body_is_refused() -> None:
    request, reply = encode_request(REQUEST), encode_reply(REPLY)
    for cut in range(len(request)):
        with pytest.raises(BadHopError):
            decode_request(request[:cut])
    for longer in (request + b"\x00", request * 2):
        with pytest.raises(BadHopError):
            decode_request(longer)
    for cut in range(len(reply)):
        with pytest.raises(BadHopError):
            decode_reply(reply[:cut])
    with pytest.raises(BadHopError):
        decode_reply(reply + b"\x00")


@pytest.mark.parametrize(
    ("body", "decode", "encode"),
    [(encode_request(REQUEST), decode_request, encode_request), (encode_reply(REPLY), decode_reply, encode_reply)],
    ids=["request", "reply"],
)
def test_every_changed_byte_gives_a_hop_of_the_same_shape_or_is_refused(body: bytes, decode: Any, encode: Any) -> None:
    refused = 0
    for place in range(len(body)):
        for other in (0, 1, 0x22, 0x30, 0x7F, 0x80, 0xFF, body[place] ^ 1):
            try:
                read = decode(body[:place] + bytes([other]) + body[place + 1 :])
            except BadHopError:
                refused += 1
            else:
                assert decode(encode(read)) == read
    assert refused > len(body) / 2


def with_header(body: bytes, header: object) -> bytes:
    (length,) = struct.unpack_from("<I", body, 4)
    packed = orjson.dumps(header)
    return b"USH1" + struct.pack("<I", len(packed)) + packed + body[8 + length :]


def header_of(body: bytes) -> dict[str, object]:
    (length,) = struct.unpack_from("<I", body, 4)
    header: dict[str, object] = orjson.loads(body[8 : 8 + length])
    return header


def test_a_request_of_many_groups_is_decoded_in_slices_that_carry_its_deadline() -> None:
    groups = [HopGroup("s", "l", 1, NO_BOUND, [HopKey(0, b"k")], "x")] * (5 * HOP_SLICE_GROUPS)
    request = HopRequest("a", 0, 0, 0, 900, groups)
    assert list(decode_in_steps(encode_request(request))) == [900] * 4
    assert decode_request(encode_request(request)) == request


TRACES = (HopTrace(0, Trace("a" * 32, "b" * 16, True)), HopTrace(2, Trace("c" * 32, "d" * 16, False)))


def test_traces_travel_with_the_keys_of_their_readers() -> None:
    traced = REQUEST._replace(traces=TRACES)
    assert decode_request(encode_request(traced)) == traced
    assert decode_request(encode_request(traced)).traces == TRACES, "kept headers are not mixed up"
    assert decode_request(encode_request(REQUEST)).traces == ()


@pytest.mark.parametrize(
    "traces",
    [
        None,
        "00-a",
        [7],
        [[0, 7]],
        [[0, "no trace"]],
        [[3, TRACES[0].trace.traceparent]],
        [[-1, TRACES[0].trace.traceparent]],
        [[True, TRACES[0].trace.traceparent]],
    ],
)
def test_no_lookup_fails_by_its_trace(traces: object) -> None:
    body = encode_request(REQUEST)
    assert decode_request(with_header(body, {**header_of(body), "traces": traces})) == REQUEST


columns = st.lists(st.builds(HopKey, st.integers(0, 3), st.binary(max_size=4)), max_size=8)


@given(columns, st.slices(8))
def test_keys_as_columns_are_those_keys(items: list[HopKey], some: slice) -> None:
    columns = HopKeys.of(items)
    assert (list(columns), len(columns), list(columns[some])) == (items, len(items), items[some])
    assert [columns[index] for index in range(len(items))] == items
    assert columns.at(range(len(items))[some]) == items[some]
    assert HopKeys.of(columns) is columns


@given(st.lists(st.integers(NO_PARTITION, 3)))
def test_every_key_with_a_partition_is_among_those_of_its_partition_once(partitions: list[int]) -> None:
    found = indexes_by_partition(partitions)
    assert sorted((partition, index) for partition, indexes in found.items() for index in indexes) == sorted(
        (partition, index) for index, partition in enumerate(partitions) if partition != NO_PARTITION
    )
