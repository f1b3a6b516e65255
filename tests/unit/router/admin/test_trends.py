"""Trends over batches, the pace of commits, rates of reads, restores and events: from what was seen a moment ago."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from understudy_router.admin.rates import MIN_FAILED_CALLS, LagSample, Pace, ReadRates, trend_of
from understudy_router.forwarding.answer_ages import ServedReads
from understudy_shared.cluster.node_calls import CallKind
from understudy_shared.http.problems import REFUSED_BY_BOUND
from understudy_shared.telemetry.metrics import RequestCounts


def seen(lags: Sequence[int | None], *, every_ms: float = 1000, batches: int = 1) -> list[LagSample]:
    return [LagSample(place * every_ms, 100 + place * batches, lag) for place, lag in enumerate(lags)]


@pytest.mark.parametrize(
    ("lags", "direction"),
    [
        ([0, 1, 0, 1, 0, 1, 0, 1], "steady"),
        ([5, 5, 5, 5], "steady"),
        ([0, 2, 4, 6, 8], "growing"),
        ([0, 0, 0, 0, 0, 8], "steady"),
        ([0, 0, 0, 0, 8, 6, 5, 3], "steady"),
        ([0, 9, 8, 8, 7, 7], "steady"),
        ([0, 2, 1, 3, 2, 4, 3, 5], "growing"),
        ([8, 6, 4, 2], "shrinking"),
        ([3, 2, 1, 0], "steady"),
        ([1, None, 1, 1], "unknown"),
        ([4, 2], "unknown"),
        ([], "unknown"),
    ],
)
def test_a_trend_is_the_slope_over_several_batches_and_no_sawtooth_or_step(
    lags: list[int | None], direction: str
) -> None:
    assert trend_of(seen(lags)).direction == direction


def test_the_pace_is_the_time_between_commits_however_seldom_one_looks() -> None:
    pace = Pace()
    for look in range(5):
        pace.see(look * 10_000.0, "l1", 100 + look * 20)
    assert pace.usual_ms == 500
    assert pace.silent_ms(45_000) == 5000
    pace.see(50_000, "l1", 180)
    assert pace.silent_ms(50_000) == 10_000
    pace.see(60_000, "l2", 500)
    assert pace.usual_ms is None
    assert Pace().silent_ms(5) == 0


@dataclass
class Served:
    answers: int = 0
    errors: int = 0
    refused_by_bound: int = 0
    violations: int = 0
    staleness_ms: Any = field(default_factory=lambda: ReadCounts((10, 100), (3, 2, 1)))
    stores: dict[str, Any] = field(default_factory=dict)


@dataclass
class ReadCounts:
    bounds: Sequence[float]
    counts: Sequence[int]


def test_rates_are_those_of_the_last_minute_and_unknown_before_there_are_two_looks() -> None:
    served = Served()
    reads = ReadRates(cast(ServedReads, served), {}, RequestCounts())
    assert reads.see(0).per_s is None
    served.answers, served.errors, served.refused_by_bound = 900, 10, 100
    rates = reads.see(10_000)
    assert (rates.per_s, rates.errors_per_s, rates.within_bound_percent) == (90.0, 1.0, 90.0)
    assert rates.error_percent == 0.99
    for second in range(11, 200):
        rates = reads.see(second * 1000.0)
    assert (rates.per_s, rates.within_bound_percent, rates.error_percent) == (0.0, None, None)
    assert reads.staleness() == {"le_ms": [10, 100, None], "counts": [3, 2, 1]}


def test_the_share_of_other_reads_than_lookups_that_failed_is_known_by_kind_and_leaves_mistakes_out() -> None:
    requests = RequestCounts()
    reads = ReadRates(cast(ServedReads, Served()), {}, requests)

    def end(operation: str, outcome: str, times: int, store: str = "one") -> None:
        for _ in range(times):
            requests.of(operation, store).count(outcome)

    end("scan", "deadline", 100)
    assert reads.see(0).failed_requests == {}
    end("scan", "answered", 11)
    end("count", "answered", 1, store="two")
    end("scan", "overloaded", 2)
    end("history", "no-acceptable-replica", 1)
    end("windows", "internal", 1, store="two")
    for mistake in ("bad-bound", "rate-limited", "forbidden", "version-gone", "cancelled", REFUSED_BY_BOUND):
        end("scan", mistake, 50)
        end("watch", mistake, 50)
    end("snapshot", "overloaded", MIN_FAILED_CALLS - 1)
    end("export", "store-error", MIN_FAILED_CALLS)
    end("lookup", "deadline", 50)
    assert reads.see(10_000).failed_requests == {CallKind.SCAN: 25.0, CallKind.EXPORT: 100.0}
    for second in range(11, 200):
        failed = reads.see(second * 1000.0).failed_requests
    assert failed == {}
