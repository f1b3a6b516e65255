"""How lookups become hops: what travels together, in which order outcomes come back, and what no hop exceeds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_cluster import catalogue

from understudy_router.asks import Ask, Hop, HopFailure, Outcomes, take
from understudy_router.catalogue import stores_of
from understudy_router.lane import HopCounts, Known, Lane
from understudy_shared.bounds import NO_BOUND, Bound
from understudy_shared.clock import ManualClock
from understudy_shared.hop import FOUND, HopKey, HopOutcome, HopReply, decode_request
from understudy_shared.words import HostInfo

ROUTE = stores_of(catalogue(), "d1").get("words")
OTHER = stores_of(catalogue(store="others"), "d1").get("others")
LAGS = [NO_BOUND, Bound(max_lag=1), Bound(max_lag=2)]


def ask(*rows: bytes, bound: Bound = NO_BOUND, other: bool = False, until_ms: float = 1000.0) -> Ask:
    keys = [HopKey(0, row) for row in rows]
    nobody = cast("asyncio.Future[Outcomes]", None)  # nobody waits for it
    return Ask(OTHER if other else ROUTE, bound, keys, nobody, until_ms)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 40)), max_size=30),
    alone=st.sets(st.integers(0, 29), max_size=3),
)
def test_hops_take_everything_in_order_and_none_is_too_large(sizes: list[tuple[int, int]], alone: set[int]) -> None:
    asks = [ask(*[b"r" * length] * count) for count, length in sizes]
    for index in alone & set(range(len(asks))):
        asks[index].alone = True
    waiting, taken = deque(asks), []
    while waiting:
        together = take(waiting, max_keys=10, max_bytes=100)
        assert together
        taken += together
        if len(together) > 1:
            assert sum(len(each.keys) for each in together) <= 10
            assert sum(each.row_bytes for each in together) <= 100
            assert not any(each.alone for each in together)
    assert taken == asks


@given(
    kinds=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(1, 4)), min_size=1, max_size=20),
)
def test_each_ask_gets_the_outcomes_of_its_own_keys(kinds: list[tuple[int, bool, int]]) -> None:
    asks = [
        ask(*(b"%d-%d" % (number, key) for key in range(count)), bound=LAGS[bound], other=other)
        for number, (bound, other, count) in enumerate(kinds)
    ]
    hop = Hop(asks, 0.0)
    sent = decode_request(hop.encode(application_id="flights", end_version=7, term=1, epoch=2))
    assert len(sent.groups) == len({(bound, other) for bound, other, _ in kinds})
    outcomes = [HopOutcome(FOUND, key.row) for group in sent.groups for key in group.keys]
    assert hop.keys == len(outcomes)
    shared = list(hop.shared_out(outcomes))
    assert {id(each) for each, _ in shared} == {id(each) for each in asks}
    for each, own in shared:
        assert [outcome.body for outcome in own] == [key.row for key in each.keys]
    for group in sent.groups:
        rows = {key.row for key in group.keys}
        for each in asks:
            if each.keys[0].row in rows:
                assert (each.route.name, each.bound) == (group.store, group.bound)


def test_a_hop_carries_the_time_that_its_most_patient_reader_has_left() -> None:
    hop = Hop([ask(b"a", until_ms=300), ask(b"b", until_ms=900)], 200.0)
    assert decode_request(hop.encode(application_id="f", end_version=0, term=0, epoch=0)).deadline_ms == 700


class Deaf:
    """Whoever listens to nothing."""

    def __init__(self) -> None:
        self.failures: list[HopFailure] = []

    def known(self) -> Known:
        return Known(7, 1, 1)

    def answered(self, node_id: str, reply: HopReply) -> None:
        raise AssertionError("nobody answers here")

    def failed(self, node_id: str, failure: HopFailure) -> None:
        self.failures.append(failure)


def asked(lane: Lane, keys: Sequence[HopKey], until_ms: float = 1000.0) -> asyncio.Future[Outcomes]:
    future: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
    lane.ask(Ask(ROUTE, NO_BOUND, keys, future, until_ms))
    return future


async def test_what_does_not_fit_in_the_queue_is_refused_at_once_and_the_rest_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("understudy_router.lane.MAX_WAITING_KEYS", 5)
    clock = ManualClock()
    lane = Lane("a", HostInfo("127.0.0.1", 1), application_id="f", listener=Deaf(), counts=HopCounts(), clock=clock)
    keys = [HopKey(0, b"r")] * 3
    first, second, third = asked(lane, keys), asked(lane, keys), asked(lane, keys[:2])
    assert second.done()
    assert second.result() == HopFailure("overloaded", "3 keys wait for this node")
    assert not first.done()
    assert not third.done()
    assert lane.load == 5
    await lane.close()
    assert first.result() == third.result() == HopFailure("refused", "the way to this node was closed")
    assert asked(lane, keys).result() == HopFailure("refused", "the way to this node was closed")


async def test_what_waits_longer_than_its_reader_is_a_timeout() -> None:
    clock, listener = ManualClock(), Deaf()
    lane = Lane("a", HostInfo("127.0.0.1", 1), application_id="f", listener=listener, counts=HopCounts(), clock=clock)
    soon, late = asked(lane, [HopKey(0, b"r")], until_ms=10), asked(lane, [HopKey(0, b"r")], until_ms=20)
    lane.expire(10)
    assert isinstance(soon.result(), HopFailure)
    assert soon.result()[0] == "timeout"
    assert not late.done()
    assert (lane.load, len(listener.failures)) == (1, 1)
    await lane.close()
