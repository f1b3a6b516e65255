"""Deltas: applied to what a viewer has they give exactly what there is, of one tick or many; noise is not sent. The
feed: one look for all viewers, merged deltas for the slow, and an end for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.clock import ManualClock
from tests.support.cluster.fake_cluster import until
from tests.support.router.snapshots import APPLIED, NODES, assignments, finished, snapshot_of, stores_named, tables_with
from tests.support.router.tables import assigned, beat, task
from tests.support.services.event_streams import applied

from understudy_router.admin import overview as module
from understudy_router.admin.indicators import health_of
from understudy_router.admin.overview import MAX_KEPT, Overview, overview_of
from understudy_router.admin.safe_to_stop import losses_of_all
from understudy_router.admin.snapshot import ClusterSnapshot, Observed
from understudy_router.cluster.tables import Tables
from understudy_shared.base.background import Supervisor
from understudy_shared.bus.messages import Applied
from understudy_shared.http.health import HealthReport, Indicator
from understudy_shared.page import feed
from understudy_shared.page.feed import Drawings, OverviewDocument, OverviewFeed, Viewer
from understudy_shared.page.replicas import PageQuery
from understudy_shared.reads.bounds import NO_BOUND

PARTITIONS = 3
STORES = stores_named({"one": 0, "two": 0, "three": 3}, partitions=PARTITIONS)


def overview(snapshot: ClusterSnapshot, before: Overview | None = None) -> Overview:
    seen = Observed(snapshot)
    seen = replace(seen, health=replace(finished(health_of(seen)), since_us={}))
    return finished(overview_of(seen, finished(losses_of_all(snapshot, lambda _: NO_BOUND)), {}, before))


def in_order(document: dict[str, Any]) -> dict[str, Any]:
    rows = sorted(document["grid"]["rows"], key=lambda row: (row["store"], row["partition"]))
    return {**document, "grid": {**document["grid"], "rows": rows}}


def whole(found: Overview) -> dict[str, Any]:
    return in_order(orjson.loads(found.whole()))


def delta(before: Overview, now: Overview) -> dict[str, Any]:
    return dict(orjson.loads(now.since(before.tick)))


changes = st.lists(
    st.one_of(
        assignments(partitions=PARTITIONS, operators=(0, 3)),
        st.tuples(st.sampled_from(NODES), APPLIED, st.integers(5, 9)),
        st.sampled_from(NODES),
        st.sampled_from([5000.0, 10.0]),
    ),
    min_size=1,
    max_size=8,
)


def snapshots_of(what: list[Any]) -> Iterator[ClusterSnapshot]:
    """A cluster to which these things happen."""
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"), partitions=PARTITIONS)
    snapshot, now_ms = snapshot_of(tables, STORES), 0.0
    yield snapshot
    for number, change in enumerate(what, 2):
        match change:
            case dict():
                tables.assigned(assigned(change, order=(1, number), partitions=PARTITIONS), now_ms)
            case (node_id, said, end):
                heartbeat = beat(node_id, sequence=number, applied=said, end_version=end, partitions=PARTITIONS)
                tables.heard(heartbeat, age_ms=0, now_ms=now_ms)
            case str():
                if change in tables.nodes:
                    tables._died(tables._mark_dead(change, now_ms, "died", "killed"), now_ms)
            case float():
                now_ms += change
        snapshot = snapshot_of(tables, STORES, now_ms=now_ms, tick=number, index=snapshot.index)
        yield snapshot


def history_of(what: list[Any]) -> list[Overview]:
    """The overviews of that cluster."""
    found: list[Overview] = []
    for snapshot in snapshots_of(what):
        found.append(overview(snapshot, found[-1] if found else None))
    return found


CAME_AND_WENT: list[Any] = [{}, {"0_2": task(None, warmups=("a", "b"))}]


@settings(max_examples=60)
@example(CAME_AND_WENT, 3, 1)
@given(changes, st.sampled_from([module.MAX_REPLICAS, 3]), st.integers(1, 4))
def test_a_viewer_that_applies_every_delta_sees_what_one_that_just_came_sees(
    what: list[Any], max_replicas: int, rows: int
) -> None:
    kept = (module.MAX_REPLICAS, module.WORST_ROWS)
    module.MAX_REPLICAS, module.WORST_ROWS = max_replicas, rows
    try:
        overviews = history_of(what)
    finally:
        module.MAX_REPLICAS, module.WORST_ROWS = kept
    for place, first in enumerate(overviews):
        for now in overviews[place:]:
            assert now.tick == first.tick or first.tick in now.known
            assert in_order(applied(whole(first), delta(first, now))) == whole(now)


def test_nothing_is_sent_while_only_the_ages_of_what_is_well_change() -> None:
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
    first = overview(snapshot_of(tables, STORES))
    later = overview(snapshot_of(tables, STORES, now_ms=900, tick=2), first)
    found = delta(first, later)
    assert (set(found["sections"]) & {"nodes", "stores", "health"}, found["grid_rows"]) == (set(), [])
    old = overview(snapshot_of(tables, STORES, now_ms=2500, tick=3), later)
    assert "nodes" in delta(later, old)["sections"]


def test_in_a_large_cluster_the_grid_has_the_worst_partitions() -> None:
    tables: Tables = tables_with(
        {f"0_{partition}": task("a", "b") for partition in range(8)},
        beat("a", partitions=8),
        beat("b", partitions=8, exceptions={"0_5": Applied(version=1), "0_6": Applied(version=None)}),
        partitions=8,
    )
    stores = stores_named({"one": 0}, partitions=8)
    kept = (module.MAX_REPLICAS, module.WORST_ROWS)
    module.MAX_REPLICAS, module.WORST_ROWS = 10, 2
    try:
        found = orjson.loads(overview(snapshot_of(tables, stores)).whole())["grid"]
    finally:
        module.MAX_REPLICAS, module.WORST_ROWS = kept
    assert (found["order"], found["total"]) == ("worst", 8)
    assert [row["partition"] for row in found["rows"]] == [6, 5]


ONE_STORE = stores_named({"one": 0}, partitions=1)


class World:
    """A cluster that moves on by one version with each look, and a feed of it."""

    def __init__(self, **options: Any) -> None:
        self.tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
        self.clock = ManualClock()
        self.moves = True
        self.number = 1
        self.fails = 0
        self.feed = OverviewFeed(self.look, self.clock, **options)

    async def look(self, before: Overview | None) -> Overview:
        if self.fails:
            self.fails -= 1
            raise ZeroDivisionError("a bug of the test")
        await asyncio.sleep(0)
        self.number += 1
        if self.moves:
            end = 7 + self.number
            self.tables.heard(beat("a", sequence=self.number, end_version=end), age_ms=0, now_ms=0)
        snapshot = snapshot_of(self.tables, ONE_STORE, tick=self.number)
        losses = finished(losses_of_all(snapshot, lambda _: NO_BOUND))
        return finished(overview_of(Observed(snapshot, health=HealthReport((Indicator("reads"),))), losses, {}, before))

    async def tick(self) -> None:
        self.clock.advance(1000)
        await self.feed.overview(max_age_ms=0)


async def event(messages: AsyncIterator[bytes]) -> tuple[str, dict[str, Any]]:
    """The next event, whole."""
    text = b""
    while not text.endswith(b"\n\n"):
        text += await anext(messages)
    fields = dict(line.split(": ", 1) for line in text.decode().strip().splitlines())
    document = orjson.loads(fields["data"])
    assert fields.get("id") in {None, str(document.get("tick"))}
    return fields["event"], document


async def test_a_viewer_gets_the_whole_first_and_then_what_changed() -> None:
    world = World()
    await world.tick()
    messages = world.feed.messages(None)
    kind, document = await event(messages)
    assert (kind, document["end"]["version"]) == ("overview", 9)
    await world.tick()
    kind, delta = await event(messages)
    assert (kind, delta["sections"]["end"]["version"]) == ("delta", 10)
    assert "application_id" not in delta["sections"]


async def test_a_slow_viewer_gets_all_that_it_missed_in_one_and_a_very_slow_one_the_whole_again() -> None:
    world = World()
    await world.tick()
    messages = world.feed.messages(None)
    _, first = await event(messages)
    for _ in range(5):
        await world.tick()
    kind, delta = await event(messages)
    assert (kind, delta["tick"]) == ("delta", first["tick"] + 5)
    for _ in range(MAX_KEPT + 1):
        await world.tick()
    kind, whole = await event(messages)
    assert (kind, whole["tick"]) == ("overview", delta["tick"] + MAX_KEPT + 1)


async def test_what_is_old_is_given_to_nobody_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "HEARTBEAT_S", 0.01)
    world = World()
    await world.tick()
    world.clock.advance(60_000)
    messages = world.feed.messages(None)
    assert (await event(messages))[0] == "heartbeat"
    world.moves = False
    await world.tick()
    assert (await event(messages))[0] == "overview"


async def test_it_looks_only_while_somebody_watches_and_goes_on_after_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(tick_ms=1)
    world.fails = 1
    tasks = Supervisor()
    tasks.start("feed", world.feed.run())
    try:
        await asyncio.sleep(0.02)
        assert world.feed.looks == 0
        world.feed.enter()
        await until(lambda: world.feed.looks >= 5)
        world.feed.leave()
        await asyncio.sleep(0.02)
        looks = world.feed.looks
        await asyncio.sleep(0.02)
        assert world.feed.looks == looks
    finally:
        await tasks.stop()
    assert tasks.dead is None
    assert [record.message for record in caplog.records] == ["the overview could not be made"]


class Written(Viewer):
    """How a viewer gets what there is otherwise: its tick as a text, whenever that is due."""

    is_now_due = True

    def __init__(self) -> None:
        super().__init__(Drawings(), PageQuery())

    def is_due(self, now: OverviewDocument) -> bool:
        return self.is_now_due

    async def event(self, now: OverviewDocument) -> bytes:
        await asyncio.sleep(0)
        return b'event: page\ndata: {"tick":%d}\n\n' % now.tick


async def test_what_is_written_for_one_viewer_comes_when_it_is_due_and_meanwhile_he_hears_that_the_router_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "HEARTBEAT_S", 0.01)
    world, written = World(), Written()
    await world.tick()
    messages = world.feed.messages(None, written=written)
    assert await event(messages) == ("page", {"tick": 2})
    written.is_now_due = False
    await world.tick()
    assert (await event(messages))[0] == "heartbeat"
    written.is_now_due = True
    assert await event(messages) == ("page", {"tick": 3})
