"""Reports over all applications of a node: the worst first, safe only where all are, and a drain of all."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.cluster.fake_cluster import until
from tests.support.cluster.fleet import FleetWorld, fleet_of

from understudy_router import fleet
from understudy_router.admin.api import Admin
from understudy_router.admin.overview import figures_of

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
