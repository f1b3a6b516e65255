"""The files of the page: scripts, style and vendored files, read once into memory; and the runbooks, which must be
readable in a fault, when other systems do not answer.

The URL of a static file begins with the hash of all files, so browsers may cache it for ever: another release has other
URLs, and all modules of one page load are of one release. Runbooks are the Markdown files of this repository, and
become HTML at the first request for one. They never contain text from a request, or a name from the cluster.

The headers of the page: a browser may load only files from this router, and run no other scripts.

With Trusted Types, no script of the page can turn a text into HTML: `innerHTML` and the like raise errors, so the
hostile name of a store, key or node stays text. On runbooks and files no Trusted Types policy is allowed, so their
scripts cannot get around it. On the page one policy is allowed: `static/dom.js` creates it for the parts of the page
that this router has rendered.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

FOREVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
"""The cache control for a URL without the hash, or with the hash of another release: the browser must revalidate."""


POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

SECURITY = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of the page and of each of its files."""

PAGE = {**SECURITY, "cache-control": "no-store"}
"""Headers of runbooks, and of the page except for its policy. The page shows the current state: it is never cached."""

LIVE = {**PAGE, "content-security-policy": POLICY.replace("trusted-types 'none'", "trusted-types understudy")}
"""Headers of the page itself."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file. `etag` depends on its own content only."""

    body: bytes
    media_type: str
    etag: str


@dataclass(frozen=True, slots=True)
class Assets:
    """The static files by their path below `static/`. `build` is the hash of the whole set."""

    by_path: Mapping[str, Asset]
    build: str


@cache
def page_assets() -> Assets:
    """Return the files of this release."""
    found = dict(_assets(files("understudy_shared.page").joinpath("static"), ""))
    digest = hashlib.sha256()
    for path, asset in sorted(found.items()):
        digest.update(f"{path}\0{asset.etag}\0".encode())
    return Assets(found, digest.hexdigest()[:16])


def _assets(folder: Traversable, above: str) -> list[tuple[str, Asset]]:
    found: list[tuple[str, Asset]] = []
    for entry in folder.iterdir():
        path = f"{above}{entry.name}"
        if entry.is_dir():
            found += _assets(entry, f"{path}/")
            continue
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix in _TYPES:
            body = entry.read_bytes()
            found.append((path, Asset(body, _TYPES[suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')))
    return found


INDEX = "README"
"""The name of the list of all runbooks."""

_NAME = re.compile(r"(?:\.\./|runbooks/)?([\w-]+)\.md")


class Runbook(NamedTuple):
    """One runbook as a page. `html` has only our own text."""

    title: str
    html: str


@cache
def runbooks() -> Mapping[str, Runbook]:
    """Return all pages by name. The first call takes a moment: make it in a thread."""
    pages = {file.name.removesuffix(".md"): file for file in _files() if file.name.endswith(".md")}
    texts = {name: file.read_text(encoding="utf-8") for name, file in pages.items()}
    return {name: _page(text, texts.keys()) for name, text in texts.items()}


def _files() -> Iterable[Traversable]:
    """Return the files: from the shared package in a wheel, from the documents in the repository."""
    packed = files("understudy_shared").joinpath("runbooks")
    if packed.is_dir():
        return packed.iterdir()
    docs = Path(__file__).parents[3] / "docs"
    return [*docs.joinpath("runbooks").glob("*.md"), docs / "operations.md"]


def _page(text: str, names: Iterable[str]) -> Runbook:
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    known = set(names)
    for token, following in pairwise(tokens):
        if token.type == "heading_open":
            token.attrs["id"] = _anchor(following.content)
    for token in tokens:
        token.attrs.pop("style", None)  # the alignment of a column: the policy of the page forbids inline styles
        if token.children:
            _lead(token.children, known)
    title = next(token.content for token in tokens if token.type == "inline")
    return Runbook(title.replace("`", ""), str(markdown.renderer.render(tokens, markdown.options, {})))


def _lead(tokens: list[Token], known: set[str]) -> None:
    """Point each link to a page here. If that page does not exist, keep only the link's text."""
    is_left = False
    for token in tokens:
        if token.type == "link_open":
            path, _, fragment = str(token.attrs.get("href", "")).partition("#")
            found = _NAME.fullmatch(path)
            is_left = found is None or found[1] not in known
            token.attrs = {} if found is None or is_left else {"href": _address(found[1], fragment)}
        if token.type in {"link_open", "link_close"} and is_left:
            token.tag = "span"


def _anchor(title: str) -> str:
    """Return the fragment of a heading, the same as on GitHub."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _address(name: str, fragment: str) -> str:
    """Return the relative link from one of these pages to another. They are in the same folder."""
    return ("./" if name == INDEX else name) + (f"#{fragment}" if fragment else "")
