"""The admin page in a real browser: time to the first paint and of updates, size, and what making it costs a router.

    python -m benchmarks.page [--replicas N ...] [--updates N]

A fake router serves the real page, so nothing but the page is measured. Without a Chromium it says so and ends.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import time
from typing import Any

import orjson
from playwright.sync_api import Browser
from tests.support.page.browser import CHROMIUM, NO_CHROMIUM, chromium, shown
from tests.support.page.fake_router import FakeRouter, fake_router
from tests.support.page.overviews import Overview, history, large

from understudy_shared.page.render import page_pieces
from understudy_shared.page.replicas import PageQuery

PAINTED = """() => ({
  paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null,
  loaded: performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd,
  elements: document.querySelectorAll("*").length,
})"""
UPDATES = """() => performance.getEntriesByName("understudy:update").map((each) => each.duration)"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[24, 1024, 10_000])
    parser.add_argument("--updates", type=int, default=10)
    options = parser.parse_args()
    if CHROMIUM is None:
        print(NO_CHROMIUM)
        return
    with chromium() as browser, fake_router() as router:
        for replicas in options.replicas:
            overview = large(replicas)
            print(f"{replicas:>6,} replicas: {made(overview)}", flush=True)
            for view in ("grid", "table"):
                print(f"        {view:<6} {painted(browser, router, overview, view, options.updates)}", flush=True)


def made(overview: Overview) -> str:
    """Measure the making of the page in the router: all of it, and its longest piece."""
    took, longest = [], 0.0
    for _ in range(5):
        began = last = time.perf_counter()
        pieces = []
        for piece in page_pieces(overview, {"all": history()}, PageQuery(), "build"):
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
            pieces.append(piece)
        took.append(last - began)
    body = "".join(pieces).encode()
    sizes = f"{len(body) / 1000:.0f} kB, {len(gzip.compress(body)) / 1000:.0f} kB gzipped"
    return (
        f"made in {statistics.median(took) * 1000:.1f} ms, {len(pieces):,} pieces, "
        f"the longest {longest * 1000:.1f} ms; {sizes}"
    )


def painted(browser: Browser, router: FakeRouter, overview: Overview, view: str, updates: int) -> str:
    """Measure the page in the browser: the first paint, and updates in which every replica has changed."""
    router.show(overview)
    with shown(browser, f"{router.url}/admin/?view={view}") as live:
        first: dict[str, Any] = live.page.evaluate(PAINTED)
        for number in range(1, updates + 1):
            before = len(live.page.evaluate(UPDATES))
            router.show(aged(overview, number))
            while len(live.page.evaluate(UPDATES)) == before:
                time.sleep(0.01)
        durations = sorted(live.page.evaluate(UPDATES))
    paint = "?" if first["paint"] is None else f"{first['paint']:.0f} ms"
    return (
        f"first paint {paint}, loaded {first['loaded']:.0f} ms, {first['elements']:,} elements; "
        f"update p50 {statistics.median(durations):.1f} ms, slowest {durations[-1]:.1f} ms"
    )


def aged(overview: Overview, number: int) -> Overview:
    """Return the same overview a while later: the lag and the age of every replica have changed."""
    later: Overview = orjson.loads(orjson.dumps(overview))
    for row in later["grid"]["rows"]:
        for cell in row["cells"].values():
            cell["age_ms"] = 300 + 50 * number
            cell["lag"] = (cell["lag"] or 0) + number % 3
    later["freshness"]["p50_ms"] = 8 + number
    return later


if __name__ == "__main__":
    main()
