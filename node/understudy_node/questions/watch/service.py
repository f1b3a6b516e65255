"""Watches at a node, for its own readers and for the feeds of routers.

Watchers that come back together, after a node or a router ended, share one pass over the versions that they missed. A
router has a stream for each partition that it watches, to which it adds keys and drops them. It is sent each version of
its partition, so the router knows how far it is without asking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import groupby
from time import monotonic
from typing import Final, NamedTuple

from fastapi import APIRouter, Request, Response
from prometheus_client.core import CounterMetricFamily, Metric

from understudy_node.questions.lookup.hop import MISPLACED, read_hop, require_reader
from understudy_node.questions.lookup.reads import NodeReads
from understudy_node.questions.scan.service import reading_at
from understudy_node.questions.watch.hub import (
    KeyChange,
    NodeKey,
    WatchedTask,
    WatchHub,
    are_equal,
    changes_of,
    kind_of,
    members_of,
    said_of,
)
from understudy_node.replica.local_bases import LocalBases
from understudy_node.replica.task import TaskReplica
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.errors import MissingVersionError, UnderstudyError, VanishedError
from understudy_shared.http.edge import Scope
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.questions.scan.service import Scans
from understudy_shared.questions.watch.choice import CaughtUp, EventBatch, FeedWatch, SharedKey, Telling
from understudy_shared.questions.watch.events import (
    KEEP_ALIVE,
    MEDIA_TYPE,
    EndReason,
    KeyEvent,
    at_fed_key,
    at_key,
    coalesced_event,
    version_event,
    version_text,
    with_id,
    with_tail,
)
from understudy_shared.questions.watch.hop import (
    KEYS_PATH,
    MISSED_PATH,
    OPEN_PATH,
    FeedHop,
    FeedKeysHop,
    MissedHop,
    WatchKey,
    decode_feed_hop,
    decode_feed_keys,
    decode_missed_hop,
)
from understudy_shared.questions.watch.service import (
    Joined,
    ParsedWatch,
    Watcher,
    Watches,
    WatchSource,
    grants_of,
)
from understudy_shared.questions.watch.streams import (
    MAX_WATCHED_KEYS,
    PIECE_BYTES,
    Begun,
    Events,
    WatchEndedError,
    WatchResponse,
    WatchStream,
    WatchStreams,
    begun,
)
from understudy_shared.reads.bounds import NO_BOUND, Bound, ReadVersion, Refusal, Selection
from understudy_shared.reads.hop_fields import StoreOfHop
from understudy_shared.reads.tokens import Position
from understudy_shared.server.app import json_response

MAX_CHANGES_BYTES: Final = 4 * 1024 * 1024
"""Size of the values at which a pass ends, with one version at least: the rest takes another pass."""


SeenKey = tuple[bytes, int]
"""A key, as the codec encodes it, and the version that its watcher has seen."""

KeyChanges = tuple[list[KeyChange], int]
"""The changes of keys in order, and the version up to which they are complete."""


def read_changes(  # noqa: PLR0917  # whose state, which keys, and within which bounds
    reader: StoreReader,
    replica: TaskReplica,
    selection: Selection,
    seen: Sequence[SeenKey],
    last: int,
    until_s: float,
    disk: LocalBases,
) -> KeyChanges:
    """Read what changed of some keys of a partition, up to version `last`, or until the time is over.

    Raises MissingVersionError and VanishedError for versions that the checkpoint lacks, OtherLineageError if the
    history was rewound.
    """
    entries: list[KeyChange] = []
    before: dict[int, bytes] = {}
    first, size = min(version for _, version in seen), 0
    for view in replica.read_each(ReadVersion(first, of_any_commit=True), last, disk):
        wanted = [index for index, (_, version) in enumerate(seen) if version <= view.version]
        rows = [seen[index][0] for index in wanted]
        said = said_of(reader, rows, view, replica.task.partition, selection)
        light = replace(view, stores={})
        for index, members in zip(wanted, map(members_of, said), strict=True):
            if seen[index][1] < view.version and not are_equal(members, before[index]):
                entries.append(KeyChange(index, light, members))
                size += len(members)
            before[index] = members
        if view.version < last and (size >= MAX_CHANGES_BYTES or monotonic() >= until_s):
            return entries, view.version
    return entries, last


PASS_S: Final = 2.0
"""Time after which a pass over the versions ends: the rest takes another pass."""

PATIENCE_S: Final = 10.0
"""Time for which a pass is retried while too many histories are being read."""

RETRY_S: Final = 0.2


class Passed(NamedTuple):
    """A `CaughtUp` without its events."""

    entries: list[KeyChange]
    reached: int
    last: int
    counts: list[int]


class _AskedPass(NamedTuple):
    keys: Sequence[SharedKey]
    version: int
    answer: asyncio.Future[Passed]


class CatchingUp:
    """The passes over the versions of watched partitions: one at a time for each, shared by its waiting watchers."""

    def __init__(self) -> None:
        self.passes = 0
        self._asked: dict[WatchedTask, list[_AskedPass]] = {}
        self._running: dict[WatchedTask, asyncio.Task[None]] = {}

    async def since(self, task: WatchedTask, keys: Sequence[SharedKey], version: int) -> Passed:
        """Return the changes of some keys after a version. Raises the problem of a version that is gone."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Passed] = loop.create_future()
        self._asked.setdefault(task, []).append(_AskedPass(keys, version, answer))
        if task not in self._running:
            self._running[task] = loop.create_task(self._run(task), name="read what watchers missed")
        return await answer

    async def read(
        self, reader: StoreReader, replica: TaskReplica, selection: Selection, seen: Sequence[SeenKey], last: int
    ) -> KeyChanges:
        """Read the changes of some keys in one pass. Raises the problem of a version that is gone."""
        self.passes += 1
        until_s = monotonic() + PATIENCE_S
        while True:
            work = partial(read_changes, reader, replica, selection, seen, last, monotonic() + PASS_S)
            try:
                return await asyncio.wrap_future(replica.in_thread(work))
            except (MissingVersionError, VanishedError):  # Spark purged it, perhaps just now
                retained = await asyncio.to_thread(replica.retained)
                raise ProblemError(replica.origin.as_gone(retained)) from None
            except ProblemError as error:
                if problem_of(error).type is not ProblemType.OVERLOADED or monotonic() >= until_s:
                    raise
            await asyncio.sleep(RETRY_S)

    async def _run(self, task: WatchedTask) -> None:
        try:
            while asked := self._asked.pop(task, []):
                await self._answered(task, [each for each in asked if not each.answer.done()])
        finally:
            del self._running[task]

    async def _answered(self, task: WatchedTask, asked: Sequence[_AskedPass]) -> None:
        """Read once for all waiting watchers, up to the version that the keys were compared with last."""
        last = task.version
        counts = [[key.changes for key in each.keys] for each in asked]
        behind = [each for each in asked if each.version < last]
        wanted = _wanted_by(behind)
        seen = [(key.row, version) for key, version in wanted]
        entries, reached = list[KeyChange](), last
        try:
            if seen:
                entries, reached = await self.read(task.reader, task.replica, task.selection, seen, last)
        except UnderstudyError as error:
            self._refuse(asked, error)
            return
        except Exception as error:  # a bug ends this task: those that asked meanwhile have no other
            self._refuse([*asked, *self._asked.pop(task, [])], error)
            raise
        of = _by_asker(list(wanted.values()), entries)
        for each, count in zip(asked, counts, strict=True):
            if not each.answer.done():
                passed = Passed(of.get(id(each), []), max(reached, each.version), last, count)
                each.answer.set_result(passed)

    def _refuse(self, asked: Sequence[_AskedPass], error: Exception) -> None:
        for each in asked:
            if not each.answer.done():
                each.answer.set_exception(error)


_Owner = tuple[_AskedPass, int]


def _wanted_by(asked: Sequence[_AskedPass]) -> dict[tuple[NodeKey, int], list[_Owner]]:
    """Return each requested key and version once, with its requests and the index of the key in each of them."""
    wanted: dict[tuple[NodeKey, int], list[_Owner]] = {}
    for each in asked:
        for index, key in enumerate(each.keys):
            assert isinstance(key, NodeKey), "its own"
            wanted.setdefault((key, each.version), []).append((each, index))
    return wanted


def _by_asker(owners: Sequence[Sequence[_Owner]], entries: Sequence[KeyChange]) -> dict[int, list[KeyChange]]:
    """Return the changes for each request, by its identity, with the indexes of its own keys."""
    found: dict[int, list[KeyChange]] = {}
    for entry in entries:
        for each, index in owners[entry.at]:
            found.setdefault(id(each), []).append(entry._replace(at=index))
    return found


WAIT_MS: Final = 3_000
"""Longest time that a watcher waits until a replica has the version that the watcher has seen."""

LOOK_AGAIN_S: Final = 0.005


class WatcherParts(NamedTuple):
    """The parts that all watchers of a node share. `learn` reads when the version of a position was committed."""

    hub: WatchHub
    streams: WatchStreams
    catching_up: CatchingUp
    learn: Callable[[Position], Awaitable[None]]

    async def require(self, reader: StoreReader, partitions: Sequence[int], after: Position) -> None:
        """Wait until each partition has the version of a position. Raises the problem of one that does not."""
        await self.learn(after)
        bound = Bound(min_position=after, wait_ms=WAIT_MS)
        for partition in partitions:
            await reading_at(reader, partition, bound)

    async def compared(self, task: WatchedTask, version: int) -> None:
        """Wait until the keys were compared with this version, so that their counts of changes include it."""
        until_s = monotonic() + WAIT_MS / 1000
        while task.version < version and monotonic() < until_s:  # noqa: ASYNC110  # rare, and short
            await asyncio.sleep(LOOK_AGAIN_S)


class NodeSource(WatchSource):
    """The keys of the replicas of a store."""

    __slots__ = ("_reader", "_shared")

    def __init__(self, shared: WatcherParts, reader: StoreReader) -> None:
        self._shared, self._reader = shared, reader

    @property
    def lineage(self) -> str:
        return self._reader.lineage

    @property
    def json_name(self) -> bytes:
        return self._reader.json_name

    async def join(self, asked: ParsedWatch, stream: WatchStream, joined: list[Joined]) -> bool:
        is_reset = asked.after is not None and not await self._is_own(asked, asked.after)
        for partition, indexes in asked.by_partition().items():
            reading = await reading_at(self._reader, partition, NO_BOUND)
            task = self._shared.hub.join(self._reader, partition, asked.selection, reading.view)
            keys: list[NodeKey] = []
            joined.append(Joined(task, keys, indexes))
            step = self._reader.keys_at_once
            for start in range(0, len(indexes), step):
                few = [asked.keys[index] for index in indexes[start : start + step]]
                for key in task.join([(key.row, key.printed) for key in few]):
                    key.users.add(stream)
                    keys.append(key)
                await asyncio.sleep(0)
        if asked.after is not None and not is_reset:
            for each in joined:
                assert isinstance(each.part, WatchedTask), "its own"
                await self._shared.compared(each.part, asked.after.version)
        return is_reset

    async def _is_own(self, asked: ParsedWatch, after: Position) -> bool:
        """Whether a position is of this history. Waits for its version. Raises the problem if it does not come."""
        if after.lineage != self._reader.lineage:
            return False
        try:
            await self._shared.require(self._reader, list(asked.by_partition()), after)
        except ProblemError as error:
            if error.problem.refusal is not Refusal.LINEAGE_CHANGED:
                raise
            return False
        return True

    async def since(self, joined: Joined, after: Position) -> CaughtUp:
        task, keys = joined.part, joined.keys
        assert isinstance(task, WatchedTask), "its own"
        found = await self._shared.catching_up.since(task, keys, after.version)
        changes = changes_of(task.reader, task.replica, [key.printed for key in keys], found.entries)
        return CaughtUp(changes, found.reached, found.last, found.counts)

    def leave(self, joined: Joined, stream: WatchStream) -> None:
        assert isinstance(joined.part, WatchedTask), "its own"
        self._shared.hub.leave(joined.part, joined.keys, stream)


KEYS_S: Final = 10.0
"""Time limit for the keys of a resumed feed."""

NO_FEED: Final = Problem(ProblemType.BAD_REQUEST, "this node has no such feed", "name", "Open it again")


class RouterFeeds:
    """The feeds of a node, by the names that routers give them."""

    def __init__(self, shared: WatcherParts) -> None:
        self.shared = shared
        self.feeds: dict[str, RouterFeed] = {}

    async def begin(self, reader: StoreReader, hop: FeedHop, grants: Callable[[], EndReason | None]) -> Begun:
        """Begin a feed. Raises the problem of one that cannot begin."""
        if hop.name in self.feeds:
            raise ProblemError(Problem(ProblemType.BAD_REQUEST, "there is a feed of this name", "name", "Take another"))
        streams = self.shared.streams
        stream = streams.enter(0, grants)
        return await begun(streams, stream, lambda: RouterFeed(self, reader, hop, stream).events())

    async def change(self, hop: FeedKeysHop) -> None:
        """Add keys to a feed, and drop others. Raises the problem of keys that it cannot have."""
        feed = self.feeds.get(hop.name)
        if feed is None:
            raise ProblemError(NO_FEED)
        await feed.change(hop)

    async def missed(self, reader: StoreReader, hop: MissedHop) -> bytes:
        """Return the events of the changes after a position. Raises the problem of a position that is gone."""
        partition, after, last = hop.of.partition, hop.after, hop.last
        await self.shared.require(reader, [partition], after)
        entries, reached = list[KeyChange](), last
        if after.version < last:
            newest = Position(after.application_id, after.lineage, last, None)
            await self.shared.require(reader, [partition], newest)
            seen = [(key.row, after.version) for key in hop.keys]
            replica = reader.replicas[partition]
            entries, reached = await self.shared.catching_up.read(reader, replica, hop.of.selection, seen, last)
        printed = [key.printed for key in hop.keys]
        texts = [
            at_key(change.at, change.version) + with_id(change.event, change.position)
            for change in changes_of(reader, reader.replicas[partition], printed, entries)
        ]
        position = Position(after.application_id, after.lineage, reached, None)
        return b"".join([*texts, version_event(reached, position.encode())])


class RouterFeed:
    """One feed of a router."""

    def __init__(self, feeds: RouterFeeds, reader: StoreReader, hop: FeedHop, stream: WatchStream) -> None:
        self._feeds, self._shared, self._reader, self._hop, self._stream = feeds, feeds.shared, reader, hop, stream
        self._opened: tuple[WatchedTask, FeedWatch] | None = None
        self._going_on = 0
        """Number of keys that were added to resume with."""
        self._has_all = asyncio.Event()

    async def events(self) -> Events:
        """Yield the events, with the first as soon as keys may be added."""
        hop, reader, stream = self._hop, self._reader, self._stream
        partition = hop.of.partition
        try:
            if hop.after is not None:
                await self._shared.require(reader, [partition], hop.after)
            reading = await reading_at(reader, partition, NO_BOUND)
            task = self._shared.hub.join(reader, partition, hop.of.selection, reading.view)
            watch = FeedWatch(task)
            task.feeds[watch] = stream
            self._opened, self._feeds.feeds[hop.name] = (task, watch), self
            yield KEEP_ALIVE
            if hop.after is not None:
                async with aclosing(self._missed(task, watch, hop.after.version)) as missed:
                    async for piece in missed:
                        yield piece
            while True:
                stream.require_open()
                batch = watch.take(PIECE_BYTES, wants_position=True)
                if batch.tellings or batch.position is not None:
                    yield self._encoded(task, watch, batch)
                elif stream.is_quiet:
                    yield KEEP_ALIVE
                else:
                    await stream.wait()
        finally:
            self._close()

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            task, watch = opened
            del self._feeds.feeds[self._hop.name]
            task.feeds.pop(watch, None)
            self._shared.hub.leave(task, watch.numbered()[1], self._stream)

    async def change(self, hop: FeedKeysHop) -> None:
        """Add keys, and drop others. Raises the problem of keys that it cannot have."""
        self._drop(hop.dropped)
        keys, streams, step = hop.keys, self._shared.streams, self._reader.keys_at_once
        may_hold, partition = self._reader.store.codec.may_hold, self._hop.of.partition
        if streams.keys + len(keys) > MAX_WATCHED_KEYS:
            what = f"{streams.keys} keys are watched, and {len(keys)} more are above the limit of {MAX_WATCHED_KEYS}"
            raise ProblemError(Problem(ProblemType.OVERLOADED, what, fix="Ask another service"))
        after = self._hop.after.version if hop.goes_on and self._hop.after is not None else None
        for start in range(0, len(keys), step):
            few = keys[start : start + step]
            if not all(may_hold(partition, key.row, self._reader.partitions) for key in few):
                raise ProblemError(MISPLACED)
            if self._opened is None:
                raise ProblemError(NO_FEED)
            task, watch = self._opened
            for number, key in enumerate(task.join([(key.row, key.printed) for key in few]), hop.first + start):
                key.users.add(self._stream)
                watch.add(number, key, after)
            self._count(len(few))
            self._stream.wake()
            await asyncio.sleep(0)
        if hop.goes_on:
            self._going_on += len(keys)
            if self._going_on >= self._hop.goes_on_with:
                self._has_all.set()

    def _drop(self, numbers: Sequence[int]) -> None:
        if self._opened is None:
            raise ProblemError(NO_FEED)
        task, watch = self._opened
        gone = [key for key in map(watch.drop, numbers) if key is not None]
        for key in gone:
            task.leave(key, self._stream)
        self._count(-len(gone))

    def _count(self, more: int) -> None:
        """Count its keys among those of all watches, until the stream leaves."""
        self._shared.streams.keys += more
        self._stream.keys += more

    async def _missed(self, task: WatchedTask, watch: FeedWatch, after: int) -> Events:
        """Yield the changes after a version, one version after another, once all keys were added."""
        if self._hop.goes_on_with:
            try:
                async with asyncio.timeout(KEYS_S):
                    await self._has_all.wait()
            except TimeoutError:
                raise WatchEndedError(EndReason.UNAVAILABLE) from None
        await self._shared.compared(task, after)
        numbers, keys = watch.numbered()
        reached, is_whole = after, not keys
        while not is_whole:
            found = await self._shared.catching_up.since(task, keys, reached)
            reached, is_whole = found.reached, found.reached >= found.last
            yield self._encoded_changes(task, numbers, keys, found.entries)
            for number, count in zip(numbers, found.counts, strict=True):
                watch.was_sent(number, reached, count)

    # ---- events

    def _encoded_changes(
        self, task: WatchedTask, numbers: Sequence[int], keys: Sequence[SharedKey], entries: Sequence[KeyChange]
    ) -> bytes:
        printed = [key.printed for key in keys]
        texts: list[bytes] = []
        for _, of_version in groupby(entries, key=lambda entry: entry.view.version):
            some = list(of_version)
            for entry, change in zip(some, changes_of(task.reader, task.replica, printed, some), strict=True):
                self._shared.streams.events[change.kind] += 1
                head = task.head(printed[entry.at], entry.members)
                event = change.event + at_fed_key(numbers[entry.at], change.version, head)
                is_last = entry is some[-1]
                ended = with_tail(event, change.position, task.tail(entry.view)) if is_last else with_id(event, None)
                texts.append(ended)
        return b"".join(texts) or KEEP_ALIVE

    def _encoded(self, task: WatchedTask, watch: FeedWatch, batch: EventBatch) -> bytes:
        texts = [self._encoded_telling(task, watch, each) for each in batch.tellings]
        if batch.position is None:
            return b"".join(with_id(text, None) for text in texts)
        if not texts:
            texts.append(version_text(task.version, batch.position))
        last = with_tail(texts[-1], batch.position, task.tail(task.view))
        return b"".join([*(with_id(text, None) for text in texts[:-1]), last])

    def _encoded_telling(self, task: WatchedTask, watch: FeedWatch, telling: Telling) -> bytes:
        """Return the events of a key, the last one without its end."""
        key, events, missed = watch.key(telling.at), self._shared.streams.events, telling.missed
        assert isinstance(key, NodeKey), "its own"
        coalesced = b""
        if missed is not None:
            self._shared.streams.coalesced += missed.changes or 0
            events[KeyEvent.COALESCED] += 1
            told = coalesced_event(self._reader.json_name, key.printed, *missed)
            coalesced = told + at_fed_key(telling.at, missed.first, 0)
            if not telling.tells_value:
                return coalesced
            coalesced = with_id(coalesced, None)
        head = task.head(key.printed, key.members)
        if telling.is_first:
            events[KeyEvent.SNAPSHOT] += 1
            return task.first_event(key) + at_fed_key(telling.at, task.version, head)
        events[kind_of(key.members)] += 1
        return coalesced + key.event + at_fed_key(telling.at, key.version, head)


class NodeWatchStreams(WatchStreams):
    """The watches of a node, with the reads that they cause."""

    def __init__(self, max_watchers: int, hub: WatchHub) -> None:
        super().__init__(max_watchers)
        self.catching_up = CatchingUp()
        self._hub = hub

    def metrics(self) -> Iterator[Metric]:
        yield from super().metrics()
        yield CounterMetricFamily(
            "understudy_watch_keys_read", "Keys that were read because they are watched", self._hub.reads
        )
        yield CounterMetricFamily(
            "understudy_watch_passes",
            "Passes over older versions for watchers that continue after one",
            self.catching_up.passes,
        )


class NodeWatches(Watches):
    """The watches of the keys of this node's replicas."""

    def __init__(self, reads: NodeReads, streams: NodeWatchStreams, hub: WatchHub, scans: Scans) -> None:
        super().__init__(streams, scans)
        self._reads = reads
        self._shared = WatcherParts(hub, streams, streams.catching_up, reads.learn)
        self.feeds = RouterFeeds(self._shared)

    def events(self, name: str, asked: ParsedWatch, stream: WatchStream) -> Events:
        source = NodeSource(self._shared, self._reads.reader(name))
        return Watcher(source, self.streams, asked, stream).events()

    def reader(self, hop: StoreOfHop) -> StoreReader:
        """Return the reader that a router asks for. Raises the problem of one that is not exactly that."""
        return require_reader(self._reads, hop)


def watch_hop_routes(watches: NodeWatches) -> APIRouter:
    """Make the calls by which routers watch keys."""
    routes = APIRouter()

    @routes.post(OPEN_PATH, response_class=WatchResponse)
    async def feed(request: Request) -> Response:
        """Send the events of keys of a partition that are added while the stream is open."""
        hop = await read_hop(request, decode_feed_hop)

        def begin(scope: Scope) -> Awaitable[Begun]:
            return watches.feeds.begin(watches.reader(hop.of), hop, grants_of(scope))

        return WatchResponse(watches.streams, begin)

    @routes.post(KEYS_PATH)
    async def feed_keys(request: Request) -> Response:
        """Add keys to a feed, and drop others."""
        hop = await read_hop(request, decode_feed_keys)
        await watches.feeds.change(hop)
        return json_response({})

    @routes.post(MISSED_PATH)
    async def missed(request: Request) -> Response:
        """Send what changed of some keys after a position."""
        hop = await read_hop(request, decode_missed_hop)
        reader = watches.reader(hop.of)
        require_placed(reader, hop.keys)
        return Response(await watches.feeds.missed(reader, hop), media_type=MEDIA_TYPE)

    return routes


def require_placed(reader: StoreReader, keys: Sequence[WatchKey]) -> None:
    """Raise the problem of keys that are not of the partitions that a router says."""
    may_hold = reader.store.codec.may_hold
    if not all(may_hold(key.partition, key.row, reader.partitions) for key in keys):
        raise ProblemError(MISPLACED)
