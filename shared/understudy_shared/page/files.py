"""The files that the page consists of: scripts, style and vendored files, read once into memory; and the runbooks,
whose steps must be readable offline in a fault, when other systems do not answer.

The address of a static file begins with the hash of all of them, so browsers may cache it for good: another release has
other addresses, and the modules of one load are all of one release. Runbooks are the Markdown files of this repository,
and become HTML at the first request for one. No text of a request, and no name from the cluster, gets into them.

The headers of the page: a browser may load only what this router serves, and run no other scripts.

With Trusted Types no script of the page can make HTML of a text: `innerHTML` and its kin are errors, so a store, key or
node with a hostile name stays a text. Runbooks and files may have no Trusted Types policy, so scripts there cannot get
around it. The page may have one policy, created once: `static/dom.js` makes it, for the parts of the page that this
router has drawn like the page itself.
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
"""The cache control for an address without the hash, or with that of another release: the browser asks whether the file
is still the same."""


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
"""Headers of runbooks, and, but for the policy, of the page: it is true only now, so it must not be cached."""

LIVE = {**PAGE, "content-security-policy": POLICY.replace("trusted-types 'none'", "trusted-types understudy")}
"""Headers of the page itself."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file. `etag` is of its own content."""

    body: bytes
    media_type: str
    etag: str


@dataclass(frozen=True, slots=True)
class Assets:
    """The static files by their path below `static/`; `build` names this set of them."""

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
    """One runbook as a page. `html` is made of our own text."""

    title: str
    html: str


@cache
def runbooks() -> Mapping[str, Runbook]:
    """Return all pages by name. The first call takes a moment: make it in a thread."""
    pages = {file.name.removesuffix(".md"): file for file in _files() if file.name.endswith(".md")}
    texts = {name: file.read_text(encoding="utf-8") for name, file in pages.items()}
    return {name: _page(text, texts.keys()) for name, text in texts.items()}


def _files() -> Iterable[Traversable]:
    """Return the files: a wheel has them in the shared package; the repository has them where people read them."""
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
        token.attrs.pop("style", None)  # how a column is aligned: the policy of the page forbids styles in the markup
        if token.children:
            _lead(token.children, known)
    title = next(token.content for token in tokens if token.type == "inline")
    return Runbook(title.replace("`", ""), str(markdown.renderer.render(tokens, markdown.options, {})))


def _lead(tokens: list[Token], known: set[str]) -> None:
    """Point each link to a page here. Where that page does not exist, only the link's text stays."""
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
    """Return the fragment of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _address(name: str, fragment: str) -> str:
    """Return the reference from one of these pages to another: they stand side by side."""
    return ("./" if name == INDEX else name) + (f"#{fragment}" if fragment else "")
