"""The page of a real router with real nodes in a real browser: a lookup, a drain, a dead node, a dead router."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.page.browser import CHROMIUM, LIMIT_MS, NO_CHROMIUM, axe_source, chromium, shown, violations
from tests.support.spark.queries import wait_until

from understudy.demo.ports import free_ports
from understudy_shared.local_redis import local_redis

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)

Running = tuple[str, list[subprocess.Popen[bytes]]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Running]:
    """The router's URL, and the processes: two nodes, then the router."""
    checkpoint = HandmadeCheckpoint(tmp_path / "words").create().add(1, 2)
    ports = free_ports([0, 0, 0])
    processes: list[subprocess.Popen[bytes]] = []

    with local_redis() as valkey:
        shared = ("--application-id", "words", "--redis", valkey.url)

        def start(name: str, port: int, *arguments: str) -> None:
            own = ("--port", str(port), "--data-dir", str(tmp_path / name))
            with (tmp_path / f"{name}.log").open("wb") as log:
                command = [sys.executable, "-m", "understudy", *arguments, *shared, *own]
                processes.append(subprocess.Popen(command, stdout=log, stderr=log))

        try:
            for number in (0, 1):
                start(f"node-{number}", ports[number], "node", str(checkpoint.path), "--node-id", f"node-{number}")
            start("router", ports[2], "router")
            url = f"http://127.0.0.1:{ports[2]}"

            def both_hold_both() -> bool:
                with suppress(httpx.HTTPError):
                    counts = httpx.get(f"{url}/admin/v1/overview", timeout=5).json()["counts"]
                    return bool(counts["nodes_live"] == 2 and counts["running"] == 4)
                return False

            wait_until(both_hold_both, what="two nodes that hold all", limit_s=120)
            yield url, processes
        finally:
            for process in processes:
                process.kill()
                process.wait()


def test_the_page_of_a_router_looks_up_drains_and_says_who_died(cluster: Running) -> None:
    url, processes = cluster
    with chromium() as browser, shown(browser, f"{url}/admin/") as live:
        page = live.page
        expect(page.locator('[data-place="op0/0/node-0"]').first).to_have_text(re.compile("^[AS] 0$"), timeout=LIMIT_MS)
        page.locator("#ask input[data-field]").first.fill("alpha")
        page.locator("#ask").get_by_role("button", name="Explain").click()
        expect(page.locator("#answer")).to_contain_text("0 versions behind")
        assert live.errors == []
        row = page.locator("#nodes tr", has_text="node-0")
        row.get_by_role("button", name="Drain").click()
        expect(page.locator("#drain-why")).to_contain_text("It is safe to stop")
        page.locator("#drain-do").click()
        expect(row).to_contain_text("draining", timeout=LIMIT_MS)
        page.locator("#toast-undo").click()
        expect(row).to_contain_text("serving", timeout=LIMIT_MS)
        processes[0].kill()
        expect(page.locator("h1")).to_contain_text("node-0 is dead", timeout=LIMIT_MS)
        expect(row).to_contain_text("did not answer when asked")
        assert page.title().startswith("▲ words: node-0 is dead")
        processes[2].kill()
        expect(page.locator("#stale")).to_be_visible(timeout=LIMIT_MS)
        assert violations(page, axe_source()) == []
