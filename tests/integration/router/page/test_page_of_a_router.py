"""The page of a real router with real nodes in a real browser: each fault with its own cause, and taken back."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.bus.refused_writes import WAYS
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.page.browser import CHROMIUM, NO_CHROMIUM, axe_source, chromium, shown, violations
from tests.support.spark.queries import wait_until

from understudy_shared.base.sockets import free_ports

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)


WELL = re.compile("all well")


@dataclass(slots=True)
class Running:
    """A router at `url`, and what it knows of: `processes` are two nodes, then the router."""

    url: str
    checkpoint: HandmadeCheckpoint
    redis: RedisServer
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def overview(self) -> dict[str, Any]:
        """What the page shows; nothing while the router does not answer."""
        with suppress(httpx.HTTPError):
            found: dict[str, Any] = httpx.get(f"{self.url}/admin/v1/overview", timeout=5).json()
            return found
        return {}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    checkpoint = HandmadeCheckpoint(tmp_path / "words").create().add(1, 2)
    ports = free_ports([0, 0, 0])
    with redis_server() as redis:
        known = Running(f"http://127.0.0.1:{ports[2]}", checkpoint, redis)
        shared = ("--application-id", "words", "--redis", redis.url)

        def start(name: str, port: int, *arguments: str) -> None:
            own = ("--port", str(port), "--data-dir", str(tmp_path / name))
            with (tmp_path / f"{name}.log").open("wb") as log:
                command = [sys.executable, "-m", "understudy", *arguments, *shared, *own]
                known.processes.append(subprocess.Popen(command, stdout=log, stderr=log))

        def both_hold_both() -> bool:
            counts = known.overview().get("counts", {})
            return bool(counts.get("nodes_live") == 2 and counts.get("running") == 4)

        try:
            for number in (0, 1):
                start(f"node-{number}", ports[number], "node", str(checkpoint.path), "--node-id", f"node-{number}")
            start("router", ports[2], "router")
            wait_until(both_hold_both, what="two nodes that hold all", limit_s=120)
            yield known
        finally:
            for process in known.processes:
                process.kill()
                process.wait()


def expect_well(page: Page) -> None:
    """Wait until everything that was said is taken back."""
    expect(page.locator("h1")).to_have_text(WELL)
    expect(page.locator("#indicators li")).to_have_count(0)


def expect_event(page: Page, event: str, detail: str) -> None:
    row = page.locator("#events li", has=page.locator("b", has_text=re.compile(f"^{event}$")))
    expect(row.first).to_contain_text(detail)


def expect_page_of_a_node(page: Page, port: int) -> None:
    """A node alone has the page, too, which `/` leads to and a checker finds no barrier in."""
    page.goto(f"http://127.0.0.1:{port}/")
    expect(page).to_have_url(re.compile("/admin/$"))
    expect(page.locator("h1")).to_have_text(re.compile("all well|The query has not committed"))
    expect(page.locator("main")).to_contain_text("one node of a cluster")
    assert violations(page, axe_source()) == []
    expect(page.get_by_role("link", name="health", exact=True)).to_have_attribute("href", "v1/health")


@pytest.mark.full
def test_the_page_of_a_router_looks_up_drains_and_says_who_died(running: Running) -> None:
    url, processes = running.url, running.processes
    with chromium() as browser, shown(browser, f"{url}/admin/") as live:
        page = live.page
        expect_page_of_a_node(page, running.overview()["nodes"][0]["port"])
        page.goto(f"{url}/admin/")
        expect(page.locator('[data-place="op0/0/node-0"]').first).to_have_text(re.compile("^[AS] 0$"))
        page.locator("#ask input[data-field]").first.fill("alpha")
        page.locator("#ask").get_by_role("button", name="Explain").click()
        expect(page.locator("#answer")).to_contain_text("0 versions behind")
        assert live.errors == []
        row = page.locator("#nodes tr", has_text="node-0")
        row.get_by_role("button", name="Drain").click()
        expect(page.locator("#drain-why")).to_contain_text("It is safe to stop")
        page.locator("#drain-do").click()
        expect(row).to_contain_text("draining")
        expect_event(page, "drain", "node-0: somebody asked for it")
        page.locator("#toast-undo").click()
        expect(row).to_contain_text("serving")
        expect_event(page, "drain-undone", "node-0: somebody took the drain back")
        processes[0].kill()
        expect(page.locator("h1")).to_contain_text("node-0 is dead")
        expect(row).to_contain_text("did not answer when asked")
        assert page.title().startswith("▲ words: node-0 is dead")
        expect(page.locator("#summary a")).to_have_attribute("href", "runbooks/nodes")
        processes[2].kill()
        expect(page.locator("#stale")).to_be_visible()
        assert violations(page, axe_source()) == []


@pytest.mark.full
def test_a_redis_that_refuses_writes_is_said_with_who_says_so_and_taken_back(running: Running) -> None:
    with chromium() as browser, shown(browser, f"{running.url}/admin/") as live:
        page = live.page
        expect_well(page)
        WAYS["memory"].refuse(running.redis)
        expect(page.locator("h1")).to_contain_text("Redis refuses writes")
        expect(page.locator("#indicators")).to_contain_text(re.compile("Redis refuses what node-[01]"))
        expect_event(page, "Redis refuses writes", "Redis refuses what node-")
        page.locator("#summary a").click()
        expect(page).to_have_url(re.compile("/admin/runbooks/bus$"))
        expect(page.locator("main")).to_contain_text("For readers.")
        assert violations(page, axe_source()) == []
        page.go_back()
        live.wait_until_live()
        WAYS["memory"].allow(running.redis)
        expect_well(page)
        expect_event(page, "Redis takes writes", "no node says any more")
        assert live.errors == []


@pytest.mark.full
def test_a_checkpoint_that_is_gone_is_said_with_who_cannot_read_it_and_taken_back(running: Running) -> None:
    path = running.checkpoint.path
    with chromium() as browser, shown(browser, f"{running.url}/admin/") as live:
        page = live.page
        expect_well(page)
        path.rename(path.with_name("aside"))
        said = "2 store partitions answer only readers without a lag bound"
        expect(page.locator("h1")).to_contain_text(said)
        said = "node-0, node-1 cannot read the checkpoint"
        expect(page.locator("#indicators")).to_contain_text(said)
        expect(page.locator("#summary a")).to_have_attribute("href", "runbooks/checkpoint")
        expect(page.locator('[data-place="op0/0/node-0"]').first).to_have_text(re.compile(r"^[AS] \?$"))
        expect_event(page, "lag-unknown", "no node confirms the end of the commit log")
        path.with_name("aside").rename(path)
        expect_well(page)
        expect_event(page, "lag-known", "a node confirms the end")
        assert live.errors == []


@pytest.mark.full
def test_a_query_that_stopped_is_told_apart_from_one_that_does_not_finish_its_batch(running: Running) -> None:
    checkpoint, last = running.checkpoint, 14
    with chromium() as browser, shown(browser, f"{running.url}/admin/") as live:
        page = live.page
        for version in range(3, last + 1):
            checkpoint.add(version)
            wait_until(lambda version=version: running.overview()["end"]["version"] == version, what="the commit")  # type: ignore[misc]
        expect_well(page)
        expect(page.locator("h1")).to_contain_text("The query has not committed for")
        said = page.locator("#indicators")
        expect(said).to_contain_text(f"batch {last} has not begun: the query was stopped, waits for its trigger")
        expect_event(page, "query-quiet", "The query has not committed for")
        checkpoint.write_state(last + 1)
        expect(said).to_contain_text(re.compile(f"batch {last} began at least .* without a commit"))
        checkpoint.commit(last + 1)
        expect_well(page)
        expect_event(page, "query-commits", "the query commits again")
        assert live.errors == []
