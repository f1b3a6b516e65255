"""The points of the last hour that a router notes: lag, freshness and reads (pure, in slices)."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from understudy_router.admin.facts import Facts
from understudy_router.admin.reads_served import Rates
from understudy_router.admin.replica_index import WARMUP
from understudy_router.admin.snapshot import Snapshot
from understudy_shared.page.series import FRESHNESS, LAG, MAX_SERIES, READS, Key, Point, worst


def points_of(
    snapshot: Snapshot, rates: Rates, max_series: int = MAX_SERIES
) -> Generator[None, None, dict[Key, Point]]:
    """Return the points of now, in slices: of the whole, of each store, and of as many partitions as can have a
    series.
    """
    summaries = snapshot.totals.summaries
    lags = summaries.values()
    found = {
        Key(LAG): Point(worst(each.known_lag for each in lags), worst(each.known_lag_ms for each in lags)),
        Key(FRESHNESS): Point(*snapshot.freshness),
        Key(READS): Point(rates.per_s, rates.errors_per_s),
    }
    for route in snapshot.index.routes:
        summary = summaries[route.operator_id]
        found[Key(LAG, route.name)] = Point(summary.known_lag, summary.known_lag_ms)
    for key, point in _partitions(snapshot):
        if len(found) > max_series:
            break
        found[key] = point
        yield
    return found


def _partitions(snapshot: Snapshot) -> Iterator[tuple[Key, Point]]:
    index = snapshot.index
    for route in index.routes:
        for partition, task in enumerate(index.tasks_of_store(route)):
            yield Key(LAG, route.name, partition), _partition(snapshot, task)


def _partition(snapshot: Snapshot, task: int) -> Point:
    """Return the lag of the worst live replica that is not a warm-up."""
    index = snapshot.index
    live: list[Facts] = []
    for replica in index.holders(task):
        facts = snapshot.facts(replica)
        if index.role[replica] != WARMUP and facts.standing.is_live:
            live.append(facts)
    return Point(worst(each.offset_lag for each in live), worst(each.time_lag_ms for each in live))
