"""Applications that come, go, and fail while a router serves others."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.bus.documents import heartbeat
from tests.support.bus.fragile_bus import FragileBus
from tests.support.clock import ManualClock
from tests.support.cluster.fake_cluster import until
from tests.support.cluster.fleet import FleetWorld, fleet_of

from understudy_router.fleet import discovery, held, patterns, routers
from understudy_router.http import app
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.bus.applications import ANNOUNCED
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.messages import Farewell
from understudy_shared.server.connection_guard import ConnectionGuard


async def test_an_application_that_is_announced_is_served_when_it_has_nodes_and_those_of_no_pattern_never() -> None:
    async with fleet_of({"orders-eu": ["eu"]}, patterns="orders-*") as world:
        await world.add("orders-us", "us")
        await world.add("flights", "delays")
        await world.bus.publish(ANNOUNCED, b"anything: it is a reason to look, and nothing else")
        await until(lambda: "orders-us" in world.fleet.held)
        assert (await world.get("/v1/stores/us/keys/x")).json()["value"] == {"by": "us"}
        assert (await world.get("/v1/stores/delays/keys/x")).status_code == 404
        assert (await world.get("/v1/stores/eu/keys/x")).status_code == 200


async def test_an_application_without_nodes_is_idle_then_let_go_and_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "LOOK_EVERY_MS", 10)
    async with fleet_of({"a": ["words"], "b": ["more"]}) as world:
        monkeypatch.setattr(held, "IDLE_AFTER_MS", 0)
        await Gossip(world.bus, "a").leave(Farewell(application_id="a", node_id="a", incarnation="i1"))
        await until(lambda: not world.fleet.held["a"].router.tables.nodes)
        listed = (await world.get("/v1/applications")).json()["applications"]
        assert {each["application"]: each["state"] for each in listed} == {"a": "idle", "b": "serving"}
        monkeypatch.setattr(routers, "LET_GO_AFTER_MS", 0)
        await until(lambda: "a" not in world.fleet.held)
        assert (await world.get("/v1/stores/words/keys/x")).json()["type"].endswith("unknown-store")
        await world.add("a", "words")
        await until(lambda: "a" in world.fleet.held)
        assert (await world.get("/v1/stores/words/keys/x")).status_code == 200


async def said(world: FleetWorld, cause: str) -> bool:
    """Whether the metric says that the process is degraded by this cause."""
    return f'understudy_router_degraded{{cause="{cause}"}} 1.0' in (await world.get("/metrics")).text


async def test_a_bus_that_is_away_takes_no_application_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "LOOK_EVERY_MS", 10)
    bus = FragileBus()
    async with fleet_of({"a": ["words"]}, bus=bus) as world:
        bus.turn(away=True)
        await until(lambda: "applications-unlisted" in world.fleet.own.status().causes)
        assert await said(world, "applications-unlisted")
        assert (await world.get("/v1/stores/words/keys/x")).status_code == 200
        assert (await world.get("/readyz")).status_code == 200


async def test_an_application_that_cannot_be_made_leaves_the_others_alone_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fleet_of({"a": ["words"]}) as world:
        monkeypatch.setattr(discovery, "LOOK_EVERY_MS", 10)
        made, failing = app.create_app, True

        def create(*arguments: Any, **options: Any) -> object:
            if failing:
                raise UnderstudyError("it cannot be")
            return made(*arguments, **options)

        monkeypatch.setattr(routers, "create_app", create)
        await world.add("b", "more")
        await world.bus.publish(ANNOUNCED, b"")
        assert (await world.get("/v1/stores/words/keys/x")).status_code == 200
        failing = False
        await until(lambda: "b" in world.fleet.held)
        assert (await world.get("/v1/stores/more/keys/x")).status_code == 200


async def test_applications_for_which_there_is_no_room_are_named_once_and_in_the_status(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patterns, "MAX_APPLICATIONS", 1)
    async with fleet_of({"a": ["words"], "b": ["more"], "c": ["others"]}) as world:
        await world.fleet._discovery.look()
        assert list(world.fleet.held) == ["a"]
        assert "2 applications are left out" in (await world.get("/readyz")).json()["degraded"]
        assert await said(world, "applications-left-out")
        logged = [each.getMessage() for each in caplog.records if "left out" in each.getMessage()]
        assert [("'b', 'c'" in each) for each in logged] == [True]
        monkeypatch.setattr(patterns, "MAX_APPLICATIONS", 3)
        await world.fleet._discovery.look()
        assert world.fleet.own.status().causes == {}


async def test_what_is_wrong_with_the_process_is_said_once_and_by_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectionGuard, "causes", lambda _: {"memory": "memory is short"})
    async with fleet_of({"a": ["words"], "b": ["more"]}) as world:
        await until(lambda: world.fleet.not_ready() == [])
        assert (await world.get("/readyz")).json()["degraded"] == "memory is short"
        listed = (await world.get("/v1/applications")).json()["applications"]
        assert [each["application"] for each in listed if "memory" in (each["reason"] or "")] == []
        metrics = (await world.get("/metrics")).text
        degraded = [line for line in metrics.splitlines() if line.startswith("understudy_router_degraded{")]
        assert [line for line in degraded if "memory" in line] == ['understudy_router_degraded{cause="memory"} 1.0']
        assert 'understudy_router_degraded{application="a",cause="bus-away"} 0.0' in degraded
        assert metrics.count("# TYPE understudy_router_degraded ") == 1


async def test_an_application_without_an_answer_holds_the_process_up_for_a_while_only() -> None:
    clock = ManualClock()
    async with fleet_of({"a": ["words"]}, clock=clock, learns_within_ms=0) as world:
        await until(lambda: world.fleet.not_ready() == [])
        await Gossip(world.bus, "b").beat(heartbeat("x", application_id="b"))  # it has no assignment
        await world.fleet._discovery.look()
        assert (await world.get("/readyz")).status_code == 503
        clock.advance(held.HOLDS_UP_MS + 1)
        assert (await world.get("/readyz")).status_code == 200
        assert (await world.get("/v1/applications/b")).json()["state"] == "waiting"
