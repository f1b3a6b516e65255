"""What viewers with scripts are sent: the parts of the page that differ, drawn once for all who chose the same."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from tests.support.page.fake_router import Known
from tests.support.page.overviews import SHOWN, Overview, degraded, healthy
from tests.unit.shared.page.test_page_served import Words, rendered

from understudy_shared.page import routes
from understudy_shared.page.render import drawn_parts
from understudy_shared.page.replicas import PageQuery
from understudy_shared.page.routes import Drawings, Viewer

ALL = PageQuery()


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(routes, "monotonic", made)
    return made


def known(tick: int, overview: Overview | None = None) -> Known:
    return Known({**(overview or healthy()), "tick": tick})


async def sent(viewer: Viewer, now: Known) -> dict[str, Any]:
    """The data of the event that a viewer gets."""
    event = await viewer.event(now)
    assert event.startswith(b"event: page\ndata: ")
    assert event.endswith(b"\n\n")
    found: dict[str, Any] = orjson.loads(event.split(b"data: ")[1])
    return found


@pytest.mark.parametrize("name", SHOWN)
def test_a_part_is_drawn_as_the_page_has_it_and_has_its_place_there(name: str) -> None:
    overview, query = SHOWN[name](), PageQuery(store="aircraft", view="table")
    page = rendered(overview, query)
    ids = Words(page).ids
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

    monkeypatch.setattr(routes, "drawn_parts", counted)
    drawings = Drawings()
    viewers = [Viewer(drawings, query) for query in (ALL, ALL, PageQuery(store="routes"), ALL)]
    for tick in (1, 2):
        for viewer in viewers:
            await viewer.event(known(tick))
    assert drawn == [ALL, PageQuery(store="routes")] * 2
