"""Watches of keys at a router: events come from feeds of the nodes, one per watched partition.

Watches of a prefix use no feed: `prefix_watches.py` in `shared` scans, then polls and reads changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, NamedTuple, cast

import orjson

from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.context import ReadContext
from understudy_router.questions.lookup.service import RouterReads
from understudy_router.questions.scan_forwarder import ScanForwarder
from understudy_router.questions.watch.feed import WatchFeed
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.http.problems import ProblemError
from understudy_shared.questions.scan.service import Scans
from understudy_shared.questions.watch.choice import CaughtUp, MissedChange, SharedPart
from understudy_shared.questions.watch.events import KeyEvent, read_event
from understudy_shared.questions.watch.hop import FeedKey, MissedHop, WatchKey
from understudy_shared.questions.watch.service import Joined, ParsedWatch, Watcher, Watches, WatchSource
from understudy_shared.questions.watch.streams import Events, WatchStream, WatchStreams
from understudy_shared.reads.bounds import MAX_BATCH_KEYS, Refusal, Selection
from understudy_shared.reads.hop_fields import BadHopError
from understudy_shared.reads.tokens import Position

SWEEP_S: Final = 1.0
"""Time between two searches for keys that are not watched any more."""

WAIT_S: Final = 3.0
"""Longest time that a watcher waits for a feed to reach the version that the watcher has seen."""

LOOK_AGAIN_S: Final = 0.05
CLOSE_S: Final = 1.0
"""Longest time until all tasks have ended when the router stops."""


class WatchFeeds:
    """The feeds of a router."""

    def __init__(self, context: ReadContext, nodes: NodeCalls) -> None:
        self.missed = MissedChanges(ScanForwarder(context, nodes))
        self._context, self._nodes = context, nodes
        self._feeds: dict[tuple[str, str, str, int, Selection], WatchFeed] = {}
        self._sweeping: asyncio.Task[None] | None = None

    def feed(self, route: Callable[[], StoreRoute], partition: int, selection: Selection) -> WatchFeed:
        """Return the feed of a partition of the store that `route` returns."""
        now = route()
        place = (now.name, now.lineage, now.layout, partition, selection)
        feed = self._feeds.get(place)
        if feed is None:

            def ended(feed: WatchFeed) -> None:
                if self._feeds.get(place) is feed:
                    del self._feeds[place]

            feed = self._feeds[place] = WatchFeed(
                self._context,
                self._nodes,
                route,
                partition=partition,
                selection=selection,
                ended=ended,
            )
            feed.start()
            if self._sweeping is None:
                self._sweeping = asyncio.get_running_loop().create_task(self._sweep(), name="sweep watched keys")
        return feed

    def __len__(self) -> int:
        return len(self._feeds)

    async def _sweep(self) -> None:
        while self._feeds:
            await asyncio.sleep(SWEEP_S)
            for place, feed in list(self._feeds.items()):
                if not feed.sweep():
                    del self._feeds[place]
                    feed.close()
        self._sweeping = None

    async def close(self) -> None:
        """End all feeds."""
        tasks = [*self.missed.close(), *(task for feed in self._feeds.values() for task in feed.close())]
        self._feeds.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()
            tasks.append(self._sweeping)
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)


class FeedSource(WatchSource):
    """The keys of a store that one watcher of a router watches, by feeds."""

    __slots__ = ("_feeds", "_of", "_route")

    def __init__(self, feeds: WatchFeeds, route: Callable[[], StoreRoute]) -> None:
        self._feeds, self._route = feeds, route
        self._of: dict[SharedPart, WatchFeed] = {}

    @property
    def lineage(self) -> str:
        return self._route().lineage

    @property
    def json_name(self) -> bytes:
        return orjson.dumps(self._route().name)

    async def join(self, asked: ParsedWatch, stream: WatchStream, joined: list[Joined]) -> bool:
        for partition, indexes in asked.by_partition().items():
            feed = self._feeds.feed(self._route, partition, asked.selection)
            self._of[feed.heard] = feed
            joined.append(Joined(feed.heard, feed.join([asked.keys[index] for index in indexes], stream), indexes))
        for each in joined:
            await self._of[each.part].ready(_own(each), stream)
        after = asked.after
        if after is None:
            return False
        if after.lineage != self.lineage:
            return True
        until_s = monotonic() + WAIT_S
        return any([await self._is_other(each, after, until_s) for each in joined])

    async def _is_other(self, joined: Joined, after: Position, until_s: float) -> bool:
        """Whether a position is of another history. Waits for its version. Raises the problem if no replica has it."""
        heard = self._of[joined.part].heard
        while heard.version < after.version and monotonic() < until_s:  # noqa: ASYNC110  # rare, and short
            await asyncio.sleep(LOOK_AGAIN_S)
        if heard.version == after.version:
            shown = heard.after
            times = (after.committed_at_us, None if shown is None else shown.committed_at_us)
            return None not in times and times[0] != times[1]
        if heard.version < after.version:  # only a node can tell
            try:
                await self.since(joined, after)
            except ProblemError as error:
                if error.problem.refusal is not Refusal.LINEAGE_CHANGED:
                    raise
                return True
        return False

    async def since(self, joined: Joined, after: Position) -> CaughtUp:
        return await self._feeds.missed.since(self._of[joined.part], self._route, _own(joined), after)

    def leave(self, joined: Joined, stream: WatchStream) -> None:
        self._of[joined.part].leave(_own(joined), stream)


class _AskedFeed(NamedTuple):
    keys: Sequence[FeedKey]
    answer: asyncio.Future[CaughtUp]


class MissedChanges:
    """The queries for missed changes. Watchers of a feed that resume after the same position share one query."""

    def __init__(self, forwarder: ScanForwarder) -> None:
        self._forwarder = forwarder
        self._asked: dict[tuple[WatchFeed, Position], list[_AskedFeed]] = {}
        self._running: dict[tuple[WatchFeed, Position], asyncio.Task[None]] = {}

    def close(self) -> Sequence[asyncio.Task[None]]:
        """Cancel all queries. Return their tasks, which are about to end."""
        for task in self._running.values():
            task.cancel()
        return list(self._running.values())

    async def since(
        self, feed: WatchFeed, route: Callable[[], StoreRoute], keys: Sequence[FeedKey], after: Position
    ) -> CaughtUp:
        """Return the changes of some keys after a position. Raises the problem of a position that is gone."""
        loop, place = asyncio.get_running_loop(), (feed, after)
        answer: asyncio.Future[CaughtUp] = loop.create_future()
        self._asked.setdefault(place, []).append(_AskedFeed(keys, answer))
        if place not in self._running:
            self._running[place] = loop.create_task(self._run(feed, route, after), name="ask what watchers missed")
        return await answer

    async def _run(self, feed: WatchFeed, route: Callable[[], StoreRoute], after: Position) -> None:
        place = (feed, after)
        asked: list[_AskedFeed] = []
        try:
            while asked := self._asked.pop(place, []):
                while asked:
                    asked = await self._answered(feed, route, after, [each for each in asked if not each.answer.done()])
        except Exception as error:
            _refuse([*asked, *self._asked.pop(place, ())], error)
            raise
        finally:
            del self._running[place]

    async def _answered(
        self, feed: WatchFeed, route: Callable[[], StoreRoute], after: Position, asked: Sequence[_AskedFeed]
    ) -> list[_AskedFeed]:
        """Answer the watchers whose keys fit into a call, also when their store is gone. Return the others."""
        at: dict[FeedKey, int] = {}
        mine: list[_AskedFeed] = []
        for each in asked:
            if mine and len(at) + len(each.keys) > MAX_BATCH_KEYS:
                break
            mine.append(each)
            for key in each.keys:
                at.setdefault(key, len(at))
        heard, partition = feed.heard, feed.of.partition
        last, counts = heard.version, [[heard.changes_shown(key) for key in each.keys] for each in mine]
        keys = [WatchKey(partition, key.row, key.printed) for key in at]
        try:
            reply = await self._forwarder.missed(route(), MissedHop(feed.of, keys, after, last))
            found, reached = _read(reply)
        except UnderstudyError as error:
            _refuse(mine, error)
        else:
            for each, count in zip(mine, counts, strict=True):
                entries = [
                    change._replace(at=index)
                    for index, key in enumerate(each.keys)
                    for change in found.get(at[key], ())
                ]
                entries.sort(key=lambda change: change.version)
                if not each.answer.done():
                    each.answer.set_result(CaughtUp(entries, reached, last, count))
        return list(asked[len(mine) :])


def _read(reply: bytes) -> tuple[dict[int, list[MissedChange]], int]:
    """Read the changes of each key, and the version that the reply is complete to. Raises BadHopError."""
    found: dict[int, list[MissedChange]] = {}
    reached = -1
    try:
        for block in reply.split(b"\n\n"):
            event = read_event(block) if block else None
            if event is None:
                continue
            if event.at >= 0 and event.position is not None:
                change = MissedChange(event.at, event.version, KeyEvent(event.kind), event.text, event.position)
                found.setdefault(event.at, []).append(change)
            else:
                reached = int(orjson.loads(event.text.partition(b"data: ")[2])["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadHopError(f"the node's reply about missed changes does not parse: {error}") from None
    if reached < 0:
        raise BadHopError("the node's reply about missed changes does not end with a version")
    return found, reached


def _refuse(asked: Sequence[_AskedFeed], error: Exception) -> None:
    for each in asked:
        if not each.answer.done():
            each.answer.set_exception(error)


def _own(joined: Joined) -> Sequence[FeedKey]:
    return cast(Sequence[FeedKey], joined.keys)


class RouterWatches(Watches):
    """The watches of the keys of the application, by asking its nodes."""

    def __init__(self, reads: RouterReads, streams: WatchStreams, scans: Scans, forwarder: ScanForwarder) -> None:
        super().__init__(streams, scans)
        self._reads = reads
        self.feeds = WatchFeeds(forwarder.context, forwarder.nodes)

    def events(self, name: str, asked: ParsedWatch, stream: WatchStream) -> Events:
        return Watcher(FeedSource(self.feeds, lambda: self._reads.route(name)), self.streams, asked, stream).events()
