"""The overview of many applications: what it shows, in which order, and what its filter lets through."""

from __future__ import annotations

import re
from typing import Any

from tests.support.cluster.fake_cluster import until
from tests.support.cluster.fleet import fleet_of

from understudy_shared.page.render import PageReader, fleet_page
from understudy_shared.page.views import FleetQuery


def row(application: str, state: str = "ok", **fields: Any) -> dict[str, Any]:
    return {
        "application": application,
        "state": "serving",
        "reason": None,
        "health": {"state": state, "headline": f"it is {state}"},
        "freshness": {"p50_ms": 120, "p99_ms": None},
        "lag": {"worst_batches": 3, "worst_ms": 4000},
        "reads": {"per_s": 12.0, "errors_per_s": 0.0},
        "counts": {"nodes_live": 2, "nodes_known": 3},
        "stores": ["totals"],
        **fields,
    }


def shown(rows: list[dict[str, Any]], query: FleetQuery) -> str:
    overview = {"generated_at": "2026-01-01T00:00:00.000Z", "applications": rows}
    return fleet_page(overview, [each for each in rows if query.lets_through(each)], query, PageReader())


def names(page: str) -> list[str]:
    return re.findall(r'<tr data-key="([^"]*)">', page)


def test_the_filter_finds_parts_of_names_of_applications_and_stores_and_a_state() -> None:
    rows = [row("orders", "hurt"), row("flights", stores=["order_lines"]), row("trains")]
    assert names(shown(rows, FleetQuery("ORDER"))) == ["orders", "flights"]
    assert names(shown(rows, FleetQuery("", "hurt"))) == ["orders"]
    page = shown(rows, FleetQuery("none"))
    assert names(page) == []
    assert "No application matches." in page
    assert "3 applications · 1 hurt · 2 ok · 0 shown" in page


def test_a_hostile_name_stays_a_text_and_its_link_one_segment() -> None:
    name = '"><script>alert(1)</script>?#'
    page = shown([row(name)], FleetQuery(name))
    assert "<script>alert" not in page
    assert 'href="applications/%22%3E%3Cscript%3Ealert%281%29%3C%2Fscript%3E%3F%23/"' in page


async def test_the_pages_of_a_fleet_and_of_each_application_find_their_files_and_calls() -> None:
    async with fleet_of({"a b": ["words"], "c": ["more"]}) as world:
        await until(lambda: world.fleet.not_ready() == [])
        overview = await world.get("/admin/")
        assert sorted(names(overview.text)) == ["a b", "c"]
        links = re.findall(r'<a href="(applications/[^"]*)"', overview.text)
        assert sorted(links) == ["applications/a%20b/", "applications/c/"]
        for link in links:
            page = await world.get(f"/admin/{link}")
            assert page.status_code == 200
            assert 'href="/admin/v1/' not in page.text
            for path in ("v1/overview", "v1/lag?format=csv", "v1/health"):
                assert (await world.get(f"/admin/{link}{path}")).status_code == 200
        for page in (overview, await world.get("/admin/applications/c/")):
            for path in re.findall(r'(?:src|href)="(/admin/static/[^"]*)"', page.text):
                assert (await world.get(path)).status_code == 200
        assert (await world.get("/")).headers["location"] == "./admin/"
        assert (await world.get("/admin/applications/none/")).status_code == 404
