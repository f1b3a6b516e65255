"""Explore on the page of a real router and node, in a real browser: pages, filters, one key and its history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.support.checkpoint.handmade_orders import BIG
from tests.support.cluster.in_process import ClusterRouter
from tests.support.page.browser import CHROMIUM, NO_CHROMIUM, Shown, axe_source, chromium, shown, violations
from tests.support.page.explored import VERSION, address, choose_store, do, expect_said, explored, rows

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRouter]:
    with explored(tmp_path_factory.mktemp("explored")) as started:
        yield started


@pytest.fixture(scope="module")
def browser(router: ClusterRouter) -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def live(browser: Browser, router: ClusterRouter) -> Iterator[Shown]:
    """The page with the store chosen; at the end its console must have been silent."""
    with shown(browser, address(router)) as page:
        choose_store(page.page)
        yield page
        assert page.errors == []


def test_pages_lead_forward_and_back_at_one_version_and_every_key_is_seen_once(live: Shown) -> None:
    page, seen = live.page, []
    do(page, "List keys")
    for said in ("Keys 1 to 50", "Keys 51 to 100", "Keys 101 to 130, the last"):
        expect_said(page, f"{said}: version {VERSION}")
        seen.append(rows(page))
        if len(seen) < 3:
            do(page, "Next")
    flat = [(row["tenant"], row["n"]) for each in seen for row in each]
    assert (len(flat), len(set(flat))) == (130, 130)
    for said, expected in (("Keys 51 to 100", seen[1]), ("Keys 1 to 50", seen[0])):
        do(page, "Previous")
        expect_said(page, said)
        assert rows(page) == expected


def test_a_prefix_and_filters_leave_only_the_keys_that_match(live: Shown) -> None:
    page = live.page
    page.locator('[data-prefix="tenant"]').fill("b")
    do(page, "Add a filter")
    row = page.locator("#explore-filters .filter")
    row.get_by_label("column").select_option("count")
    row.get_by_label("operator").select_option(">=")
    row.get_by_label("value").fill("10")
    do(page, "List keys")
    expect_said(page, "Keys 1 to 3, the last")
    assert {(each["tenant"], each["n"]) for each in rows(page)} == {("b", "7"), ("b", "8"), ("b", "9")}
    do(page, "Count")
    expect(page.locator("#explore-counted")).to_have_text(f"3 keys, counted at version {VERSION}.")
    row.get_by_label("value").fill("ten")
    do(page, "List keys")
    expect_said(page, "count")
    expect(page.locator("#explore-said .problem")).to_be_visible()
    live.errors.clear()  # the browser's own line about a 400


def test_a_key_shows_its_value_to_the_last_digit_and_its_history_with_a_plot(live: Shown) -> None:
    page = live.page
    do(page, "List keys")
    expect_said(page, "Keys 1 to 50")
    page.locator("#explore-list tbody tr").nth(3).locator("td").last.click()
    opened, key = page.locator("#explore-key"), rows(page)[3]
    for said in (str(BIG), f"{VERSION} of {VERSION}", "partition", "n1, active"):
        expect(opened).to_contain_text(said)
    do(page, "Show its history")
    expect(opened).to_contain_text(f"Versions 1 to {VERSION}: 2 changes")
    counts = opened.locator("tbody tr td:nth-child(3)")
    assert counts.all_inner_texts() == [str(int(key["n"]) + add) for add in (1, 2, 3)]
    low, high = int(key["n"]) + 1, int(key["n"]) + 3
    expect(opened.get_by_role("img", name=f"count: {low} to {high}, versions 1 to {VERSION}")).to_be_visible()
    assert violations(page, axe_source()) == []


@pytest.mark.full
def test_the_keyboard_alone_lists_opens_closes_and_turns_pages(live: Shown) -> None:
    page = live.page
    page.locator("#explore-form select[name=store]").focus()
    for _ in range(3):  # past the two columns of the prefix
        page.keyboard.press("Tab")
    assert focused(page) == "List keys"
    page.keyboard.press("Enter")
    expect_said(page, "Keys 1 to 50")
    page.locator("#explore-list a[data-row]").first.focus()
    assert page.locator('#explore-list a[data-row][tabindex="0"]').count() == 1
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#explore-key")).to_contain_text(str(BIG))
    assert page.evaluate("() => document.activeElement.id") == "explore-key"
    page.keyboard.press("Escape")
    expect(page.locator("#explore-key")).to_be_hidden()
    third = json.dumps(rows(page)[2], separators=(",", ":"))
    assert page.evaluate("() => document.activeElement.dataset.row") == third
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert focused(page) == "Next"
    for said in ("Keys 51 to 100", "Keys 101 to 130"):
        page.keyboard.press("Enter")
        expect_said(page, said)
        assert focused(page) == "Next", "the focus stays, also where there is no next page"


def focused(page: Page) -> str:
    return str(page.evaluate("() => document.activeElement.textContent"))


def problem(kind: str, status: int) -> dict[str, Any]:
    body = {"type": kind, "title": kind, "detail": "it is as it is", "fix": "do this"}
    return {"status": status, "body": json.dumps(body), "content_type": "application/problem+json"}


REFUSED = (("overloaded", 429, "Try again"), ("version-gone", 410, "Newest version"))


@pytest.mark.parametrize(("kind", "status", "way"), REFUSED)
def test_a_page_that_is_refused_says_why_and_offers_a_way_on(live: Shown, kind: str, status: int, way: str) -> None:
    page = live.page
    do(page, "List keys")
    expect_said(page, "Keys 1 to 50")
    page.route("**/scan?*", lambda route: route.fulfill(**problem(kind, status)))
    do(page, "Next")
    for said in (kind, "it is as it is", "do this"):
        expect_said(page, said)
    assert focused(page) == "Try again", "the focus is where the reader goes on"
    page.unroute("**/scan?*")
    do(page, way)
    expect_said(page, "Keys 51 to 100" if way == "Try again" else "Keys 1 to 50")
    live.errors.clear()  # the browser's own line about the refusal
