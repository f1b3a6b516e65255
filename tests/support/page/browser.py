"""A real Chromium for tests of the page. Debian's package is used: Playwright's own browsers are not downloaded.

Playwright's synchronous API leaves its event loop as the running one of the thread until it is stopped, so it lives as
long as the tests of one file: asynchronous tests of other files would not start beside it. So pytest-playwright, which
keeps it for the whole session, is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = next(filter(None, map(which, ("chromium", "chromium-browser", "google-chrome"))), None)

NO_CHROMIUM = "skipped: no Chromium (Debian: apt-get install chromium)"

ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip

expect.set_options(timeout=30_000)

SHOWN_OF_PAGE = """() => {
  const chosen = "main [data-slot], main a.cell, .spark path, #shown, #served th, #served td, #pager a, #replica dd,"
    + " #restores progress, #grid th, #table td, .empty, [hidden]";
  const names = ["href", "aria-label", "aria-current", "d", "data-state", "data-place", "title", "max", "value"];
  return [...document.querySelectorAll(chosen)]
    .filter((each) => !each.closest("figure, #ask, .tools, button, [data-act], #answer, #toast, dialog, svg.plot"))
    .map((each) => [
      each.tagName, each.id, each.dataset.slot ?? "", each.hidden ?? false,
      each.textContent.replace(/\\s+/g, " ").trim(),
      ...names.map((name) => each.getAttribute(name) ?? ""),
    ]);
}"""
"""Everything that both the server and the scripts write, in the order of the page."""


@dataclass(slots=True)
class Shown:
    """A page in the browser, and what its console said that it should not."""

    page: Page
    errors: list[str] = field(default_factory=list)

    def wait_until_live(self) -> None:
        """Until the scripts have shown what the router says now."""
        expect(self.page.locator("#live")).to_have_text("live")


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def shown(browser: Browser, url: str, *, scripts: bool = True, **context: Any) -> Iterator[Shown]:
    """A page of its own, with a profile of its own."""
    options = {"viewport": {"width": 1280, "height": 900}, "timezone_id": "UTC", **context}
    made = browser.new_context(**options)
    try:
        page = made.new_page()
        found = Shown(page)
        page.on("console", lambda said: found.errors.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: found.errors.append(str(error)))
        if not scripts:
            page.route("**/main.js", lambda route: route.fulfill(body="", content_type="text/javascript"))
        page.goto(url)
        if scripts:
            found.wait_until_live()
        yield found
    finally:
        made.close()


def axe_source() -> str:
    """The accessibility checker, as its package carries it."""
    import axe_playwright_python

    (script,) = Path(axe_playwright_python.__file__).parent.rglob("axe.min.js")
    return script.read_text()


def violations(page: Page, source: str, *, preload: bool = True) -> list[str]:
    """What breaks WCAG 2.2 A or AA, or what is good practice, in words. `preload`: style sheets are fetched, which
    pages in files cannot do.
    """
    page.evaluate(source)
    found = page.evaluate(
        """async (preload) => {
          const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
          const { violations } = await axe.run({ runOnly: { type: "tag", values: tags }, preload });
          const where = (nodes) => nodes.map((node) => node.html).join(" | ");
          return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${where(nodes)}`);
        }""",
        preload,
    )
    return [str(each) for each in found]
