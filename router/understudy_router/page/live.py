"""The page as it changes, for readers with scripts: drawn here like the page itself, and sent in the parts that differ.

Viewers with the same choices share a drawing. A viewer has no queue: it remembers which version of each part it has.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Generator, Mapping
from time import monotonic
from typing import Any, NamedTuple, Protocol

import orjson

from understudy_router.page.page_query import PageQuery
from understudy_router.page.render import drawn_parts, joined, page_title
from understudy_shared.base.slices import in_slices

MAX_KEPT = 16
"""Most drawings that are cached for viewers with the same choices."""

LOOP_SHARE = 0.1
"""Largest share of the loop for drawing: a costly page is drawn less often, at least every MAX_PAUSE_S."""

MAX_PAUSE_S = 10.0


class OverviewDocument(Protocol):
    """The data to draw, as the feed of the admin API has it."""

    @property
    def tick(self) -> int: ...

    @property
    def generated_at(self) -> str | None: ...

    def documents(self) -> Generator[None, None, dict[str, Any]]:
        """Make the document, in slices."""


class Drawing(NamedTuple):
    """The parts of the page by name, at a tick."""

    tick: int
    title: str
    parts: Mapping[str, str]


class Drawings:
    """The last drawings, by the choices of the readers."""

    def __init__(self) -> None:
        self._kept: OrderedDict[PageQuery, Drawing] = OrderedDict()
        self._due: dict[PageQuery, float] = {}
        """The time from which each page may be drawn again."""
        self._document: tuple[int, dict[str, Any]] | None = None
        self._drawing = asyncio.Lock()

    def is_due(self, query: PageQuery, now: OverviewDocument) -> bool:
        """Whether a drawing of now exists, or may be made."""
        known = self._kept.get(query)
        return (known is not None and known.tick >= now.tick) or self._due.get(query, 0) <= monotonic()

    async def of(self, query: PageQuery, now: OverviewDocument) -> Drawing:
        """Return the page of now. The first caller draws it."""
        async with self._drawing:
            known = self._kept.get(query)
            if known is None or known.tick < now.tick:
                began_s = monotonic()
                known = self._kept[query] = await self._drawn(query, now)
                self._pace(query, began_s)
                if len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(query)
            return known

    async def _drawn(self, query: PageQuery, now: OverviewDocument) -> Drawing:
        if self._document is None or self._document[0] != now.tick:
            self._document = now.tick, await in_slices(now.documents())
        _, document = self._document
        parts = {name: await joined(pieces) for name, pieces in drawn_parts(document, query)}
        return Drawing(now.tick, page_title(document["application_id"], document["health"]), parts)

    def _pace(self, query: PageQuery, began_s: float) -> None:
        """Set the time of the next drawing so that all drawings together keep to their share of the loop."""
        now_s = monotonic()
        self._due = {each: due_s for each, due_s in self._due.items() if due_s > now_s - MAX_PAUSE_S}
        pause_s = (now_s - began_s) * (len(self._due) + 1) / LOOP_SHARE
        self._due[query] = now_s + min(pause_s, MAX_PAUSE_S)


class Viewer:
    """The connection of one reader, and the parts that its browser has."""

    def __init__(self, drawings: Drawings, query: PageQuery) -> None:
        self._drawings = drawings
        self._query = query
        self._has: dict[str, int] = {}

    def is_due(self, now: OverviewDocument) -> bool:
        """Whether a drawing of now exists, or may be made."""
        return self._drawings.is_due(self._query, now)

    async def event(self, now: OverviewDocument) -> bytes:
        """Return an event with the parts that the browser does not have."""
        drawing = await self._drawings.of(self._query, now)
        new = {name: text for name, text in drawing.parts.items() if self._has.get(name) != hash(text)}
        self._has |= {name: hash(text) for name, text in new.items()}
        data = {"generated_at": now.generated_at, "title": drawing.title, "html": "".join(new.values())}
        return b"event: page\ndata: %b\n\n" % orjson.dumps(data)
