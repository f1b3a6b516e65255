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

from understudy_router.admin import feed as module
from understudy_router.admin.feed import Feed, pause_ms
from understudy_router.admin.overview import MAX_KEPT, Overview, overview_of
from understudy_router.admin.safe_to_stop import losses_of_all
from understudy_router.admin.snapshot import Observed
from understudy_router.page.live import Drawings, Viewer
from understudy_router.page.page_query import PageQuery
from understudy_shared.base.supervise import Supervisor
from understudy_shared.http.health import HealthReport, Indicator
from understudy_shared.http.problems import ProblemError
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


async def test_those_who_ask_at_once_share_one_look() -> None:
    world = World()
    found = await asyncio.gather(*(world.feed.overview() for _ in range(50)))
    assert (world.feed.looks, len({id(each) for each in found})) == (1, 1)
    world.clock.advance(module.TICK_MS)
    await world.feed.overview()
    assert world.feed.looks == 1
    world.clock.advance(1)
    await world.feed.overview()
    assert world.feed.looks == 2


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


async def test_a_viewer_that_comes_back_with_its_last_event_goes_on_from_there() -> None:
    world = World()
    await world.tick()
    _, first = await event(world.feed.messages(None))
    await world.tick()
    kind, delta = await event(world.feed.messages(first["tick"]))
    assert (kind, delta["tick"]) == ("delta", first["tick"] + 1)
    kind, _ = await event(world.feed.messages(first["tick"] - 99))
    assert kind == "overview"


async def test_the_messages_of_one_tick_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TEXTS_BYTES", 100)
    world = World()
    ticks = []
    for _ in range(3):
        await world.tick()
        ticks.append((await world.feed.overview()).tick)
    kinds = [(await event(world.feed.messages(tick)))[0] for tick in (ticks[1], ticks[0], ticks[1])]
    assert kinds == ["delta", "overview", "delta"]


async def test_a_heartbeat_comes_when_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.01)
    world = World()
    world.moves = False
    await world.tick()
    messages = world.feed.messages(None)
    assert (await event(messages))[0] == "overview"
    await world.tick()
    kind, document = await event(messages)
    assert kind == "heartbeat"
    assert document["generated_at"] == "1970-01-01T00:00:02.000000Z"


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


async def test_all_viewers_end_at_once_when_the_service_stops_and_no_new_one_is_taken() -> None:
    world = World()
    await world.tick()
    viewers = [world.feed.messages(None) for _ in range(3)]
    for messages in viewers[:2]:
        await event(messages)
    waiting = [asyncio.ensure_future(anext(messages, None)) for messages in viewers[:2]]
    await asyncio.sleep(0)
    world.feed.end()
    assert await asyncio.gather(*waiting) == [None, None]
    assert await anext(viewers[2], None) is None
    with pytest.raises(ProblemError, match="stops"):
        world.feed.stream(None)


async def test_there_are_at_most_so_many_viewers() -> None:
    world = World(max_viewers=2)
    for _ in range(2):
        world.feed.stream(None)
        world.feed.enter()
    with pytest.raises(ProblemError, match="2 viewers") as refused:
        world.feed.stream(None)
    assert refused.value.problem.status == 503
    world.feed.leave()
    world.feed.stream("7")


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


async def test_a_large_document_goes_out_in_pieces() -> None:
    world = World()
    await world.tick()
    module_pieces = [len(piece) for piece in module._pieces(b"x" * (3 * module.PIECE_BYTES + 1))]
    assert module_pieces == [module.PIECE_BYTES] * 3 + [1]


@pytest.mark.parametrize(("took_ms", "pause"), [(0, 1000), (10, 990), (100, 900), (200, 1800), (5000, 10_000)])
def test_looking_takes_no_more_than_a_tenth_of_the_loop(took_ms: float, pause: float) -> None:
    assert pause_ms(took_ms, 1000) == pytest.approx(pause)


@pytest.mark.parametrize("text", [None, "", "x", "-1", "1.5", "٣", "9" * 30])
def test_an_event_id_that_is_no_tick_is_none(text: str | None) -> None:
    assert module._tick_of(text) is None
    assert module._tick_of("17") == 17


class Written:
    """How a viewer gets what there is otherwise: its tick as a text, whenever that is due."""

    is_now_due = True

    def is_due(self, now: Overview) -> bool:
        return self.is_now_due

    async def event(self, now: Overview) -> bytes:
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


async def test_the_page_is_drawn_of_what_the_feed_has_looked_at() -> None:
    world = World()
    await world.tick()
    messages = world.feed.messages(None, written=Viewer(Drawings(), PageQuery()))
    kind, first = await event(messages)
    assert kind == "page"
    assert 'data-place="one/0/a"' in first["html"]
    await world.tick()
    kind, later = await event(messages)
    while kind == "heartbeat":  # the first drawing took long, so the next one is not due at once
        kind, later = await event(messages)
    assert 'id="replicas"' in later["html"]
    assert later["generated_at"] >= first["generated_at"]
