"""The page: its numbers and words, its replicas, its slots, the page of many applications, and how it is served: true
without scripts, under its policy, with files that a browser may keep.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster.fake_cluster import until
from tests.support.cluster.fleet import fleet_of
from tests.support.page.fake_router import Known, fake_app
from tests.support.page.markup import Markup
from tests.support.page.overviews import SHOWN, Overview, cell, degraded, healthy, history, node

import understudy_shared.page
from understudy_shared.page import feed
from understudy_shared.page.feed import Drawings, Viewer
from understudy_shared.page.render import PageReader, drawn_parts, fleet_page, page_pieces
from understudy_shared.page.replicas import (
    PageQuery,
    cell_view,
    page_bounds,
    read_query,
)
from understudy_shared.page.views import (
    FleetQuery,
    node_slots,
)
from understudy_shared.page.words import age, batches, duration, number, percent, rate, size


@given(st.none() | st.floats(min_value=0, max_value=1e15))
def test_only_what_is_unknown_is_written_as_a_question_mark(value: float | None) -> None:
    for write in (number, duration, age, size, rate, percent, batches):
        assert ("?" in write(value)) is (value is None)


@given(st.floats(min_value=0, max_value=99.9949))
def test_a_share_below_all_is_never_written_as_all(value: float) -> None:
    assert percent(value) != "100 %"


WELL, ATTENTION, HURT, MOVING, UNKNOWN, OFF = "well", "attention", "hurt", "moving", "unknown", "off"


@pytest.mark.parametrize(
    ("shown", "text", "state", "words"),
    [
        (cell(), "A 0", WELL, "active, running, 0 batches behind, < 2 s, reported < 2 s ago"),
        (cell("S", lag=1234), "S 1,234 ▲", ATTENTION, "running, lagging, 1,234 batches behind"),
        (cell(lag=None, lag_ms=None), "A ?", UNKNOWN, "running, lag unknown, ? batches behind, ?"),
        (cell("W", state="RESTORING", percent=62.9), "R 62 %", MOVING, "warm-up, restoring, 62 % done"),
        (cell("W", state="RESTORING", lag=None), "R ?", MOVING, "warm-up, restoring, ? batches behind"),
        (cell(state="CREATED", lag=None), "A …", MOVING, "active, opening, reported"),
        (cell(state="CLOSED", lag=None), "A ∅", OFF, "active, closed"),
        (cell(state="DEAD", lag=None, age_ms=None), "✕ A", HURT, "aircraft 0 on node-1: active, dead"),
        (cell(state=None, lag=None, age_ms=None), "A ?", UNKNOWN, "not heard of"),
        (cell(error="damaged"), "A 0 !", ATTENTION, "running, with an error: damaged"),
    ],
    ids=["running", "lagging", "unknown", "restoring", "restoring-unknown", "opening", "closed", "dead",
         "unheard", "error"],
)  # fmt: skip
def test_a_replica_has_a_letter_or_shape_a_colour_and_words(
    shown: dict[str, Any], text: str, state: str, words: str
) -> None:
    view = cell_view("aircraft", 0, "node-1", shown)
    assert (view.text, view.state) == (text, state)
    assert words in view.name
    assert view.name.startswith(view.text), "what is seen is part of what is said (WCAG 2.5.3)"


@given(st.integers(0, 100_000), st.integers(1, 1000), st.integers(1, 100_000))
def test_pages_have_every_row_once_and_none_is_empty_while_there_are_rows(total: int, size: int, page: int) -> None:
    first, last, pages = page_bounds(total, size, page)
    assert 0 <= first <= last <= total
    assert last - first <= size
    assert (last > first) is (total > 0)
    if page <= pages:
        assert first == (page - 1) * size
        assert last == min(total, page * size)


@pytest.mark.parametrize(
    "parameters",
    [{"page": "0"}, {"page": "-1"}, {"page": "²"}, {"page": "9" * 30}, {"state": "<b>"}, {"view": "x"},
     {"store": "x" * 5000}, {"other": "1"}],
    ids=str,
)  # fmt: skip
def test_a_link_that_makes_no_sense_shows_the_page(parameters: dict[str, str]) -> None:
    assert read_query(parameters) == PageQuery()


@pytest.mark.parametrize(
    ("safe", "live", "text"),
    [(True, True, "✓ safe"), (False, True, "✕ not safe"), (None, True, "? unknown"), (True, False, "-")],
)
def test_whether_a_node_may_be_stopped_is_unknown_until_it_is_known(safe: bool | None, live: bool, text: str) -> None:
    shown = node_slots(node(1, live=live, safe_to_stop={"safe": safe, "why": "so"}))
    assert shown["safe"].text == text
    assert shown["safe_why"].text == ("so" if live else ""), "nobody asks whether a dead node may be stopped"


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
    assert names(shown(rows, FleetQuery("none"))) == []


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


STATIC = Path(understudy_shared.page.__file__).parent / "static"
HOSTILE = """<img src=x onerror=alert(1)>"'`{{7*7}}</script>"""


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=fake_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as made:
        yield made


def rendered(overview: Overview, query: PageQuery | None = None) -> str:
    return "".join(
        page_pieces(overview, {"all": history(), "store": history(), "open": history()}, query or PageQuery(), "build")
    )


@pytest.mark.parametrize("name", SHOWN)
def test_the_page_has_no_inline_style_or_script_and_no_id_twice(name: str) -> None:
    html = rendered(SHOWN[name](), PageQuery(open="aircraft/0/node-1"))
    page = Markup(html)
    assert page.inline == []
    assert "style" not in page.tags
    assert re.findall(r"<script(?![^>]* src=)", html) == []
    assert sorted(page.ids) == sorted(set(page.ids))


def test_names_out_of_the_cluster_never_become_markup() -> None:
    overview = degraded()
    overview["application_id"] = HOSTILE
    overview["nodes"] = [node(1, node_id=HOSTILE, reason=HOSTILE, state=HOSTILE)]
    overview["stores"][0]["store"] = HOSTILE
    overview["grid"]["columns"] = [HOSTILE]
    overview["grid"]["rows"][0]["store"] = HOSTILE
    overview["grid"]["rows"][0]["cells"] = {HOSTILE: overview["grid"]["rows"][0]["cells"]["node-1"]}
    overview["events"][0]["detail"] = HOSTILE
    overview["health"]["headline"] = HOSTILE
    html = rendered(overview, PageQuery(store=HOSTILE, open=f"{HOSTILE}/0/{HOSTILE}"))
    page = Markup(html)
    assert "img" not in page.tags
    assert page.inline == []
    assert page.tags.count("script") == 3
    assert "{{7*7}}" in page.text, "what a name holds is shown as it is"


async def test_the_page_and_its_files_are_served_under_the_strict_policy(client: httpx.AsyncClient) -> None:
    page = await client.get("/admin/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = dict(part.strip().partition(" ")[::2] for part in page.headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "understudy",
    }
    assert page.headers["cache-control"] == "no-store"
    addresses = set(re.findall(r'(?:src|href)="\.\./(admin/static/[^"]+)"', page.text))
    assert len(addresses) == 5
    for address in addresses:
        file = await client.get(f"/{address}")
        assert file.status_code == 200, address
        assert file.headers["x-content-type-options"] == "nosniff"
        assert "immutable" in file.headers["cache-control"]
        alone = page.headers["content-security-policy"].replace("trusted-types understudy", "trusted-types 'none'")
        assert file.headers["content-security-policy"] == alone


async def test_a_person_who_types_the_host_only_gets_to_the_page(client: httpx.AsyncClient) -> None:
    for path in ("/", "/admin"):
        reply = await client.get(path)
        assert (reply.status_code, reply.headers["location"]) == (307, "./admin/")


@pytest.mark.parametrize("path", ["", "nothing.js", "../files.py", "..%2ffiles.py", "vendor", "vendor/CHECKSUMS"])
async def test_nothing_but_the_pages_files_is_served(client: httpx.AsyncClient, path: str) -> None:
    reply = await client.get(f"/admin/static/{path}")
    assert reply.status_code in {400, 404}
    assert reply.headers["content-type"] == "application/problem+json"


def test_no_script_makes_markup_of_a_text_but_the_one_that_takes_what_the_router_has_drawn() -> None:
    sinks = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment"
                       r"|parseFromString|\beval\(|new Function|srcdoc|setHTML")  # fmt: skip
    for path in STATIC.glob("*.js"):
        expected = ["parseFromString"] if path.name == "dom.js" else []
        assert sinks.findall(path.read_text()) == expected, path.name


ALL = PageQuery()


def known(tick: int, overview: Overview | None = None) -> Known:
    return Known({**(overview or healthy()), "tick": tick})


async def sent(viewer: Viewer, now: Known) -> dict[str, Any]:
    event = await viewer.event(now)
    assert event.startswith(b"event: page\ndata: ")
    assert event.endswith(b"\n\n")
    found: dict[str, Any] = orjson.loads(event.split(b"data: ")[1])
    return found


@pytest.mark.parametrize("name", SHOWN)
def test_a_part_is_drawn_as_the_page_has_it_and_has_its_place_there(name: str) -> None:
    overview, query = SHOWN[name](), PageQuery(store="aircraft", view="table")
    page = rendered(overview, query)
    ids = Markup(page).ids
    for part, pieces in drawn_parts(overview, query):
        text = "".join(pieces)
        if part != "replicas":  # its curve is the scripts'
            assert _stripped(text) in _stripped(page), part
        roots = re.findall(r"^<(?:section|div|dl|select)\b[^>]*\bid=\"([\w-]+)\"", text, re.MULTILINE)
        assert roots
        assert set(roots) <= set(ids), part


def _stripped(html: str) -> str:
    return re.sub(r"\s+", "", html)


async def test_a_viewer_gets_all_parts_at_first_and_then_those_that_differ() -> None:
    viewer = Viewer(Drawings(), ALL)
    first = await sent(viewer, known(1))
    for part in ("health", "figures", "nodes", "replicas", "events-part", "ask-store"):
        assert f'id="{part}"' in first["html"]
    assert (await sent(viewer, known(2)))["html"] == ""
    overview = healthy()
    overview["reads"]["per_s"] += 1
    later = await sent(viewer, known(3, overview))
    assert 'id="figures"' in later["html"]
    assert 'id="replicas"' not in later["html"]
    worse = await sent(viewer, known(4, degraded()))
    assert worse["title"].startswith("✕ flights: node-3 is dead")
    assert worse["generated_at"] == degraded()["generated_at"]


async def test_those_who_chose_the_same_share_a_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[PageQuery] = []

    def counted(overview: Overview, query: PageQuery) -> Any:
        drawn.append(query)
        return drawn_parts(overview, query)

    monkeypatch.setattr(feed, "drawn_parts", counted)
    drawings = Drawings()
    viewers = [Viewer(drawings, query) for query in (ALL, ALL, PageQuery(store="routes"), ALL)]
    for tick in (1, 2):
        for viewer in viewers:
            await viewer.event(known(tick))
    assert drawn == [ALL, PageQuery(store="routes")] * 2
