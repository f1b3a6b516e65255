"""What viewers with scripts are sent: the parts of the page that differ, drawn once for all who chose the same."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from tests.support.page.fake_router import Known
from tests.support.page.overviews import SHOWN, Overview, degraded, healthy
from tests.unit.router.page.test_page_served import Words, rendered

from understudy_router.page import live
from understudy_router.page.live import MAX_KEPT, MAX_PAUSE_S, Drawings, Viewer
from understudy_router.page.page_query import PageQuery
from understudy_router.page.render import drawn_parts

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
    monkeypatch.setattr(live, "monotonic", made)
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


async def test_a_viewer_that_comes_back_gets_all_again() -> None:
    drawings = Drawings()
    first = await sent(Viewer(drawings, ALL), known(1))
    assert await sent(Viewer(drawings, ALL), known(1)) == first


async def test_those_who_chose_the_same_share_a_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[PageQuery] = []

    def counted(overview: Overview, query: PageQuery) -> Any:
        drawn.append(query)
        return drawn_parts(overview, query)

    monkeypatch.setattr(live, "drawn_parts", counted)
    drawings = Drawings()
    viewers = [Viewer(drawings, query) for query in (ALL, ALL, PageQuery(store="routes"), ALL)]
    for tick in (1, 2):
        for viewer in viewers:
            await viewer.event(known(tick))
    assert drawn == [ALL, PageQuery(store="routes")] * 2


async def test_no_more_is_kept_than_a_few_drawings() -> None:
    drawings = Drawings()
    for number in range(1, 2 * MAX_KEPT):
        await drawings.of(PageQuery(page=number), known(1))
    assert len(drawings._kept) == MAX_KEPT


class Slow(Known):
    """An overview that takes a tenth of a second to be drawn."""

    def __init__(self, tick: int, clock: Clock) -> None:
        super().__init__({**healthy(), "tick": tick})
        object.__setattr__(self, "clock", clock)

    clock: Clock

    def documents(self) -> Any:
        self.clock.now_s += 0.1
        return super().documents()


async def test_what_costs_much_is_drawn_less_often_but_for_those_who_have_nothing(clock: Clock) -> None:
    drawings = Drawings()
    assert drawings.is_due(ALL, known(1))
    await drawings.of(ALL, Slow(1, clock))
    assert drawings.is_due(ALL, known(1)), "what is drawn may be sent"
    assert drawings.is_due(PageQuery(store="routes"), known(1)), "a reader does not wait for the first drawing"
    assert not drawings.is_due(ALL, known(2))
    clock.now_s += 0.99
    assert not drawings.is_due(ALL, known(2)), "a tenth of a second of drawing, then a second for others"
    clock.now_s += 0.02
    assert drawings.is_due(ALL, known(2))


async def test_many_different_drawings_together_take_no_larger_share_and_each_comes_at_last(clock: Clock) -> None:
    drawings = Drawings()
    for number in range(1, 5):
        await drawings.of(PageQuery(page=number), Slow(number, clock))
    fourth = PageQuery(page=4)
    clock.now_s += 3.9
    assert not drawings.is_due(fourth, known(9)), "four drawings of a tenth of a second in four seconds"
    clock.now_s += 0.2
    assert drawings.is_due(fourth, known(9))
    for number in range(10, 400):
        await drawings.of(PageQuery(page=number), Slow(number, clock))
    assert max(drawings._due.values()) <= clock.now_s + MAX_PAUSE_S
