"""The site that `make docs` builds, as its files and links."""

from __future__ import annotations

import posixpath
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from tests.support.repository import ROOT

_LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}
_NOT_LOADED = {"next", "prev", "index", "search", "canonical"}
"""Kinds of `<link>` that a browser does not fetch."""


class Parsed(HTMLParser):
    """What a page loads, where it leads, and which ids it has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if values.get("id"):
            self.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in _LOADED and _LOADED[tag] in values and values.get("rel") not in _NOT_LOADED:
            self.loaded.append(values[_LOADED[tag]])


@dataclass(frozen=True, slots=True)
class Site:
    """A built site: `said` is what the builder complained about."""

    folder: Path
    said: str
    pages: Mapping[str, Parsed]

    def broken_links(self) -> Iterator[tuple[str, str]]:
        """Yield each page with a link of it that leads to no file, or to no such place in its page."""
        for name, page in self.pages.items():
            for link in page.links:
                target = urlsplit(link)
                if not target.scheme and not target.netloc and not self._leads_somewhere(name, target):
                    yield name, link

    def _leads_somewhere(self, name: str, target: SplitResult) -> bool:
        path = (
            posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(target.path))) if target.path else name
        )
        page, fragment = self.pages.get(path), unquote(target.fragment)
        return (self.folder / path).exists() if page is None else not fragment or fragment in page.ids


def build_site(folder: Path) -> Site:
    """Build the site as `make docs` does."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "-b", "html", ".", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.html")}
    return Site(folder, done.stdout + done.stderr, {name: Parsed(path.read_text()) for name, path in found.items()})
