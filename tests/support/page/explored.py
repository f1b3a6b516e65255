"""A store with keys to explore, behind a real router and node of a cluster of its own; and the page that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Page, expect
from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade_orders import HandmadeOrders
from tests.support.cluster.in_process import ClusterRouter, cluster_node, cluster_router
from tests.support.spark.queries import wait_until

VERSION = 5


@contextmanager
def explored(folder: Path, *, router: dict[str, Any] | None = None, **settings: Any) -> Iterator[ClusterRouter]:
    """A router and a node of a checkpoint with a store `op0`. `settings` are of both, `router` of the router alone."""
    orders = HandmadeOrders(folder / "orders").create().add(*range(1, VERSION + 1))
    with (
        redis_server() as server,
        cluster_router(server.url, **settings, **(router or {})) as started,
        cluster_node(orders.path, folder / "n1", server.url, node_id="n1", **settings),
    ):
        wait_until(lambda: not started.router.not_ready(), what="the router knows the node", limit_s=60)
        yield started


def address(router: ClusterRouter, **query: str) -> str:
    """The address of the page of a router."""
    return f"http://127.0.0.1:{router.port}/admin/?{urlencode(query)}"


def choose_store(page: Page) -> None:
    """Choose the store, and wait for its columns."""
    page.locator("#explore-form select[name=store]").select_option("op0")
    expect(page.locator("#explore-prefix input")).to_have_count(2)


def do(page: Page, name: str) -> None:
    """Press a button of Explore."""
    page.locator("#explore").get_by_role("button", name=name, exact=True).click()


def rows(page: Page) -> list[dict[str, Any]]:
    """The keys that are listed, as their links have them."""
    found = page.locator("#explore-list a[data-row]").evaluate_all("(links) => links.map((each) => each.dataset.row)")
    return [json.loads(each) for each in found]


def expect_said(page: Page, text: str) -> None:
    """Wait until Explore says this of its list."""
    expect(page.locator("#explore-said")).to_contain_text(text)
