"""Queries that announce themselves: what a process comes to serve, and what a stranger on the bus cannot do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.bus.fragile_bus import FragileBus
from tests.support.clock import ManualClock
from tests.support.cluster.fake_cluster import until

from understudy_node.fleet import following
from understudy_node.fleet.following import Announcements, Announcing, Following
from understudy_node.fleet.process import let_go
from understudy_shared.bus.gossip import ANNOUNCED, Gossip, Names
from understudy_shared.bus.message_auth import Keyring, MessageAuth
from understudy_shared.bus.messages import Announcement
from understudy_shared.cluster.without_bus import Remembered
from understudy_shared.fleet.announced_applications import AnnouncedQueries, parse_roots
from understudy_shared.fleet.applications_file import FLEET, ApplicationSpec
from understudy_shared.http.problems import ProblemError

KEY, OTHER = Keyring([b"k" * 32]), Keyring([b"o" * 32])
ROOTS = parse_roots("/data")
FORGET_MS = 60_000


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LOOK_EVERY_S", 0.005)
    monkeypatch.setattr(following, "PAUSE_S", 0)


class World:
    """A process without its applications, a bus, and queries that announce themselves there."""

    def __init__(
        self,
        folder: Path,
        *,
        keys: Keyring | None = None,
        away: bool = False,
        removes: bool = False,
        bus: FragileBus | None = None,
    ) -> None:
        self.bus = bus or FragileBus(away=away)
        self.clock = ManualClock(monotonic_ms=1_000_000, wall_us=1_000_000_000)
        self.version: int | None = None
        auth = MessageAuth(FLEET, keys, clock=self.clock)
        queries = AnnouncedQueries(forget_after_ms=FORGET_MS)
        self.announcements = Announcements(self.bus, auth, queries, self.clock, Remembered(folder, FLEET, auth))
        self.served: tuple[str, ...] = ()
        self.following = Following(
            self._want,
            None,
            [ApplicationSpec(id="listed", checkpoint="/data/listed")],
            announcing=Announcing(self.announcements, ROOTS, removes),
            version_of=lambda _: self.version,
            clock=self.clock,
        )

    def _want(self, specs: object) -> None:
        self.served = tuple(each.id for each in specs)  # type: ignore[attr-defined]

    async def announce(
        self, application_id: str, location: str | None, *, keys: Keyring | None = None, of: str | None = None
    ) -> None:
        """Announce a query as a pipeline does; `of` is the application whose key gets the document."""
        auth = MessageAuth(of or application_id, keys, sender="pipeline", clock=self.clock)
        gossip = Gossip(self.bus, of or application_id, auth)
        said = Announcement(application_id=of or application_id, query_id="q", stores=[], checkpoint=location)
        await gossip.announce(said)
        if of is not None:  # it is copied to another key
            stored = await self.bus.get(Names(of).announcement)
            assert stored is not None
            await self.bus.put(Names(application_id).announcement, stored.payload)
        await self.bus.publish(ANNOUNCED, application_id.encode())


@asynccontextmanager
async def world(folder: Path, **options: object) -> AsyncIterator[World]:
    made = World(folder, **options)  # type: ignore[arg-type]
    tasks = [asyncio.ensure_future(work) for work in made.following.work().values()]
    try:
        assert made.following.starting is not None, "what is announced is not known yet"
        await until(lambda: made.following.starting is None, what="the first choice")
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_a_query_is_served_once_it_is_announced_and_until_it_is_let_go(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.announce("outside", "/elsewhere/q")
        await made.announce("orders", "file:/data/orders")
        await until(lambda: made.served == ("listed", "orders"))
        assert made.following.wanted.left_out == {"outside": "it lies below no --checkpoint-root"}
        await made.announce("twin", "/data/orders")
        await until(made.following.causes)
        assert made.following.causes() == {
            "announced-applications": "'orders', which is served, and 'twin' have one checkpoint"
        }
        await let_go(made.following, "orders")
        await until(lambda: made.served == ("listed", "twin"))
        assert made.following.causes() == {}
        await made.announce("orders", "/data/moved")
        await until(lambda: made.served == ("listed", "orders", "twin"))
        for name, kind in (("listed", "listed-application"), ("orders2", "unknown-application")):
            with pytest.raises(ProblemError) as refused:
                await let_go(made.following, name)
            assert refused.value.problem.type.slug == kind
        await made.bus.put(Names("twin").announcement, b"gone", expiry_ms=0)
        await let_go(made.following, "twin")
        assert await Gossip(made.bus, "twin").announcement() is not None, "other nodes read that it goes"


async def test_a_process_without_the_key_can_neither_add_a_query_nor_move_one_nor_let_one_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, keys=KEY) as made:
        await made.announce("unsigned", "/data/unsigned")
        await made.announce("forged", "/data/forged", keys=OTHER)
        await made.announce("orders", "/data/orders", keys=KEY)
        await made.announce("copied", "/elsewhere/other", keys=KEY, of="other")
        await until(lambda: made.served == ("listed", "orders"))
        await made.announce("orders", None)
        await made.announce("orders", "/data/moved", keys=OTHER)
        await made.announce("last", "/data/last", keys=KEY)
        await until(lambda: made.served == ("listed", "last", "orders"))
        (orders,) = [each for each in made.following.wanted.announced if each.id == "orders"]
        assert orders.checkpoint == "/data/orders"
    refused = {record.args[0] for record in caplog.records if record.__dict__.get("kind") == "announcement"}  # type: ignore[index]
    assert refused == {"'unsigned'", "'forged'", "'copied'", "'orders'"}


async def test_what_was_announced_is_known_again_without_the_bus_and_after_it_came_back_empty(tmp_path: Path) -> None:
    file = tmp_path / "announcedlocations.remembered"
    async with world(tmp_path, keys=KEY) as made:
        await made.announce("orders", "/data/orders", keys=KEY)
        await until(lambda: file.exists() and b"/data/orders" in file.read_bytes(), what="the file")
    async with world(tmp_path, keys=KEY, away=True) as made:
        await until(lambda: made.served == ("listed", "orders"))
        assert "announcements" in made.following.causes()
    async with world(tmp_path, keys=KEY) as made:
        await until(lambda: made.served == ("listed", "orders"), what="a bus that came back empty is not a removal")
    before = World(tmp_path, keys=KEY)
    await before.announce("orders", None, keys=KEY)
    async with world(tmp_path, keys=KEY, bus=before.bus) as made:
        assert made.served == ("listed",), "it was let go while this process was down"
    async with world(tmp_path, keys=OTHER, away=True) as made:
        await until(lambda: made.announcements.lost_why is not None)
        assert made.served == ("listed",), "a file that is signed with another key is not used"


async def test_an_idle_query_is_listed_until_a_commit_and_with_the_setting_let_go(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.version = 7
        await made.announce("orders", "/data/orders")
        await until(lambda: made.served == ("listed", "orders"))
        await made.following.step()
        made.clock.advance(FORGET_MS + 1)
        await until(lambda: made.following.idle("orders"))
        made.version = 8
        made.clock.advance(FORGET_MS)
        await until(lambda: made.following.idle("orders") is None)
        assert made.served == ("listed", "orders")
    async with world(tmp_path, removes=True) as made:
        await made.announce("orders", "/data/orders")
        await until(lambda: made.served == ("listed", "orders"))
        made.clock.advance(FORGET_MS + 1)
        await until(lambda: made.served == ("listed",))
        found = await Gossip(made.bus, "orders").announcement()
        assert found is not None
        assert found.checkpoint is None, "all nodes read that it was let go"


async def test_queries_that_are_announced_without_end_do_not_hold_up_the_list_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, read = World(tmp_path), list[str]()
    announcements, get = world.announcements, world.bus.get

    async def next_is_announced(key: str) -> object:
        read.append(key)
        if len(read) < 50:
            announcements._hinted.add(f"q{len(read)}")
        return await get(key)

    monkeypatch.setattr(world.bus, "get", next_is_announced)
    announcements._hinted.add("q0")
    await announcements.look()
    assert len(read) == 1
