"""The feed: one look for all viewers, deltas for those who keep up, merged ones for the slow, and an end for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from tests.support.clock import ManualClock
from tests.support.cluster.fake_cluster import until
from tests.support.router.snapshots import finished, snapshot_of, stores_named, tables_with
from tests.support.router.tables import beat, task

from understudy_router.admin.overview import MAX_KEPT, Overview, overview_of
from understudy_router.admin.safe_to_stop import losses_of_all
from understudy_router.admin.snapshot import Observed
from understudy_shared.base.background import Supervisor
from understudy_shared.http.health import HealthReport, Indicator
from understudy_shared.page import feed as module
from understudy_shared.page.feed import Feed, OverviewDocument
from understudy_shared.reads.bounds import NO_BOUND

STORES = stores_named({"one": 0}, partitions=1)


class World:
    """A cluster that moves on by one version with each look, and a feed of it."""

    def __init__(self, **options: Any) -> None:
        self.tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
        self.clock = ManualClock()
        self.moves = True
        self.number = 1
        self.fails = 0
        self.feed = Feed(self.look, self.clock, **options)

    async def look(self, before: Overview | None) -> Overview:
        if self.fails:
            self.fails -= 1
            raise ZeroDivisionError("a bug of the test")
        await asyncio.sleep(0)
        self.number += 1
        if self.moves:
            end = 7 + self.number
            self.tables.heard(beat("a", sequence=self.number, end_version=end), age_ms=0, now_ms=0)
        snapshot = snapshot_of(self.tables, STORES, tick=self.number)
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
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.01)
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


class Written:
    """How a viewer gets what there is otherwise: its tick as a text, whenever that is due."""

    is_now_due = True

    def is_due(self, now: OverviewDocument) -> bool:
        return self.is_now_due

    async def event(self, now: OverviewDocument) -> bytes:
        await asyncio.sleep(0)
        return b'event: page\ndata: {"tick":%d}\n\n' % now.tick


async def test_what_is_written_for_one_viewer_comes_when_it_is_due_and_meanwhile_he_hears_that_the_router_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.01)
    world, written = World(), Written()
    await world.tick()
    messages = world.feed.messages(None, written=written)
    assert await event(messages) == ("page", {"tick": 2})
    written.is_now_due = False
    await world.tick()
    assert (await event(messages))[0] == "heartbeat"
    written.is_now_due = True
    assert await event(messages) == ("page", {"tick": 3})
