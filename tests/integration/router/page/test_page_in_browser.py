"""The page in a real browser: true, kept true, and said to be stale when it may not be. No error under its policy."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, expect
from tests.support.matrix import in_full
from tests.support.page.browser import (
    CHROMIUM,
    NO_CHROMIUM,
    SHOWN_OF_PAGE,
    Shown,
    axe_source,
    chromium,
    shown,
    violations,
)
from tests.support.page.fake_router import FakeRouter, fake_router
from tests.support.page.overviews import SHOWN, Overview, degraded, healthy, large, row, waiting

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

LINES_OF_FIRST_WORD = """each => {
  const [text, range] = [each.firstChild, document.createRange()];
  range.setStart(text, 0);
  range.setEnd(text, text.data.indexOf(" "));
  return range.getClientRects().length;
}"""
"""How many lines the first word of an element takes: more than one if it is broken."""

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def process() -> Iterator[FakeRouter]:
    with fake_router() as started:
        yield started


@pytest.fixture
def router(process: FakeRouter) -> FakeRouter:
    """A router that knows that all is well."""
    process.show(healthy())
    return process


@pytest.fixture
def live(browser: Browser, router: FakeRouter) -> Iterator[Shown]:
    """The page, live; at the end its console must have been silent."""
    with shown(browser, f"{router.url}/admin/") as page:
        yield page
        assert page.errors == []


VIEWS = {
    **{name: (each(), "") for name, each in SHOWN.items()},
    "waiting": (waiting(), ""),
    "filtered": (degraded(), "?store=routes&state=unwell"),
    "as a table": (degraded(), "?view=table&state=unwell"),
    "with an open replica": (SHOWN["restoring"](), "?open=aircraft%2F2%2Fnode-3"),
    "large": (large(2100), "?page=2"),
    "large, as a table": (large(2100), "?view=table&page=3"),
    "of many nodes": (large(400, nodes=60), ""),
}


@pytest.mark.parametrize(
    ("overview", "query"),
    in_full(
        VIEWS.values(),
        if_in=(
            "large",
            "large, as a table",
            "of many nodes",
            "filtered",
            "as a table",
            "with an open replica",
            "empty",
        ),
        names=VIEWS,
    ),
)
def test_scripts_show_what_the_server_has_shown(
    browser: Browser, router: FakeRouter, overview: Overview, query: str
) -> None:
    router.show(overview)
    url = f"{router.url}/admin/{query}"
    with shown(browser, url, scripts=False) as first:
        expected = first.page.evaluate(SHOWN_OF_PAGE)
    router.show(SHOWN["restoring"]())
    with shown(browser, url) as kept:
        router.show(overview)
        expect(kept.page.locator("h1")).to_have_text(first_line(overview))
        assert kept.page.evaluate(SHOWN_OF_PAGE) == expected
        assert len(expected) > 40
        assert kept.errors == []


def first_line(overview: Overview) -> re.Pattern[str]:
    return re.compile(re.escape(overview["health"]["headline"]))


def test_a_fault_is_said_with_its_cause_and_taken_back(live: Shown, router: FakeRouter) -> None:
    page = live.page
    expect(page.locator("h1")).to_have_text(re.compile("all well"))
    router.show(degraded())
    expect(page.locator("h1")).to_have_text(re.compile("node-3 is dead"))
    for said in ("it did not answer when it was asked", "checkpoint storage does not answer", "Redis refuses writes"):
        expect(page.locator("#indicators")).to_contain_text(said)
    expect(page.locator('[data-place="aircraft/0/node-1"]').first).to_have_text("A 3 ▲")
    expect(page.locator("#disagreement")).to_contain_text("suspect: timeouts")
    expect(page.locator("#events li").first).to_contain_text("Redis lost")
    assert page.title().startswith("✕ flights: node-3 is dead")
    router.show(healthy())
    expect(page.locator("h1")).to_have_text(re.compile("all well"))
    expect(page.locator("#indicators li")).to_have_count(0)
    expect(page.locator("#disagreement-part")).to_be_hidden()


def test_rows_keep_their_place_and_their_element_while_values_change(live: Shown, router: FakeRouter) -> None:
    page = live.page
    page.evaluate("() => document.querySelectorAll('main tr, main a.cell').forEach((each) => { each.isKept = true; })")
    router.show(degraded())
    expect(page.locator("h1")).to_have_text(re.compile("node-3 is dead"))
    kept = page.locator("#grid tr, #stores tr").evaluate_all("(rows) => rows.map((row) => row.isKept === true)")
    assert all(kept)
    assert len(kept) > 15
    overview = degraded()
    del overview["grid"]["rows"][5]
    overview["grid"]["rows"].insert(4, row("aircraft", 99, {"node-1": overview["grid"]["rows"][0]["cells"]["node-1"]}))
    router.show(overview)
    expect(page.locator('#grid tr[data-key="aircraft/99"]')).to_be_visible()
    keys = page.locator("#grid tbody tr").evaluate_all("(rows) => rows.map((row) => row.dataset.key)")
    assert keys.index("aircraft/99") == 4, "a new partition has its place among those of its store"
    assert len(keys) == 12


STALE = {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL}


@pytest.mark.parametrize("how", in_full(STALE.values(), if_in=("killed",), names=STALE))
def test_a_router_that_falls_silent_makes_the_page_stale(browser: Browser, how: signal.Signals) -> None:
    with fake_router() as own, shown(browser, f"{own.url}/admin/") as live:
        banner = live.page.locator("#stale")
        expect(banner).to_be_hidden()
        own.process.send_signal(how)
        expect(banner).to_be_visible()
        expect(banner).to_have_text(re.compile("Stale: nothing was heard since 12:04:31"))
        expect(live.page.locator("#live")).to_have_text("stale")
        if how is signal.SIGSTOP:
            own.process.send_signal(signal.SIGCONT)
            expect(banner).to_be_hidden()
            expect(live.page.locator("#live")).to_have_text("live")
            assert live.errors == []


@pytest.mark.full
def test_a_router_that_comes_back_is_heard_again_without_a_reload(browser: Browser, router: FakeRouter) -> None:
    """The page connects anew by itself after an answer that is an error, which ends an EventSource for good."""
    with shown(browser, "about:blank", scripts=False) as page:
        refuse = [True]

        def answer(route: Any) -> None:
            if refuse[0]:
                route.fulfill(status=503, body="{}", content_type="application/problem+json")
            else:
                route.continue_()

        page.page.route("**/admin/changes*", answer)
        page.page.unroute("**/main.js")
        page.page.goto(f"{router.url}/admin/")
        expect(page.page.locator("#stale")).to_be_visible()
        refuse[0] = False
        expect(page.page.locator("#live")).to_have_text("live")


CHECKED = {f"{name}, {theme}": (name, theme) for name in SHOWN for theme in ("light", "dark")}
MORE = ("healthy, dark", "degraded, light", "restoring, dark", "empty, light")


@pytest.mark.parametrize(("name", "theme"), in_full(CHECKED.values(), if_in=MORE, names=CHECKED))
def test_the_page_has_no_barrier_that_a_checker_finds(
    browser: Browser, router: FakeRouter, name: str, theme: str
) -> None:
    router.show(SHOWN[name]())
    with shown(browser, f"{router.url}/admin/?open=aircraft/0/node-1", color_scheme=theme) as live:
        assert violations(live.page, axe_source()) == []


@pytest.mark.parametrize("theme", in_full((("light",), ("dark",)), if_in=("dark",), names=("light", "dark")))
def test_a_runbook_opens_from_the_health_line_and_is_readable(browser: Browser, router: FakeRouter, theme: str) -> None:
    router.show(degraded())
    with shown(browser, f"{router.url}/admin/", color_scheme=theme) as live:
        page = live.page
        page.locator("#summary a").click()
        expect(page).to_have_url(re.compile("/admin/runbooks/nodes$"))
        expect(page.locator("main")).to_contain_text("For readers.")
        assert violations(page, axe_source()) == []
        page.goto(f"{router.url}/admin/runbooks/reads")
        assert violations(page, axe_source()) == []
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
        assert live.errors == []


def test_the_overview_of_several_applications_has_no_barrier_and_fits_a_phone(
    browser: Browser, router: FakeRouter
) -> None:
    with shown(browser, f"{router.url}/fleet/admin/", color_scheme="dark", **PHONE) as live:
        expect(live.page.locator("#rows tr").first).to_contain_text("node-3 is dead")
        table = live.page.locator(".scroll")
        assert table.evaluate("each => each.scrollWidth - each.clientWidth") == 0
        assert live.page.locator(".brand").evaluate(LINES_OF_FIRST_WORD) == 1
        assert violations(live.page, axe_source()) == []
        live.page.set_viewport_size({"width": 1280, "height": 600})
        assert violations(live.page, axe_source()) == []


def test_the_overview_of_several_applications_says_that_no_answer_comes_and_goes_on_when_one_does(
    browser: Browser,
) -> None:
    with fake_router() as own, shown(browser, f"{own.url}/fleet/admin/") as live:
        said = live.page.locator("#live")
        expect(said).to_have_text("live")
        own.process.send_signal(signal.SIGSTOP)
        expect(said).to_have_text("no answer comes")
        own.process.send_signal(signal.SIGCONT)
        expect(said).to_have_text("live")


def test_no_text_can_become_markup(live: Shown) -> None:
    for sink in ("document.body.innerHTML = '<b>x</b>'", "document.write('<b>x</b>')"):
        with pytest.raises(Error, match="TrustedHTML"):
            live.page.evaluate(f"() => {{ {sink}; }}")
    for name in ("any", "understudy"):
        with pytest.raises(Error, match="Policy"):
            live.page.evaluate(f"() => trustedTypes.createPolicy('{name}', {{}})")
    live.errors.clear()  # the refusals, which the console reports


def test_the_grid_is_one_stop_of_the_keyboard_and_arrows_move_in_it(live: Shown) -> None:
    page = live.page
    assert page.locator('#grid a[tabindex="0"]').count() == 1
    page.locator('[data-place="aircraft/0/node-1"]').first.focus()
    page.keyboard.press("ArrowRight")
    assert focused(page) == "aircraft/0/node-2"
    page.keyboard.press("ArrowDown")
    assert focused(page) == "aircraft/1/node-2"
    page.keyboard.press("Enter")
    expect(page.locator("#replica")).to_contain_text("aircraft 1 on node-2: A 0")
    page.keyboard.press("Escape")
    expect(page.locator("#replica")).to_be_hidden()
    assert focused(page) == "aircraft/1/node-2"
    page.keyboard.press("/")
    assert page.evaluate("() => document.activeElement.dataset.field") == "tailnum"


def focused(page: Page) -> str:
    return str(page.evaluate("() => document.activeElement.dataset.place"))


def test_what_the_reader_chose_stands_in_the_url(live: Shown, router: FakeRouter) -> None:
    page = live.page
    page.locator("#filter select[name=store]").select_option("routes")
    expect(page.locator("#grid tbody tr")).to_have_count(4)
    page.locator("#filter select[name=view]").select_option("table")
    expect(page.locator("#table tbody tr")).to_have_count(8)
    assert page.url.endswith("?store=routes&view=table")
    page.reload()
    expect(page.locator("#table tbody tr")).to_have_count(8)
    live.wait_until_live()
    page.go_back()
    expect(page.locator("#grid tbody tr")).to_have_count(4)
    page.locator("#stores a", has_text="routes").click()
    expect(page.locator("#grid tbody tr")).to_have_count(12)
    assert page.url.endswith("?")


def test_a_key_is_looked_up_to_the_last_digit_and_is_in_the_url(live: Shown, router: FakeRouter) -> None:
    page, before = live.page, len(router.requests())
    page.locator('#ask input[data-field="tailnum"]').fill("N14228")
    page.locator("#ask-bounds summary").click()
    page.locator("#ask input[name=max_lag]").fill("2")
    page.locator("#ask").get_by_role("button", name="Get").click()
    answer = page.locator("#answer")
    for said in ("90071992547409931", "418 of 418, 0 batches behind", "node-1, active, RUNNING, partition 0"):
        expect(answer).to_contain_text(said)
    expect(answer).to_contain_text("understudy lookup aircraft '[\"N14228\"]' --max-lag 2 --url http://127.0.0.1:")
    expect(answer).to_contain_text("/v1/stores/aircraft/lookup?key=%5B%22N14228%22%5D&max_lag=2'")
    assert router.requests()[before:][0] == [
        "lookup aircraft", {"key": '["N14228"]', "max_lag": "2", "longs": "string"},
    ]  # fmt: skip
    with shown(page.context.browser, page.url) as sent:  # type: ignore[arg-type]  # it has one
        expect(sent.page.locator("#answer")).to_contain_text("90071992547409931")


@pytest.mark.full
def test_a_drain_is_confirmed_by_what_it_costs_and_can_be_undone(live: Shown, router: FakeRouter) -> None:
    page = live.page
    router.show(degraded())
    expect(page.locator("h1")).to_have_text(re.compile("node-3 is dead"))
    before = len(router.requests())
    row = page.locator("#nodes tr", has_text="node-1")
    row.get_by_role("button", name="Drain").click()
    expect(page.locator("#drain-why")).to_have_text(re.compile("not safe to stop now: aircraft 0 and routes 1"))
    expect(page.locator("#drain-loses")).to_contain_text("routes 1")
    page.locator("#drain-cancel").click()
    assert router.requests()[before:] == []
    row.get_by_role("button", name="Drain").click()
    page.locator("#drain-do").click()
    expect(page.locator("#toast")).to_contain_text("node-1 drains")
    expect(row).to_contain_text("draining")
    page.locator("#toast-undo").click()
    expect(row).to_contain_text("serving")
    assert router.requests()[before:] == [["drain node-1", True], ["drain node-1", False]]


@pytest.mark.full
def test_a_phone_shows_what_is_not_well_without_scrolling_sideways(browser: Browser, router: FakeRouter) -> None:
    router.show(degraded())
    with shown(browser, f"{router.url}/admin/", **PHONE) as live:
        page = live.page
        expect(page.locator("#matrix")).to_be_hidden()
        expect(page.locator("#table tbody tr")).to_have_count(11)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
        assert violations(page, axe_source()) == []
        assert live.errors == []
