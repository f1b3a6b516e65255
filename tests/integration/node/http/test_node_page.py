"""The page of `understudy serve` in a real browser: the page of a router, without what only a router sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import VALUE, HandmadeCheckpoint, schema_json
from tests.support.checkpoint.handmade_orders import HandmadeOrders
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.page.browser import CHROMIUM, NO_CHROMIUM, Shown, axe_source, chromium, shown, violations
from tests.support.page.explored import VERSION, choose_store, do, expect_said, rows

from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import Field, StringType, StructType, TimestampType
from understudy_shared.spark.unsafe_row import compile_row_encoder

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

HOUR_US = 3_600_000_000


class HandmadeHours(HandmadeCheckpoint):
    """Three windows of an hour, of two airports each. The count is the hour, and one more for LGA."""

    def _records(self, version: int, partition: int) -> list[spark.Record]:
        span = StructType((Field("start", TimestampType()), Field("end", TimestampType())))
        codec = KeyCodec(StructType((Field("window", span), Field("origin", StringType()))))
        keys = [((hour * HOUR_US, (hour + 1) * HOUR_US), origin) for hour in range(3) for origin in ("JFK", "LGA")]
        return [
            (codec.encode(key), compile_row_encoder(VALUE)((key[0][0] // HOUR_US + (key[1] == "LGA"), 0)))
            for key in keys
            if codec.partition(key, self.partitions) == partition
        ]


class Followed:
    """A checkpoint and the node that serves it."""

    def __init__(self, orders: HandmadeCheckpoint, node: ServedNode) -> None:
        self.orders = orders
        self.node = node


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    folder = tmp_path_factory.mktemp("served")
    orders = HandmadeOrders(folder / "orders").create().add(*range(1, VERSION + 1))
    with served_node(orders.path, folder / "data") as node:
        node.wait_for_version(VERSION)
        yield Followed(orders, node)


@pytest.fixture(scope="module")
def browser(followed: Followed) -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def live(browser: Browser, followed: Followed) -> Iterator[Shown]:
    """The page; at the end its console must have been silent."""
    with shown(browser, f"http://127.0.0.1:{followed.node.port}/admin/") as page:
        yield page
        assert page.errors == []


def test_it_shows_the_lag_and_leaves_out_what_only_a_router_sees(live: Shown) -> None:
    page = live.page
    expect(page.locator("#health")).to_contain_text("all well")
    expect(page.locator("#figures")).to_contain_text(f"last version {VERSION}")
    expect(page.locator("#grid a.cell").first).to_have_attribute("data-state", "well")
    expect(page.locator("#nodes-part")).to_be_hidden()
    for absent in ("Redis", "inside the bound"):
        expect(page.locator("#figures")).not_to_contain_text(absent)
    expect(page.get_by_role("button", name="Explain")).to_have_count(0)


def test_a_key_is_looked_up_and_the_page_counts_it(live: Shown) -> None:
    page = live.page
    for column, value in (("tenant", "a"), ("n", "7")):
        page.locator(f'#ask input[data-field="{column}"]').fill(value)
    page.locator("#ask button[value=get]").click()
    expect(page.locator("#answer")).to_contain_text("Found")
    expect(page.locator("#answer")).to_contain_text("answered by")
    page.get_by_text("How old the answers were").click()
    expect(page.locator("#served tbody tr").first).to_be_visible()


def test_an_open_key_shows_its_windows_and_no_other_keys(browser: Browser, tmp_path: Path) -> None:
    span = json.loads(schema_json(("start", "timestamp"), ("end", "timestamp")))
    hours = HandmadeHours(tmp_path / "hours", key_columns=(("window", span), ("origin", "string"))).create().add(1)
    with served_node(hours.path, tmp_path / "data") as node:
        node.wait_for_version(1)
        with shown(browser, f"http://127.0.0.1:{node.port}/admin/?explore=op0") as live:
            expect_said(live.page, "Keys 1 to 6, the last")
            number = next(number for number, row in enumerate(rows(live.page)) if row["origin"] == "JFK")
            live.page.locator("#explore-list a[data-row]").nth(number).click()
            do(live.page, "Show its windows")
            opened = live.page.locator("#explore-key")
            expect(opened.get_by_role("heading", name="3 windows at version 1")).to_be_visible()
            starts, counts = (opened.locator(f"tbody tr td:nth-child({place})") for place in (1, 4))
            assert starts.all_inner_texts() == [f"1970-01-01T0{hour}:00:00.000000Z" for hour in range(3)]
            assert counts.all_inner_texts() == ["0", "1", "2"]
            assert violations(live.page, axe_source()) == []
            assert live.errors == []


def test_a_commit_is_seen_without_loading_again(live: Shown, followed: Followed) -> None:
    followed.orders.add(VERSION + 1)
    expect(live.page.locator("#figures")).to_contain_text(f"last version {VERSION + 1}")
    choose_store(live.page)
    do(live.page, "Changes of the last minute")
    expect(live.page.locator("#explore-changes")).to_contain_text("changes in the last minute")
    expect(live.page.locator("#explore-changes tbody tr").first).to_contain_text(str(VERSION + 1))
