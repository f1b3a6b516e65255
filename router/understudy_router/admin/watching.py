"""Looks at a router's tables for all reports, and a memory of what was seen.

`Looking` makes snapshots: callers within a tick share one, unless the cluster changed since. `Observer` keeps what
needs more than one look: trends, rates, events, the last hour.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace

from understudy_router.admin.events import EventLog
from understudy_router.admin.history import History, points_of
from understudy_router.admin.indicators import health_of
from understudy_router.admin.node_reports import Disagreements, RestoreTracker
from understudy_router.admin.reader_faults import quiet_query
from understudy_router.admin.reads_served import ReadRates
from understudy_router.admin.replica_index import ReplicaIndex
from understudy_router.admin.snapshot import About, Observed, Snapshot, gather
from understudy_router.admin.trends import Pace, Trends
from understudy_router.forwarding.served import ServedReads
from understudy_router.router import Router
from understudy_shared.auth.binding import Exposure
from understudy_shared.base.slices import in_slices

TICK_MS = 1000
"""Oldest snapshot, in ms, that is shown to a person."""

MAX_WALKS = 4
WALK_KEPT_MS = 60_000
"""Most snapshots that are kept for the next pages of a list, and the milliseconds for which they are kept after the
last page."""


class Looking:
    """The snapshots of one router. `gathers` counts them."""

    def __init__(
        self, router: Router, causes: Callable[[], Mapping[str, str]] | None = None, exposure: Exposure | None = None
    ) -> None:
        """Begin without a snapshot. `causes` returns why the process is degraded, by default as far as the router
        knows; `exposure` says what of the router other machines can reach.
        """
        self.gathers = 0
        self._router = router
        self._causes = causes or router.causes
        self._exposure = exposure
        self._last: Snapshot | None = None
        self._gathering = asyncio.Lock()
        self._walks: OrderedDict[int, tuple[Snapshot, float]] = OrderedDict()
        # Ticks of another process, or of this one before it started again, must never be taken for its own.
        self._tick = router.clock.wall_us() // 1_000_000 * 1_000_000 + random.randrange(1_000_000)  # noqa: S311

    async def snapshot(self, *, max_age_ms: float = TICK_MS) -> Snapshot:
        """Return a snapshot of now, or one at most `max_age_ms` old if the cluster did not change since."""
        async with self._gathering:
            if self._last is None or not self._is_recent(self._last, max_age_ms):
                self._last = await self._gathered()
            return self._last

    def keep(self, snapshot: Snapshot) -> None:
        """Keep a snapshot for the next pages of a list."""
        self._walks[snapshot.tick] = (snapshot, self._router.now_ms())
        self._walks.move_to_end(snapshot.tick)
        while len(self._walks) > MAX_WALKS:
            self._walks.popitem(last=False)

    def kept(self, tick: int) -> Snapshot | None:
        """Return the snapshot of that tick, if it is still kept."""
        now_ms = self._router.now_ms()
        for old in [tick for tick, (_, used_ms) in self._walks.items() if now_ms - used_ms > WALK_KEPT_MS]:
            del self._walks[old]
        found = self._walks.get(tick)
        return None if found is None else found[0]

    def _is_recent(self, snapshot: Snapshot, max_age_ms: float) -> bool:
        router = self._router
        is_same = snapshot.changes == router.tables.changes and snapshot.index.stores is router.watcher.catalogue.stores
        return is_same and router.now_ms() - snapshot.about.now_ms <= max_age_ms

    async def _gathered(self) -> Snapshot:
        self.gathers += 1
        self._tick += 1
        router, index = self._router, None if self._last is None else self._last.index
        about = About(
            tick=self._tick,
            now_ms=router.now_ms(),
            now_us=router.clock.wall_us(),
            application_id=router.settings.application_id,
            router=router.host,
            router_id=router.settings.name,
            unheard=router.watcher.silent_nodes.unheard(),
            bus_lost_why=router.watcher.bus_lost_why,
            not_ready=tuple(router.not_ready()),
            causes=self._causes(),
            exposure=self._exposure,
        )
        return await in_slices(gather(router.tables, router.watcher.catalogue.stores, about, index))


class Observer:
    """The memory of what was seen; it takes each snapshot in once."""

    def __init__(self, served: ServedReads) -> None:
        self.history = History()
        self._reads, self._trends, self._pace = ReadRates(served), Trends(), Pace()
        self._restoring, self._disagreements, self._events = RestoreTracker(), Disagreements(), EventLog()
        self.last: Observed | None = None
        """The last look, at most ten seconds ago; None before the first."""
        self._recorded: ReplicaIndex | None = None
        self._seeing = asyncio.Lock()

    async def see(self, snapshot: Snapshot) -> Observed:
        """Take a snapshot in, and return all observations until then."""
        async with self._seeing:
            last = self.last
            if last is None or last.snapshot.tick < snapshot.tick:
                self.last = last = await in_slices(self._observed(snapshot))
                await self._record(last)
            return last

    def _observed(self, snapshot: Snapshot) -> Generator[None, None, Observed]:
        now_ms, summaries = snapshot.about.now_ms, snapshot.totals.summaries
        lags = [(route.name, summaries[route.operator_id].known_lag) for route in snapshot.index.routes]
        self._trends.see(now_ms, snapshot.end_version, lags)
        if snapshot.end_version:
            self._pace.see(now_ms, snapshot.lineage, snapshot.end_version)
        yield
        seen = Observed(
            snapshot,
            rates=self._reads.see(now_ms),
            staleness=self._reads.staleness(),
            served=self._reads.of_stores(now_ms),
            trends=(yield from self._trends.of_all(store for store, _ in lags)),
            usual_commit_ms=self._pace.usual_ms,
            silent_ms=self._pace.silent_ms(now_ms),
            disagreements=self._disagreements.see(snapshot),
            restores=(yield from self._restoring.see(snapshot)),
        )
        yield
        health = yield from health_of(seen, None if self.last is None else self.last.health)
        return replace(seen, health=health, events=self._events.see(snapshot, quiet_query(seen)))

    async def _record(self, observed: Observed) -> None:
        """Take a point of the last hour, when one is due."""
        now_ms, index = observed.snapshot.about.now_ms, observed.snapshot.index
        if self.history.is_due(now_ms) or index is not self._recorded:
            self._recorded = index  # another index may have partitions without a point
            points = await in_slices(points_of(observed.snapshot, observed.rates))
            self.history.note(now_ms, points)
