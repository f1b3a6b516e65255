"""Samples a router's tables for all reports, and keeps what needs more than one sample.

`Looking` makes snapshots: callers within a tick share one, unless the cluster changed since. `Observer` keeps what
needs more than one snapshot: trends, rates, events, the last hour.

Events are those that the tables note, changes from one check to the next, and differences between two catalogues. The
tables are checked each second while a viewer watches, else every ten; shorter events are missed. Each kind of event is
one line, which names a few things and counts the others: a thousand nodes or stores do not push everything else out of
the list.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from understudy_router.admin.facts import WARMUP, Facts, ReplicaIndex
from understudy_router.admin.indicators import blind_nodes, health_of, quiet_query
from understudy_router.admin.node_reports import Disagreements, RestoreTracker
from understudy_router.admin.rates import Pace, Rates, ReadRates, Trends
from understudy_router.admin.snapshot import About, ClusterSnapshot, Document, Observed, gather
from understudy_router.cluster.catalogue import CatalogueStores, StoreRoute
from understudy_router.cluster.readiness import Cause
from understudy_router.cluster.tables import MAX_EVENTS, TableEvent
from understudy_router.forwarding.answer_ages import ServedReads
from understudy_router.router import Router
from understudy_shared.auth.access import Exposure
from understudy_shared.base.background import in_slices
from understudy_shared.base.texts import named
from understudy_shared.cluster.node_calls import CallKind, CallOutcome
from understudy_shared.http.health import Indicator
from understudy_shared.page.series import FRESHNESS, LAG, MAX_SERIES, READS, History, Key, Point, worst
from understudy_shared.telemetry.metrics import RequestCounts


def points_of(
    snapshot: ClusterSnapshot, rates: Rates, max_series: int = MAX_SERIES
) -> Generator[None, None, dict[Key, Point]]:
    """Return the points of now, in slices: of the whole, of each store, and of partitions while there is room."""
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


def _partitions(snapshot: ClusterSnapshot) -> Iterator[tuple[Key, Point]]:
    index = snapshot.index
    for route in index.routes:
        for partition, task in enumerate(index.tasks_of_store(route)):
            yield Key(LAG, route.name, partition), _partition(snapshot, task)


def _partition(snapshot: ClusterSnapshot, task: int) -> Point:
    """Return the lag of the worst live replica that is not a warm-up."""
    index = snapshot.index
    live: list[Facts] = []
    for replica in index.holders(task):
        facts = snapshot.facts(replica)
        if index.role[replica] != WARMUP and facts.standing.is_live:
            live.append(facts)
    return Point(worst(each.offset_lag for each in live), worst(each.time_lag_ms for each in live))


TICK_MS = 1000
"""Oldest snapshot, in ms, that is shown to a person."""

MAX_WALKS = 4
WALK_KEPT_MS = 60_000
"""Most snapshots that are kept for the next pages of a list, and the milliseconds that they are kept after the last
page.
"""


MAX_SHOWN = 100


MAX_CHARACTERS = 80
"""Most characters of a name, type or reason that a line shows: the type of a struct may be very long."""

KINDS = ("new-history", "store-added", "store-removed", "schema-changed")

Line = tuple[str, str]
"""A kind of event, and its text."""


def schema_changes(before: CatalogueStores | None, after: CatalogueStores | None) -> Iterator[Line]:
    """Yield lines for the changes. While one of the two catalogues is unknown, no change is known either."""
    if before is None or after is None or before.digest == after.digest:
        return
    if before.lineage != after.lineage:
        yield "new-history", f"the query began anew: its checkpoint is now {after.lineage}, before {before.lineage}"
    added = sorted(after.by_name.keys() - before.by_name.keys())
    yield from _line("store-added", [_cut(name) for name in added])
    reasons = {each.get("store"): str(each["reason"]) for each in after.not_served}
    gone = sorted(before.by_name.keys() - after.by_name.keys())
    because = {name: f": {_cut(reasons[name])}" if name in reasons else "" for name in gone}
    yield from _line("store-removed", [_cut(name) + why for name, why in because.items()])
    stayed = sorted(after.by_name.keys() & before.by_name.keys())
    found = {name: list(differences(before.by_name[name], after.by_name[name])) for name in stayed}
    changed = [f"{_cut(name)}: {named(words, between='; ')}" for name, words in found.items() if words]
    yield from _line("schema-changed", changed)


def differences(before: StoreRoute, after: StoreRoute) -> Iterator[str]:
    """Yield the changes in a store."""
    if before.operator_id != after.operator_id:
        yield f"operator {after.operator_id}, before {before.operator_id}"
    if before.partitions != after.partitions:
        yield f"{after.partitions} partitions, before {before.partitions}"
    for part in ("key", "value", "result"):
        old, new = before.shown.get(part, ()), after.shown.get(part, ())
        if old != new:
            yield from _columns(part, _types(old), _types(new))


def _columns(part: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name, kind in new.items():
        if name not in old:
            yield f"new {part} column {_cut(name)}, {_cut(kind)}"
        elif kind != old[name]:
            yield f"{part} column {_cut(name)} is {_cut(kind)}, before {_cut(old[name])}"
    for name in old:
        if name not in new:
            yield f"{part} column {_cut(name)} is gone"
    if old == new and list(old) != list(new):
        yield f"{part} columns in another order"


def _types(columns: Any) -> dict[str, str]:
    """Return types by name. The contents of value columns are only for people, and unchecked."""
    shown: Iterable[Mapping[str, object]] = columns
    return {str(column.get("name")): str(column.get("type")) for column in shown}


def _line(kind: str, words: Sequence[str]) -> Iterator[Line]:
    if words:
        yield kind, named(words)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


class EventLog:
    """The last events. The text of each time is made once: made again, it could differ by a microsecond, because two
    clocks never agree exactly.

    More events may happen between two checks than the tables keep; then as many numbers are skipped as events can be
    missing.
    """

    def __init__(self) -> None:
        self._last: TableEvent | None = None
        self._known = Known()
        self._happened: deque[Document] = deque(maxlen=MAX_SHOWN)
        self._next = 1

    def see(self, snapshot: ClusterSnapshot, quiet: Indicator | None = None) -> list[Document]:
        """Take in the events that the tables keep now, and the changes since the last check. Return the newest
        first.
        """
        events = snapshot.events
        places = [place for place, event in enumerate(events) if event is self._last]
        if not places and self._last is not None and events:
            self._next += MAX_EVENTS
        for event in events[places[-1] + 1 if places else 0 :]:
            self._note(snapshot.about.wall_text(event.at_ms), event.event, event.detail)
        self._last = events[-1] if events else self._last
        self._known, lines = changes(self._known, snapshot, quiet)
        for kind, detail in lines:
            self._note(snapshot.about.wall_text(snapshot.about.now_ms), kind, detail)
        return list(reversed(self._happened))

    def _note(self, at: str | None, event: str, detail: str) -> None:
        self._happened.append({"id": self._next, "at": at, "event": event, "detail": detail})
        self._next += 1


class Draining(NamedTuple):
    """A live node that drains. `holds`: whether the assignment still gives it any task."""

    incarnation: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Known:
    """The state at the last check, to compare with at the next."""

    draining: Mapping[str, Draining] = field(default_factory=dict)
    stores: CatalogueStores | None = None
    conditions: frozenset[str] = frozenset()
    """The conditions that hold, by the name of the event that began them."""
    quiet_at: tuple[str | None, int] = (None, 0)
    """History and version when the query was last seen to be quiet."""


_ENDINGS = {
    "bus-unheard": ("bus-heard", "Redis carries again what the nodes say"),
    "bus-refuses-writes": ("bus-takes-writes", "no node says any more that Redis refuses what it writes"),
    "lag-unknown": ("lag-known", "a node confirms the end of the commit log"),
    "query-quiet": ("query-commits", "the query commits again, or began anew"),
}
"""The event that ends a condition and its text, by the event that begins it."""

EVENTS = ("drain", "drained", "drain-undone", *KINDS, *_ENDINGS, *(ended for ended, _ in _ENDINGS.values()))
"""Every kind of event that is found here."""


def changes(known: Known, snapshot: ClusterSnapshot, quiet: Indicator | None) -> tuple[Known, list[Line]]:
    """Return the present state, and the events since `known`. `quiet`: the query has stopped committing as usual."""
    end = (snapshot.lineage, snapshot.end_version)
    present = _conditions(snapshot, quiet, has_moved=end != known.quiet_at)
    conditions = {event for event in _ENDINGS if present.get(event, "") is None and event in known.conditions}
    conditions |= {event for event, why in present.items() if why is not None}
    draining = dict(_draining(snapshot))
    stores = snapshot.index.stores or known.stores
    lines = [
        *_drains(known.draining, draining, snapshot),
        *schema_changes(known.stores, stores),
        *((event, why) for event, why in present.items() if why is not None and event not in known.conditions),
        *(_ENDINGS[event] for event in _ENDINGS if event in known.conditions and event not in conditions),
    ]
    return Known(draining, stores, frozenset(conditions), known.quiet_at if quiet is None else end), lines


def _conditions(snapshot: ClusterSnapshot, quiet: Indicator | None, *, has_moved: bool) -> Mapping[str, str | None]:
    """Return why each condition holds; None for one that cannot be judged now: it counts as before."""
    about, found = snapshot.about, dict[str, str | None]()
    is_any_live = bool(snapshot.heartbeats)
    if about.bus_lost_why is not None or about.unheard is not None:
        found["bus-unheard"] = None if about.bus_lost_why is not None else about.unheard
    refused = about.causes.get(Cause.WRITES_REFUSED)
    if refused is not None or not is_any_live:
        found["bus-refuses-writes"] = refused
    if not snapshot.end_confirmed:
        is_told = is_any_live and snapshot.end_version > 0
        blind = blind_nodes(snapshot)
        who = f": {named(blind)} cannot read the checkpoint" if blind else ""
        found["lag-unknown"] = f"no node confirms the end of the commit log{who}" if is_told else None
        found["query-quiet"] = None
    elif quiet is not None or not has_moved:
        # While the end does not move, a quiet query stays quiet, although its pace may be forgotten when nodes restart.
        found["query-quiet"] = None if quiet is None else f"{quiet.symptom}: {quiet.cause}"
    return found


def _draining(snapshot: ClusterSnapshot) -> Iterator[tuple[str, Draining]]:
    assignment, holders = snapshot.assignment, snapshot.index.number_of
    for beat in snapshot.heartbeats:
        if beat.state == "draining":
            yield beat.node_id, Draining(beat.incarnation, assignment is None or beat.node_id in holders)


def _drains(before: Mapping[str, Draining], now: Mapping[str, Draining], snapshot: ClusterSnapshot) -> Iterator[Line]:
    """Yield lines for drains that began, ended, or were undone. A node that left or died has an event of its own."""
    # A drain belongs to a process: comparing incarnations tells an undone drain from a node that was started again.
    begun = [node_id for node_id in now if node_id not in before]
    if begun:
        yield "drain", f"{named(begun)}: somebody asked for it; other nodes take over what it has"
    held = {node_id for node_id, each in before.items() if each.holds}
    empty = [node_id for node_id, each in now.items() if not each.holds and node_id in held]
    if empty:
        yield "drained", f"{named(empty)}: nothing is left there, it may be stopped"
    back = [beat for beat in snapshot.heartbeats if beat.node_id in before and beat.node_id not in now]
    undone = [beat.node_id for beat in back if beat.incarnation == before[beat.node_id].incarnation]
    if undone:
        yield "drain-undone", f"{named(undone)}: somebody took the drain back"
    anew = [beat.node_id for beat in back if beat.node_id not in undone]
    if anew:
        yield "drain-undone", f"{named(anew)}: it was started again, and a drain ends with its process"


class Looking:
    """The snapshots of one router. `gathers` counts them."""

    def __init__(
        self, router: Router, causes: Callable[[], Mapping[str, str]] | None = None, exposure: Exposure | None = None
    ) -> None:
        """Begin without a snapshot. `causes` returns why the process is degraded, by default the router's own causes;
        `exposure` says what of the router other machines can reach.
        """
        self.gathers = 0
        self._router = router
        self._causes = causes or router.causes
        self._exposure = exposure
        self._last: ClusterSnapshot | None = None
        self._gathering = asyncio.Lock()
        self._walks: OrderedDict[int, tuple[ClusterSnapshot, float]] = OrderedDict()
        # Ticks of another process, or of this one before it started again, must never be taken for its own.
        self._tick = router.clock.wall_us() // 1_000_000 * 1_000_000 + random.randrange(1_000_000)  # noqa: S311

    async def snapshot(self, *, max_age_ms: float = TICK_MS) -> ClusterSnapshot:
        """Return a snapshot of now, or one at most `max_age_ms` old if the cluster did not change since."""
        async with self._gathering:
            if self._last is None or not self._is_recent(self._last, max_age_ms):
                self._last = await self._gathered()
            return self._last

    def keep(self, snapshot: ClusterSnapshot) -> None:
        """Keep a snapshot for the next pages of a list."""
        self._walks[snapshot.tick] = (snapshot, self._router.now_ms())
        self._walks.move_to_end(snapshot.tick)
        while len(self._walks) > MAX_WALKS:
            self._walks.popitem(last=False)

    def kept(self, tick: int) -> ClusterSnapshot | None:
        """Return the snapshot of that tick, if it is still kept."""
        now_ms = self._router.now_ms()
        for old in [tick for tick, (_, used_ms) in self._walks.items() if now_ms - used_ms > WALK_KEPT_MS]:
            del self._walks[old]
        found = self._walks.get(tick)
        return None if found is None else found[0]

    def _is_recent(self, snapshot: ClusterSnapshot, max_age_ms: float) -> bool:
        router = self._router
        is_same = snapshot.changes == router.tables.changes and snapshot.index.stores is router.watcher.catalogue.stores
        return is_same and router.now_ms() - snapshot.about.now_ms <= max_age_ms

    def about(self) -> About:
        """Return what is known now apart from the tables."""
        router = self._router
        return About(
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

    async def _gathered(self) -> ClusterSnapshot:
        self.gathers += 1
        self._tick += 1
        router, index = self._router, None if self._last is None else self._last.index
        return await in_slices(gather(router.tables, router.watcher.catalogue.stores, self.about(), index))


class Observer:
    """The memory of what was seen; it takes each snapshot in once."""

    def __init__(
        self, served: ServedReads, calls: Mapping[tuple[CallKind, CallOutcome], int], requests: RequestCounts
    ) -> None:
        self.history = History()
        self._reads, self._trends, self._pace = ReadRates(served, calls, requests), Trends(), Pace()
        self._restoring, self._disagreements, self._events = RestoreTracker(), Disagreements(), EventLog()
        self.last: Observed | None = None
        """The last check, at most ten seconds ago; None before the first."""
        self._recorded: ReplicaIndex | None = None
        self._seeing = asyncio.Lock()

    async def see(self, snapshot: ClusterSnapshot) -> Observed:
        """Take a snapshot in, and return all observations until then."""
        async with self._seeing:
            last = self.last
            if last is None or last.snapshot.tick < snapshot.tick:
                self.last = last = await in_slices(self._observed(snapshot))
                await self._record(last)
            return last

    def _observed(self, snapshot: ClusterSnapshot) -> Generator[None, None, Observed]:
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
