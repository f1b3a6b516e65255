"""How lookups become hops: what travels together, in which order outcomes come back, and what no hop exceeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster.fake_cluster import catalogue

from understudy_router.cluster.catalogue import stores_of
from understudy_router.transport.node_requests import (
    MIN_HEDGE_MS,
    Hop,
    NodeRequest,
    Patience,
    Quantile,
    Reply,
    RequestQueue,
    parts_that_fit,
)
from understudy_shared.questions.lookup.hop import (
    FOUND,
    HopKey,
    HopKeys,
    HopOutcome,
    HopRequest,
    decode_request,
    encode_request,
)
from understudy_shared.reads.bounds import NO_BOUND, Bound
from understudy_shared.telemetry.spans import Trace

ROUTE = stores_of(catalogue(), "d1").get("words")
OTHER = stores_of(catalogue(store="others"), "d1").get("others")
KEYS = [HopKey(0, b"r")]
LAGS = [NO_BOUND, Bound(max_lag=1), Bound(max_lag=2)]


def ignore(_reply: Reply) -> None:
    """A reader that wants to know nothing."""


def request(*rows: bytes, bound: Bound = NO_BOUND, other: bool = False, until_ms: float = 1000.0) -> NodeRequest:
    keys = [HopKey(0, row) for row in rows]
    return NodeRequest(OTHER if other else ROUTE, bound, keys, ignore, 0.0, until_ms)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=40), st.integers(1, 100))
def test_the_keys_of_a_batch_are_parted_so_that_each_part_fits_or_is_one_key(sizes: list[int], max_bytes: int) -> None:
    keys = HopKeys([0] * len(sizes), [b"r" * size for size in sizes])
    indexes = list(range(len(keys)))[::-1]
    parts = list(parts_that_fit(keys, indexes, max_bytes=max_bytes))
    assert [index for part in parts for index in part] == indexes
    assert all(part and (len(part) == 1 or sum(sizes[index] for index in part) <= max_bytes) for part in parts)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 40)), max_size=30),
    alone=st.sets(st.integers(0, 29), max_size=3),
)
def test_hops_take_everything_in_order_and_none_is_too_large(sizes: list[tuple[int, int]], alone: set[int]) -> None:
    requests = [request(*[b"r" * length] * count) for count, length in sizes]
    for index in alone & set(range(len(requests))):
        requests[index].alone = True
    waiting, taken = RequestQueue(), []
    for each in requests:
        waiting.append(each)
    while waiting.requests:
        together = waiting.take(max_keys=10, max_bytes=100)
        assert together
        taken += together
        if len(together) > 1:
            assert sum(len(each.keys) for each in together) <= 10
            assert sum(each.row_bytes for each in together) <= 100
            assert not any(each.alone for each in together)
    assert taken == requests


@given(
    kinds=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(1, 4)), min_size=1, max_size=20),
)
def test_each_request_gets_the_outcomes_of_its_own_keys(kinds: list[tuple[int, bool, int]]) -> None:
    requests = [
        request(*(b"%d-%d" % (number, key) for key in range(count)), bound=LAGS[bound], other=other)
        for number, (bound, other, count) in enumerate(kinds)
    ]
    hop = Hop(requests, 0.0)
    sent = decode_request(encode_request(HopRequest("flights", 7, 1, 2, 100, hop.groups)))
    assert len(sent.groups) == len({(bound, other) for bound, other, _ in kinds})
    outcomes = [HopOutcome(FOUND, key.row) for group in sent.groups for key in group.keys]
    assert hop.keys == len(outcomes)
    got: list[Reply] = []
    for each in requests:
        each.on_reply = got.append
    hop.finish(outcomes)
    assert len(got) == len(requests)
    for each, own in zip(hop.requests, got, strict=True):
        assert [outcome.body for outcome in cast("Sequence[HopOutcome]", own)] == [key.row for key in each.keys]
    for group in sent.groups:
        rows = {key.row for key in group.keys}
        for each in requests:
            if each.keys[0].row in rows:
                assert (each.route.name, each.bound) == (group.store, group.bound)


def test_a_hop_lasts_until_the_deadline_of_its_most_patient_reader() -> None:
    hop = Hop([request(b"a", until_ms=300), request(b"b", until_ms=900)], 200.0)
    assert (hop.first_until_ms, hop.until_ms) == (300, 900)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["append", "drop", "take", "late", "back"]), st.integers(1, 5), st.integers(0, 9)),
        max_size=40,
    )
)
def test_a_queue_counts_the_keys_of_waiting_requests_and_sends_none_that_was_dropped(
    steps: list[tuple[str, int, int]],
) -> None:
    queue, taken = RequestQueue(), list[NodeRequest]()
    for what, size, number in steps:
        waiting = list(queue.requests)
        match what:
            case "append":
                queue.append(NodeRequest(ROUTE, NO_BOUND, KEYS * size, ignore, 0.0, float(number)))
            case "drop" if waiting:
                queue.drop(waiting[number % len(waiting)])
            case "take":
                taken = queue.take()
                assert all(each.is_wanted for each in taken)
            case "late":
                late = queue.take_late(number)
                assert all(each.is_wanted for each in late)
                assert all(each.until_ms <= number for each in late)
                assert all(each.until_ms > number for each in queue.requests)
            case "back":
                queue.put_back(taken)
                taken = []
        assert queue.keys == sum(len(each.keys) for each in queue.requests)


@given(sizes=st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_each_trace_stands_at_the_first_key_of_its_request(sizes: list[tuple[int, bool, bool]]) -> None:
    requests = []
    for number, (count, other, is_traced) in enumerate(sizes):
        requests.append(request(*(b"%d-%d" % (number, key) for key in range(count)), other=other))
        requests[-1].trace = Trace(f"{number + 1:032x}", "1" * 16, True) if is_traced else None
    hop = Hop(requests, 0.0)
    rows = [key.row for group in hop.groups for key in group.keys]
    traces = hop.traces
    assert {rows[index]: trace.trace_id for index, trace in traces} == {
        each.keys[0].row: each.trace.trace_id for each in requests if each.trace is not None
    }
    assert len(traces) == sum(is_traced for _, _, is_traced in sizes)


@given(took=st.lists(st.floats(0.2, 50_000), min_size=20, max_size=400))
def test_the_estimate_is_the_p95_or_at_most_a_bucket_above_it(took: list[float]) -> None:
    quantile = Quantile()
    for each in took:
        quantile.add(each)
    exact = sorted(took)[math.ceil(len(took) * 0.95) - 1]
    estimate = quantile.estimate_ms()
    assert estimate is not None
    assert exact * 0.999 <= estimate <= exact * 1.201


@given(took=st.lists(st.floats(0, 1e6), max_size=100), limit_ms=st.floats(1, 1000), is_active=st.booleans())
def test_a_hedge_waits_no_longer_than_configured_and_never_shorter_than_a_pause_lasts(
    took: list[float], limit_ms: float, is_active: bool
) -> None:
    patience = Patience(hedge_after_ms=limit_ms)
    for each in took:
        patience.took(each, is_active=is_active)
    assert MIN_HEDGE_MS <= patience.hedge_ms(is_active=is_active) <= max(limit_ms, MIN_HEDGE_MS)
