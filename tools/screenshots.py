"""Makes the pictures of the admin page for the documents, in a real Chromium (`make screenshots`).

    python -m tools.screenshots [FOLDER]

A fake router serves the real page, so the pictures show the same each time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser
from tests.support.page.browser import CHROMIUM, NO_CHROMIUM, chromium, shown
from tests.support.page.fake_router import FakeRouter, fake_router
from tests.support.page.overviews import PICTURED

WIDE: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "reduced_motion": "reduce", "has_touch": True}

PICTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "page": ("healthy", "", WIDE),
    "page-healthy": ("healthy", "", WIDE),
    "page-healthy-dark": ("healthy", "", {**WIDE, "color_scheme": "dark"}),
    "page-serve": ("served", "", WIDE),
    "page-serve-dark": ("served", "", {**WIDE, "color_scheme": "dark"}),
    "page-serve-phone": ("served", "", PHONE),
    "page-degraded": ("degraded", "", WIDE),
    "page-degraded-dark": ("degraded", "", {**WIDE, "color_scheme": "dark"}),
    "page-restoring": ("restoring", "?open=aircraft/2/node-3", WIDE),
    "page-empty": ("empty", "", WIDE),
    "page-phone": ("degraded", "", PHONE),
    "page-waiting": ("waiting", "", WIDE),
    "page-failover": ("failover", "", WIDE),
    "page-stopped": ("stopped", "", WIDE),
    "page-without-redis": ("without redis", "", WIDE),
    "page-large": ("large", "", WIDE),
    "page-phone-dark": ("healthy", "", {**PHONE, "color_scheme": "dark"}),
}
"""State, query and browser of each picture, by the name of its file. `page`, for the README, is what a screen shows."""


EXPLORED = '?explore=aircraft&row={"tailnum":"N14228"}'


def picture_explore(browser: Browser, router: FakeRouter, path: Path) -> None:
    """Make the picture of Explore: a page of keys, and one that is open with its history."""
    router.show(PICTURED["healthy"]())
    with shown(browser, f"{router.url}/admin/{EXPLORED}", **WIDE) as live:
        explore = live.page.locator("#explore")
        explore.get_by_role("button", name="Show its history").click()
        explore.get_by_text("6 changes").wait_for()
        explore.screenshot(path=path)


FLEET: dict[str, dict[str, Any]] = {
    "page-fleet": {**WIDE, "viewport": {"width": 1280, "height": 420}},
    "page-fleet-dark": {**WIDE, "viewport": {"width": 1280, "height": 420}, "color_scheme": "dark"},
    "page-fleet-phone": PHONE,
}
"""The browser of each picture of several applications."""


def main() -> int:
    """Make all pictures."""
    if CHROMIUM is None:
        sys.stderr.write(f"{NO_CHROMIUM}\n")
        return 1
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    with chromium() as browser, fake_router() as router:
        for name, (state, query, context) in PICTURES.items():
            router.show(PICTURED[state]())
            with shown(browser, f"{router.url}/admin/{query}", **context) as live:
                live.page.wait_for_load_state("load")
                if state == "healthy" and context["viewport"]["width"] > 1000:
                    live.page.locator('#ask input[data-field="tailnum"]').fill("N14228")
                    live.page.locator("#ask button[value=get]").click()
                    live.page.get_by_text("Found", exact=True).wait_for()
                    live.page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
                path = folder / f"{name}.png"
                live.page.screenshot(path=path, full_page=name != "page")
                sys.stdout.write(f"{path}  {path.stat().st_size / 1000:.0f} kB\n")
        for name, context in FLEET.items():
            with shown(browser, f"{router.url}/fleet/admin/", **context) as live:
                live.page.wait_for_load_state("load")
                live.page.screenshot(path=folder / f"{name}.png", full_page=True)
        picture_explore(browser, router, folder / "page-explore.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
