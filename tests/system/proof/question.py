"""What a reader asks, and what an answer says, in a form in which two answers can be compared (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import orjson
from tests.system.proof.history import Read, Value

LISTS = ("values", "entries", "sessions", "rows", "timers")
"""The members that hold the elements of a key; an answer has one of them at most."""

SAID = ("value", *LISTS, "expires_at", "expired")
"""The members that say what was found. The others say where, when, and how old it is."""


@dataclass(frozen=True, slots=True)
class Question:
    """`limit`: ask for pages of so many elements, until there are no more."""

    store: str
    key: tuple[str, ...]
    limit: int | None = None

    @property
    def path(self) -> str:
        """The target, without parameters."""
        return f"/v1/stores/{self.store}/keys/{'/'.join(quote(part, safe='') for part in self.key)}"


def key_text(*key: object) -> str:
    """A key as a JSON array: its name in the history and in the truth."""
    return orjson.dumps(key).decode()


def said_by(answer: Mapping[str, Any]) -> Value:
    """What an answer says was found: the value alone where there is no more to it. Entries of a map have no order."""
    said = {name: answer[name] for name in SAID if name in answer}
    if "entries" in said:
        said["entries"] = sorted(said["entries"], key=lambda entry: orjson.dumps(entry["key"]))
    return said["value"] if said.keys() == {"value"} else said


def with_next_page(read: Read, page: Read) -> Read:
    """A read and the page that came after it as one read; failed when they are not pages of one version."""
    whole = replace(read, ended_ms=page.ended_ms, router=page.router, pages=read.pages + 1)
    if not page.answered:
        return replace(page, began_ms=read.began_ms, pages=whole.pages, detail=f"page {whole.pages}: {page.detail}")
    if (page.version, page.committed_at_us) != (read.version, read.committed_at_us):
        detail = f"page {whole.pages} is of version {page.version}, the first of {read.version}"
        return replace(whole, outcome="failed", detail=detail)
    more = page.value or {}
    elements = {name: [*said, *more.get(name, ())] for name, said in (read.value or {}).items() if name in LISTS}
    return replace(whole, value=said_by(elements))
