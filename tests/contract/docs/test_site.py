"""The site builds without a warning or another host, its links lead somewhere, and a browser shows it to everybody."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser
from tests.support.documents.site import Site, build_site
from tests.support.matrix import in_full
from tests.support.page.browser import CHROMIUM, NO_CHROMIUM, axe_source, chromium, violations
from tests.support.repository import ROOT

FOREIGN = re.compile(r"""url\(['"]?(https?:)?//|@import""")
IN_BROWSER = (
    "docs/index.html",
    "docs/tutorials/own-query.html",
    "docs/explanation/consistency.html",
    "docs/reference/http.html",
    "docs/operations.html",
    "docs/reference/support-matrix.html",
)
VIEWS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return build_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.mark.full
def test_the_site_builds_without_a_warning(site: Site) -> None:
    assert site.said == ""
    assert {"index.html", *IN_BROWSER} <= site.pages.keys()


@pytest.mark.full
def test_every_link_and_anchor_leads_somewhere(site: Site) -> None:
    assert list(site.broken_links()) == []


@pytest.mark.full
def test_no_page_loads_anything_from_another_host(site: Site) -> None:
    assert [(name, url) for name, page in site.pages.items() for url in page.loaded if urlsplit(url).netloc] == []
    assert [path for path in site.folder.rglob("*.css") if FOREIGN.search(path.read_text())] == []


def test_every_page_is_spelled_right() -> None:
    options = ["--skip", "*.json,*.svg,*.png,*.ipynb,*.css,*.yaml,*.yml", "--ignore-words", "docs/words.txt"]
    command = [sys.executable, "-m", "codespell_lib", *options, "docs", "deploy", *map(str, ROOT.glob("*.md"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""


@pytest.mark.full
@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
@pytest.mark.parametrize("view", in_full(VIEWS, if_in=("light", "dark")))
def test_a_browser_shows_pages_to_everybody(site: Site, browser: Browser, view: str) -> None:
    """Axe finds nothing, nothing is wider than the screen, and the console is silent."""
    source, context = axe_source(), browser.new_context(**VIEWS[view])
    errors: list[str] = []
    try:
        page = context.new_page()
        page.on("console", lambda said: errors.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("request", lambda sent: errors.append(sent.url) if not sent.url.startswith("file:") else None)
        for name in IN_BROWSER:
            page.goto((site.folder / name).as_uri())
            assert violations(page, source, preload=False) == [], name
            assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0, (
                name
            )
        assert errors == []
    finally:
        context.close()
