"""Applications that patterns choose, that come, go, and fail while a router serves others; and the reports over all."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from fastapi import APIRouter
from hypothesis import given
from hypothesis import strategies as st
from tests.support.bus.documents import heartbeat
from tests.support.bus.fragile_bus import FragileBus
from tests.support.clock import ManualClock
from tests.support.cluster.fake_cluster import until
from tests.support.cluster.fleet import FleetWorld, fleet_of

from understudy_router import fleet
from understudy_router.admin.api import Admin
from understudy_router.admin.overview import figures_of
from understudy_router.fleet import wanted
from understudy_router.http import app
from understudy_router.settings import RouterSettings
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.bus.gossip import ANNOUNCED, Gossip
from understudy_shared.bus.messages import Farewell
from understudy_shared.questions.export.service import Exports
from understudy_shared.questions.export.store_files import store_file_routes
from understudy_shared.server.made_files import MadeFiles

NAMES = st.text("ab-", min_size=1, max_size=6)


@given(heard=st.sets(NAMES, max_size=20), patterns=st.lists(st.text("ab*", min_size=1, max_size=4), min_size=1))
def test_an_application_is_wanted_when_a_pattern_has_it_as_shells_match(heard: set[str], patterns: list[str]) -> None:
    expected = sorted(name for name in heard if any(fnmatchcase(name, pattern) for pattern in patterns))
    assert wanted(heard, patterns, served=()) == (expected, [])
    assert wanted(heard, patterns, served=expected) == ([], [])


def test_ids_that_are_no_segment_of_a_path_are_never_served() -> None:
    assert wanted(["a/b", "..", "x\n", "", "a" * 257, "good [1]?"], ["*"], served=())[0] == ["good [1]?"]


@pytest.mark.parametrize("given", [{}, {"application_id": "a", "applications": "*"}])
def test_a_router_serves_one_application_or_many_and_says_so(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="give application_id, for one query, or applications, for many"):
        RouterSettings(redis="redis://h", **given)  # type: ignore[arg-type]


SAFE = "/admin/v1/nodes/a/safe-to-stop"


async def ready(world: FleetWorld) -> None:
    await until(lambda: all(held.router.tables.nodes for held in world.fleet.applications.values()))


async def test_the_overview_has_the_worst_application_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet_of({"a": ["words"], "b": ["more"], "c": ["others"]}) as world:
        await ready(world)
        states = {"a": "ok", "b": "hurt", "c": "attention"}
        real = figures_of

        def figures(seen: Any) -> Any:
            state = states[seen.snapshot.about.application_id]
            return {**real(seen), "health": {"state": state, "headline": state}}

        monkeypatch.setattr(fleet, "figures_of", figures)
        rows = (await world.get("/admin/v1/applications")).json()["applications"]
        assert [row["application"] for row in rows] == ["b", "c", "a"]
        assert {"health", "freshness", "lag", "reads", "state"} <= rows[0].keys()


async def test_all_applications_share_the_files_that_the_process_makes_for_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = list[MadeFiles]()

    def routes(exports: Exports, files: MadeFiles) -> APIRouter:
        shared.append(files)
        return store_file_routes(exports, files)

    monkeypatch.setattr(app, "store_file_routes", routes)
    async with fleet_of({"a": ["words"], "b": ["more"]}) as world:
        assert shared == [world.fleet.guard.files] * 2


async def test_a_node_is_safe_to_stop_only_if_each_of_its_applications_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet_of({"a": ["words"], "b": ["more"]}) as world:
        await ready(world)
        found = (await world.get(SAFE)).json()
        assert found["safe"] is False, "it has the only replica"
        assert found["applications"].keys() == {"a", "b"}
        verdicts: dict[str, bool | None] = {"a": True, "b": True}

        async def safe_to_stop(self: Admin, node_id: str) -> dict[str, object]:
            name = self._router.settings.application_id
            return {"safe": verdicts[name], "why": f"of {name}"}

        monkeypatch.setattr(Admin, "safe_to_stop", safe_to_stop)
        assert (await world.get(SAFE)).json()["safe"] is True
        verdicts["b"] = None
        assert (await world.get(SAFE)).json()["safe"] is None
        verdicts["b"] = False
        found = (await world.get(SAFE)).json()
        assert (found["safe"], found["why"]) == (False, "'b': of b")
        assert (await world.get("/admin/v1/nodes/nobody/safe-to-stop")).status_code == 404


async def test_a_node_is_not_safe_to_stop_while_an_application_may_have_replicas_that_are_not_known() -> None:
    async with fleet_of({"a": ["words"], "b": ["more"]}) as world:
        await ready(world)
        tables = world.fleet.applications["b"].router.tables
        tables.assignment = None
        tables.nodes.clear()
        tables.dead.clear()
        found = (await world.get(SAFE)).json()
        assert (found["safe"], found["applications"]["b"]["safe"]) == (False, False)
        assert "'b': this router does not know yet which node holds what" in found["why"]


async def test_a_node_of_an_application_that_this_router_does_not_serve_is_not_known_to_be_safe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def safe_to_stop(self: Admin, node_id: str) -> dict[str, object]:
        return {"safe": True, "why": "all is held twice"}

    monkeypatch.setattr(Admin, "safe_to_stop", safe_to_stop)
    async with fleet_of({"orders": ["words"]}, patterns="orders") as world:
        await ready(world)
        assert (await world.get(SAFE)).json()["safe"] is True
        await world.add("flights", "delays")
        await world.fleet.look()
        found = (await world.get(SAFE)).json()
        assert (found["safe"], found["applications"]["flights"]["safe"]) == (None, None)
        assert found["why"] == "'flights': this router does not serve it: ask one that does"


async def test_an_application_that_is_announced_is_served_when_it_has_nodes_and_those_of_no_pattern_never() -> None:
    async with fleet_of({"orders-eu": ["eu"]}, patterns="orders-*") as world:
        await world.add("orders-us", "us")
        await world.add("flights", "delays")
        await world.bus.publish(ANNOUNCED, b"anything: it is a reason to look, and nothing else")
        await until(lambda: "orders-us" in world.fleet.applications)
        assert (await world.get("/v1/stores/us/keys/x")).json()["value"] == {"by": "us"}
        assert (await world.get("/v1/stores/delays/keys/x")).status_code == 404
        assert (await world.get("/v1/stores/eu/keys/x")).status_code == 200


async def test_an_application_without_nodes_is_idle_then_let_go_and_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "LOOK_EVERY_MS", 10)
    async with fleet_of({"a": ["words"], "b": ["more"]}) as world:
        monkeypatch.setattr(fleet, "IDLE_AFTER_MS", 0)
        await Gossip(world.bus, "a").leave(Farewell(application_id="a", node_id="a", incarnation="i1"))
        await until(lambda: not world.fleet.applications["a"].router.tables.nodes)
        listed = (await world.get("/v1/applications")).json()["applications"]
        assert {each["application"]: each["state"] for each in listed} == {"a": "idle", "b": "serving"}
        monkeypatch.setattr(fleet, "LET_GO_AFTER_MS", 0)
        await until(lambda: "a" not in world.fleet.applications)
        assert (await world.get("/v1/stores/words/keys/x")).json()["type"].endswith("unknown-store")
        await world.add("a", "words")
        await until(lambda: "a" in world.fleet.applications)
        assert (await world.get("/v1/stores/words/keys/x")).status_code == 200


async def said(world: FleetWorld, cause: str) -> bool:
    """Whether the metric says that the process is degraded by this cause."""
    return f'understudy_router_degraded{{cause="{cause}"}} 1.0' in (await world.get("/metrics")).text


async def test_a_bus_that_is_away_takes_no_application_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "LOOK_EVERY_MS", 10)
    bus = FragileBus()
    async with fleet_of({"a": ["words"]}, bus=bus) as world:
        bus.turn(away=True)
        await until(lambda: "applications-unlisted" in world.fleet.status().causes)
        assert await said(world, "applications-unlisted")
        assert (await world.get("/v1/stores/words/keys/x")).status_code == 200
        assert (await world.get("/readyz")).status_code == 200


UNKNOWN = ("/v1/applications/a/stores/words/keys/x", "/v1/stores/words/keys/x", "/v1/applications/a")
LISTS = ("/v1/applications", "/v1/stores")


async def test_a_router_that_could_not_list_applications_yet_calls_none_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "LOOK_EVERY_MS", 10)
    bus = FragileBus(away=True)
    async with fleet_of({}, bus=bus) as world:
        for path in (*UNKNOWN, *LISTS, "/readyz", "/admin/v1/nodes/a/safe-to-stop"):
            answer = await world.get(path)
            assert (answer.status_code, "have not been listed yet" in answer.text) == (503, True), path
        bus.turn(away=False)
        await until(lambda: world.fleet.starting() is None)
        assert "no node of any application is heard yet" in (await world.get(UNKNOWN[0])).json()["detail"]
        assert (await world.get("/readyz")).status_code == 200
        await world.add("b", "more")
        await until(lambda: "b" in world.fleet.applications and world.fleet.applications["b"].is_ready)
        assert [(await world.get(path)).status_code for path in UNKNOWN] == [404] * 3
        assert [(await world.get(path)).status_code for path in LISTS] == [200] * 2


async def test_a_call_of_one_application_says_how_to_name_it() -> None:
    async with fleet_of({"a": ["words"], "b": ["more"]}) as world:
        for path, one in (
            ("/admin/v1/lag", "/admin/v1/applications/{application}/lag"),
            ("/v1/read", "/v1/applications/{application}/read"),
        ):
            problem = (await world.get(path)).json()
            assert (problem["type"], problem["applications"]) == ("unknown-path", ["a", "b"])
            assert one in problem["fix"]


async def test_an_application_that_cannot_be_made_leaves_the_others_alone_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fleet_of({"a": ["words"]}) as world:
        monkeypatch.setattr(fleet, "LOOK_EVERY_MS", 10)
        made, failing = app.create_app, True

        def create(*arguments: Any, **options: Any) -> object:
            if failing:
                raise UnderstudyError("it cannot be")
            return made(*arguments, **options)

        monkeypatch.setattr(fleet, "create_app", create)
        await world.add("b", "more")
        await world.bus.publish(ANNOUNCED, b"")
        assert (await world.get("/v1/stores/words/keys/x")).status_code == 200
        failing = False
        await until(lambda: "b" in world.fleet.applications)
        assert (await world.get("/v1/stores/more/keys/x")).status_code == 200


async def test_an_application_without_an_answer_holds_the_process_up_for_a_while_only() -> None:
    clock = ManualClock()
    async with fleet_of({"a": ["words"]}, clock=clock, learns_within_ms=0) as world:
        await until(lambda: world.fleet.not_ready() == [])
        await Gossip(world.bus, "b").beat(heartbeat("x", application_id="b"))  # it has no assignment
        await world.fleet.look()
        assert (await world.get("/readyz")).status_code == 503
        clock.advance(fleet.HOLDS_UP_MS + 1)
        assert (await world.get("/readyz")).status_code == 200
        assert (await world.get("/v1/applications/b")).json()["state"] == "waiting"
