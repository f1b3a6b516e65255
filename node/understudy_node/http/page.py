"""`/admin/` of a node: the page that routers have, of this node alone. `understudy serve` has no other page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter

from understudy_node.http.health import NodeHealth
from understudy_node.http.overview import (
    HeldPartition,
    NodeOverview,
    NodeRates,
    after,
    held_partitions,
    overview_of,
    points_of,
)
from understudy_node.node import Node
from understudy_node.questions.lookup.reads import Reads
from understudy_shared.base.background import Supervisor, in_slices
from understudy_shared.base.clock import SystemClock
from understudy_shared.page.feed import Feed
from understudy_shared.page.routes import history_routes, page_routes
from understudy_shared.page.series import (
    HISTORY_MINUTES,
    LAG,
    SHOWN_POINTS,
    STEP_MS,
    History,
    Key,
    Number,
    history_document,
    require_kept,
    thinned,
)

log = logging.getLogger(__name__)


class NodePage:
    """The data of the page. Without viewers it only notes a point of the last hour every ten seconds."""

    def __init__(self, node: Node, health: NodeHealth, reads: Reads) -> None:
        self._node = node
        self._health = health
        self._reads = reads
        self._kept = History()
        self._rates = NodeRates(reads.requests)
        self._clock = SystemClock()
        self._feed = Feed(self._look, self._clock)
        self._tasks = Supervisor()

    def routes(self) -> Iterator[APIRouter]:
        """Yield the routes of the page, and of the history that it shows."""
        yield history_routes(self._history)
        yield page_routes(self._document, self._history, self._feed.respond)

    def end(self) -> None:
        """End the streams of all viewers: the service stops."""
        self._feed.end()

    def start(self) -> None:
        """Begin to keep the last hour, and to look at the node for viewers."""
        self._tasks.start("look at the node for viewers", self._feed.run())
        self._tasks.start("keep the last hour", self._keep_history())

    async def stop(self) -> None:
        """End all looks."""
        await self._tasks.stop()

    async def _document(self) -> dict[str, Any]:
        return (await self._feed.overview()).document

    async def _look(self, before: NodeOverview | None) -> NodeOverview:
        held, now_ms = await in_slices(held_partitions(self._node)), self._clock.monotonic_ms()
        self._note(held)
        names = {each.reader.store.name for each in held}
        histories: dict[str, Sequence[Number]] = {name: self._store_history(name, now_ms) for name in names}
        rates = self._rates.see(now_ms)
        document = await in_slices(overview_of(self._node, held, self._health.look(), rates, histories))
        return after(before, document, self._clock.wall_us())

    def _store_history(self, name: str, now_ms: float) -> list[Number]:
        values, _ = self._kept.series(Key(LAG, name), now_ms, HISTORY_MINUTES)
        return thinned(values, SHOWN_POINTS)

    async def _history(
        self, store: str | None, partition: int | None, minutes: int = HISTORY_MINUTES
    ) -> dict[str, Any]:
        """Return the last minutes of the whole, of a store, or of a partition. Raises ProblemError for a history that
        is not kept, UnknownStoreError for a store that does not exist.
        """
        await self._note_if_due()
        partitions = None
        if store is not None:
            partitions = self._reads.reader(store).partitions
        require_kept(self._kept, store, partition, partitions)
        now_ms, now_us = self._clock.monotonic_ms(), self._clock.wall_us()
        return history_document(self._kept, store, partition, now_ms=now_ms, now_us=now_us, minutes=minutes)

    async def _note_if_due(self) -> None:
        if self._kept.is_due(self._clock.monotonic_ms()):
            self._note(await in_slices(held_partitions(self._node)))

    def _note(self, held: Sequence[HeldPartition]) -> None:
        """Note a point of the history if it is time for one."""
        now_ms = self._clock.monotonic_ms()
        if self._kept.is_due(now_ms):
            self._kept.note(now_ms, points_of(self._node, held, self._rates.see(now_ms)))

    async def _keep_history(self) -> None:
        while True:
            try:
                await self._note_if_due()
            except Exception:
                log.exception("a point of the last hour is missing", extra={"action": "history-failed"})
            await asyncio.sleep(STEP_MS / 1000)
