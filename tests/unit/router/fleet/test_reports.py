"""Reports over all applications of a node: the worst first, safe only where all are, and a drain of all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.support.cluster.fake_cluster import until
from tests.support.cluster.fleet import FleetWorld, fleet_of

from understudy_router.admin.admin import Admin
from understudy_shared.auth.access import AUTHORIZATION
from understudy_shared.auth.principals import Action, Authorization, Grant, Principal
from understudy_shared.http.edge import Receive, Scope, Send

SAFE = "/admin/v1/nodes/a/safe-to-stop"
DRAIN = "/admin/v1/nodes/a/drain"


async def ready(world: FleetWorld) -> None:
    await until(lambda: all(held.router.tables.nodes for held in world.fleet.held.values()))


async def test_the_overview_has_the_worst_application_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet_of({"a": ["words"], "b": ["more"], "c": ["others"]}) as world:
        await ready(world)
        states = {"a": "ok", "b": "hurt", "c": "attention"}
        real = Admin.figures

        def figures(self: Admin, seen: Any) -> Any:
            state = states[seen.snapshot.about.application_id]
            return {**real(self, seen), "health": {"state": state, "headline": state}}

        monkeypatch.setattr(Admin, "figures", figures)
        rows = (await world.get("/admin/v1/applications")).json()["applications"]
        assert [row["application"] for row in rows] == ["b", "c", "a"]
        assert {"health", "freshness", "lag", "reads", "state"} <= rows[0].keys()


async def test_the_list_of_applications_has_the_worst_lag_of_the_overview() -> None:
    async with fleet_of({"a": ["words"]}) as world:
        await ready(world)
        await until(lambda: world.fleet.held["a"].is_ready)
        await world.fleet.held["a"].app.admin.observed(max_age_ms=0)
        lag = (await world.get("/admin/v1/applications/a/overview")).json()["lag"]
        (listed,) = (await world.get("/v1/applications")).json()["applications"]
        assert (listed["max_offset_lag"], listed["max_time_lag_ms"]) == (lag["worst_batches"], lag["worst_ms"])
        assert listed["max_offset_lag"] == 0


async def test_the_overview_and_its_page_show_what_the_reader_may_monitor() -> None:
    everywhere = Grant(frozenset({Action.POINT}), frozenset({"*"}))
    watcher = Principal("w", [everywhere, replace(everywhere, actions=MONITOR, applications=frozenset({"a*"}))])
    async with fleet_of({"a1": ["words"], "b1": ["more"]}) as world:
        await ready(world)

        async def as_watcher(scope: Scope, receive: Receive, send: Send) -> None:
            await world.fleet.app({**scope, AUTHORIZATION: Authorization(watcher)}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=as_watcher), base_url="http://r") as http:
            rows = (await http.get("/admin/v1/applications")).json()["applications"]
            page = (await http.get("/admin/")).text
        assert [row["application"] for row in rows] == ["a1"]
        assert "a1" in page
        assert "b1" not in page


MONITOR = frozenset({Action.MONITOR})


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


async def test_a_drain_reaches_the_node_for_each_application_and_a_refusal_is_named() -> None:
    async with fleet_of({"a": ["words"], "b": ["more"]}) as world:
        await ready(world)
        world.node.documents["/admin/v1/drain"] = b'{"draining":true}'
        world.node.named.clear()
        drained = await world.http.post(DRAIN, json={"drain": True})
        assert drained.status_code == 202
        assert drained.json()["applications"] == {"a": {"draining": True}, "b": {"draining": True}}
        assert sorted(world.node.named) == [("/admin/v1/drain", "a"), ("/admin/v1/drain", "b")]
        assert world.node.requests[-1] == ("POST /admin/v1/drain", b'{"drain":true}')
        del world.node.documents["/admin/v1/drain"]
        refused = await world.http.post(DRAIN, json={"drain": True})
        assert (refused.status_code, refused.json()["applications"]) == (502, ["a", "b"])


async def test_an_application_is_let_go_by_one_of_its_nodes() -> None:
    async with fleet_of({"a": ["words"]}) as world:
        await ready(world)
        path = "/admin/v1/applications/a"
        refused = await world.http.delete(path)
        assert (refused.status_code, refused.json()["type"]) == (502, "bad-reply"), "its nodes are older"
        world.node.documents[path] = b'{"application":"a","let_go":true}'
        said = await world.http.delete(path)
        assert (said.status_code, said.json()) == (202, {"application": "a", "let_go": True})
        assert world.node.requests[-1] == (f"DELETE {path}", b"")
        unknown = await world.http.delete("/admin/v1/applications/b")
        assert (unknown.status_code, unknown.json()["type"]) == (404, "unknown-application")
        await world.node.kill()
        assert (await world.http.delete(path)).json()["type"] == "node-unreachable"
