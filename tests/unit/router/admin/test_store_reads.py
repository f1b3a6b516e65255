"""What readers of a store got lately: the share within its bound and the age, unknown where nobody read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy_router.admin.reads_served import (
    NOTHING_SERVED,
    WINDOW_MS,
    StoreCounts,
    StoreReadRates,
    StoreServed,
    served_between,
)
from understudy_router.forwarding.served import StoreReads
from understudy_shared.telemetry.histogram import STALENESS_BOUNDS_MS


class Reads(StoreReads):
    def __init__(self, *, answers: int = 0, refused_by_bound: int = 0) -> None:
        super().__init__()
        self.answers, self.refused_by_bound = answers, refused_by_bound

    def read(self, *ages_ms: float) -> None:
        for age_ms in ages_ms:
            self.answers += 1
            self.staleness_ms.observe(age_ms)


def test_before_anybody_reads_nothing_is_known_and_a_store_that_nobody_reads_is_left_out() -> None:
    assert StoreReadRates().see(0, {}) == {}
    assert StoreReadRates().see(0, {"one": Reads()}) == {"one": NOTHING_SERVED}


def test_the_share_within_the_bound_counts_what_was_refused_by_it() -> None:
    reads, rates = Reads(), StoreReadRates()
    rates.see(0, {"one": reads})
    reads.read(3, 3, 20)
    reads.refused_by_bound = 1
    assert rates.see(1000, {"one": reads}) == {"one": StoreServed(75.0, 25)}


def test_an_age_above_every_bound_is_more_than_the_last_one() -> None:
    reads = Reads()
    reads.read(10**9)
    assert StoreReadRates().see(0, {"one": reads})["one"] == StoreServed(
        100.0, STALENESS_BOUNDS_MS[-1], staleness_is_more=True
    )


def test_answers_of_unknown_age_have_no_age_and_are_within_their_bound() -> None:
    assert StoreReadRates().see(0, {"one": Reads(answers=5)})["one"] == StoreServed(100.0)


def test_what_was_two_minutes_ago_counts_no_more() -> None:
    reads, rates = Reads(refused_by_bound=9), StoreReadRates()
    reads.read(50_000)
    assert rates.see(0, {"one": reads})["one"].within_bound_percent == 10.0
    found = NOTHING_SERVED
    for look in range(1, 2 * WINDOW_MS // 1000 + 1):
        found = rates.see(look * 1000.0, {"one": reads})["one"]
    assert found == NOTHING_SERVED
    reads.read(1)
    assert rates.see(2 * WINDOW_MS + 1000.0, {"one": reads})["one"] == StoreServed(100.0, 1)


@given(
    before=st.lists(st.floats(0, 1e6), max_size=20),
    since=st.lists(st.floats(0, 1e6), max_size=20),
    refused=st.integers(0, 20),
)
def test_only_what_came_in_between_is_said(before: list[float], since: list[float], refused: int) -> None:
    reads = Reads(refused_by_bound=3)
    reads.read(*before)
    earlier = StoreCounts(reads.answers, reads.refused_by_bound, tuple(reads.staleness_ms.counts))
    reads.read(*since)
    reads.refused_by_bound += refused
    now = StoreCounts(reads.answers, reads.refused_by_bound, tuple(reads.staleness_ms.counts))
    found = served_between(earlier, now)
    asked = len(since) + refused
    assert found.within_bound_percent == (round(100 * len(since) / asked, 2) if asked else None)
    if since:
        assert found.staleness_p99_ms is not None
        assert found.staleness_is_more == (max(since) > STALENESS_BOUNDS_MS[-1])
        assert found.staleness_is_more or found.staleness_p99_ms >= max(since)
    else:
        assert (found.staleness_p99_ms, found.staleness_is_more) == (None, False)
