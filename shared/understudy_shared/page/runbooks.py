"""The runbooks as pages of the router: the steps in a fault must be readable offline, when other systems do not answer.

They are the Markdown files of this repository, and become HTML at the first request for one. No text of a request, and
no name from the cluster, gets into them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

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
