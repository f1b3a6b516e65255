"""Watches of all keys with a prefix, the same at nodes and routers: a scan of one version, then the changes after it.

The service keeps only digests for a watcher. It polls for a new version, and reads the changes from the changelogs with
the code of `/changes`. So a watch can resume at any service, and survives the node that read for it.

Many watches often open together: after a restart all clients reconnect at once. So watches share their requests for
versions (`_SharedVersions`). Watches that begin at the same time begin with the same version, which nodes may have to
open from the checkpoint. Watches that have sent the same version share one poll for a newer one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Hashable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple

import orjson

from understudy_shared.auth.access import authorization_of
from understudy_shared.base.background import shielded
from understudy_shared.base.texts import clipped
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.edge import Scope
from understudy_shared.http.lookup_requests import pop_longs
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.http.target import parse_query
from understudy_shared.questions.changes.service import ChangesService, ChangesTurn, MergedChanges
from understudy_shared.questions.export.service import patient, patiently
from understudy_shared.questions.scan.long_reads import Asker
from understudy_shared.questions.scan.page import PAGE_MS, Place, Room, Stamp
from understudy_shared.questions.scan.requests import ScanTurn, parse_prefix, parse_scan, scan_turn
from understudy_shared.questions.service_reads import counted_of_store
from understudy_shared.questions.watch.choice import PrefixWatch
from understudy_shared.questions.watch.events import KEEP_ALIVE, EndReason, reset_event, version_event, with_id
from understudy_shared.questions.watch.hop import WatchKey
from understudy_shared.questions.watch.service import Beginning, Watches, beginning_of, grants_of
from understudy_shared.questions.watch.streams import (
    PIECE_BYTES,
    Begun,
    Events,
    WatchEndedError,
    WatchStream,
    WatchStreams,
    begun,
)
from understudy_shared.reads.bounds import NO_BOUND, BadBoundError, Bound, ReadVersion, Refusal
from understudy_shared.reads.tokens import Position
from understudy_shared.spark.temporal import utc_text

MAX_PRESENT: Final = 1_000
"""Limit on the keys that exist when a watch of a prefix begins, the same as for a watch of keys."""

MAX_PREFIX_WATCHES: Final = 64
"""Limit on the watches of prefixes of a process: each reads the changelogs of each version."""

MAX_BEGINNING: Final = 4
"""Number of watches that scan their existing keys at the same time; the others wait."""

TURN_S: Final = 20.0
"""Longest time for which a watch waits to begin."""

POLL_S: Final = 0.2
"""Time between two polls for a new version."""

WAIT_MS: Final = 3_000
"""Longest time for which a watcher that resumes waits until this service has the version of its position."""

BEGUN_S: Final = 2.0
"""Longest time for which new watches reuse the same first version. They then catch up with the changes since."""

KEEPING_UP: Final = 8
"""Number of versions by which a watcher may be behind and still gets each of them."""

VERSIONS_AT_ONCE: Final = 100
"""Number of versions that are read for a watcher before the next poll for the newest one."""

MAX_PRESENT_BYTES: Final = 8 * 1024 * 1024
PRESENT_S: Final = 10.0
"""Time limit for the scan of the existing keys."""

PATIENCE_S: Final = 20.0
"""Time for which a watch waits while no replica answers which version is the newest."""

MAX_PENDING: Final = 1_000
"""Number of keys whose changes are buffered, so that each is sent once, for a watcher that lags far behind."""

LINES_AT_ONCE: Final = 50
"""Number of changes in one turn of the event loop: below a millisecond."""

MAY_PASS: Final = frozenset((429, 502, 503, 504))


class PrefixRequest(NamedTuple):
    """A parsed request: the values of the leading key columns, and where it begins."""

    prefix: object
    begins: Beginning
    longs_as_text: bool


def parse_prefix_watch(members: Mapping[str, Any], query: bytes, last_event_id: str) -> PrefixRequest:
    """Parse the body of a request that has a prefix. Raises its problem."""
    params = parse_query(query)
    longs = pop_longs(params)
    bounds = members.get("bounds", {})
    unknown = sorted({*(members.keys() - {"prefix", "bounds"}), *params})
    if unknown or not isinstance(bounds, dict):
        what = f"a watch of a prefix takes no {clipped(unknown[0])}" if unknown else "bounds is not an object"
        fix = 'Send {"prefix": ["a"]}, or keys without a prefix'
        raise ProblemError(Problem(ProblemType.BAD_REQUEST, what, where="body", fix=fix))
    wrong = sorted(bounds.keys() - {"from"})
    if wrong:
        what = f"a watch of a prefix has no bound {clipped(wrong[0])}"
        raise BadBoundError(what, where="bounds", fix="Known is from: it tells the newest version, and then what comes")
    return PrefixRequest(members["prefix"], beginning_of(bounds, last_event_id), longs)


AskVersion = Callable[[], Coroutine[None, None, ReadVersion]]


class _Common:
    """A version that several watches begin with: the task that asks for it, its start, the number of watches."""

    __slots__ = ("asked", "since_s", "users")

    def __init__(self, asked: asyncio.Task[ReadVersion]) -> None:
        self.asked, self.since_s, self.users = asked, monotonic(), 0


class _SharedVersions:
    """The requests for versions that watches share. Only one runs at a time for each key; all its watches wait for it,
    and it continues if one of them leaves.
    """

    def __init__(self) -> None:
        self._newest: dict[Hashable, asyncio.Task[ReadVersion]] = {}
        self._first: dict[Hashable, _Common] = {}

    async def newest(self, key: Hashable, ask: AskVersion) -> ReadVersion:
        """Return the result of `ask`, or a result of a moment ago. Raises its problem."""
        asked = self._newest.get(key)
        if asked is None:
            asked = self._newest[key] = _task(ask)
            asked.add_done_callback(partial(self._was_asked, key))
        return await shielded(asked)

    def _was_asked(self, key: Hashable, asked: asyncio.Task[ReadVersion]) -> None:
        if asked.cancelled() or asked.exception() is not None:
            del self._newest[key]
        else:
            asked.get_loop().call_later(POLL_S / 2, self._newest.pop, key)

    @asynccontextmanager
    async def first(self, key: Hashable, ask: AskVersion) -> AsyncIterator[ReadVersion]:
        """Ask for the version to begin with. If another watch with the same key is still beginning, share its version.
        Raises the problem of `ask`.
        """
        common = self._first.get(key)
        if common is None or monotonic() - common.since_s > BEGUN_S:
            common = self._first[key] = _Common(_task(ask))
        common.users += 1
        try:
            yield await shielded(common.asked)
        finally:
            common.users -= 1
            if not common.users and self._first.get(key) is common:
                del self._first[key]


def _task(ask: AskVersion) -> asyncio.Task[ReadVersion]:
    return asyncio.get_running_loop().create_task(ask(), name="ask for the version of watches")


class PrefixWatches:
    """The watches of prefixes of a process."""

    def __init__(self, watches: Watches, changes: ChangesService) -> None:
        self._watches, self._changes = watches, changes
        self._open = self._waiting = 0
        self._beginning = asyncio.Semaphore(MAX_BEGINNING)
        self._versions = _SharedVersions()

    async def begin(
        self, name: str, members: Mapping[str, Any], query: bytes, last_event_id: str, scope: Scope
    ) -> Begun:
        """Begin a watch with the members of the request's body. Raises a problem if it cannot begin."""
        with counted_of_store(self._changes.scans.service, "watch", name):
            return await self._begun(name, parse_prefix_watch(members, query, last_event_id), scope)

    async def _begun(self, name: str, asked: PrefixRequest, scope: Scope) -> Begun:
        store = self._changes.scans.store(name)
        after = await self._watches.position_of(store, asked.begins)
        longs = {"longs": "string"} if asked.longs_as_text else {}
        scan = parse_scan("scan", {"prefix": asked.prefix, **longs})
        turn = replace(scan_turn(store, scan, NO_BOUND, authorization_of(scope)), is_watch=True)
        watched = self._open + self._waiting
        if watched >= MAX_PREFIX_WATCHES:
            what = f"{watched} prefixes are watched, as many as may be"
            raise ProblemError(Problem(ProblemType.OVERLOADED, what, fix="Watch keys, or ask another service"))
        printed = parse_prefix(store.codec, scan.question.prefix, store.partitions).printed
        streams = self._watches.streams
        granted = grants_of(scope, [WatchKey(0, b"", orjson.dumps(printed))])
        async with self._turn():
            stream = streams.enter(MAX_PRESENT, granted)
            return await begun(streams, stream, lambda: self._events(turn, after, stream))

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for one of the `MAX_BEGINNING` places, and hold it. Raises an overloaded problem after `TURN_S`."""
        self._waiting += 1
        try:
            async with asyncio.timeout(TURN_S):
                await self._beginning.acquire()
        except TimeoutError:
            what = f"a watch waited {TURN_S:g} s for others that begin"
            raise ProblemError(Problem(ProblemType.OVERLOADED, what, fix="Retry after a second")) from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._beginning.release()

    async def _events(self, turn: ScanTurn, after: Position | None, stream: WatchStream) -> Events:
        self._open += 1
        try:
            watcher = _Watcher(self._changes, self._watches.streams, self._versions, turn, stream)
            async with aclosing(watcher.events(after)) as events:
                async for piece in events:
                    yield piece
        finally:
            self._open -= 1


class _Watcher:
    """One watcher of a prefix. Everything up to the position `_seen` was sent to it."""

    def __init__(
        self,
        changes: ChangesService,
        streams: WatchStreams,
        versions: _SharedVersions,
        turn: ScanTurn,
        stream: WatchStream,
    ) -> None:
        self._changes, self._streams, self._versions = changes, streams, versions
        self._turn, self._stream = turn, stream
        self._watch = PrefixWatch(turn.store.name, knows_all=False)
        self._seen = self._position(0, None)
        self._failing_s: float | None = None
        """Time of the first failed request for a version since the last success."""

    async def events(self, after: Position | None) -> Events:
        """Yield the events; the first one without waiting for a change."""
        if after is not None and await self._is_of_this_history(after):
            self._seen = after
            async with aclosing(self._behind(is_resumed=True)) as events:
                async for piece in events:
                    yield piece
            self._turn = self._turn_now()
        while True:
            reset = b"" if after is None else reset_event(self._turn.store.lineage)
            yield reset + await self._present()
            async with aclosing(self._behind(is_resumed=False)) as events:
                async for piece in events:
                    yield piece
            self._turn, after = self._turn_now(), self._seen

    async def _is_of_this_history(self, after: Position) -> bool:
        """Whether a position belongs to this history. Waits for its version, and raises a problem if that fails."""
        if after.lineage != self._turn.store.lineage:
            return False
        try:
            await self._newest(Bound(min_position=after, wait_ms=WAIT_MS))
        except ProblemError as error:
            if error.problem.refusal is not Refusal.LINEAGE_CHANGED:
                raise
            return False
        return True

    def _turn_now(self) -> ScanTurn:
        """Return the question for the current store. Raises WatchEndedError if keys are now placed in another way."""
        store, before = self._changes.scans.store(self._turn.store.name), self._turn.store
        if (store.codec.layout(store.partitions), store.held) != (before.codec.layout(before.partitions), before.held):
            raise WatchEndedError(EndReason.MOVED)
        return replace(self._turn, store=store)

    async def _present(self) -> bytes:
        """Return an event for each existing key. Raises the problem of too many keys, or of a store without changes."""
        of = (self._turn.store.name, self._turn.store.lineage, tuple(self._turn.partitions))
        try:
            async with self._versions.first(of, self._first) as version:
                return await self._present_at(version)
        except ProblemError as error:
            if error.problem.refusal is not Refusal.LINEAGE_CHANGED:
                raise
        return await self._present_at(await self._first())  # a rewind took it away after another watch had asked for it

    async def _present_at(self, version: ReadVersion) -> bytes:
        self._seen = self._position(version.number, version.committed_at_us)
        self._watch = PrefixWatch(self._turn.store.name, knows_all=True)
        found: list[bytes] = []
        async for row, partition, stamp in self._rows(version):
            found.append(self._watch.present(row, partition, stamp))
        self._count()
        if not found:
            return version_event(version.number, self._seen.encode())
        return b"".join([*(with_id(each, None) for each in found[:-1]), with_id(found[-1], self._seen.encode())])

    async def _first(self) -> ReadVersion:
        """Return the version to begin with. Raises a problem if the changes of the store cannot be read, so a watch
        fails at its beginning and not with the first changes.
        """
        version = await self._newest(NO_BOUND)
        merged = self._merged(version.number, version.number)
        try:
            await merged.begin()
        finally:
            await merged.close()
        return version

    async def _rows(self, version: ReadVersion) -> AsyncGenerator[tuple[Mapping[str, Any], int, Stamp]]:
        """Yield the rows of a version with the prefix. Raises a problem if there are too many for a watch."""
        read = self._changes.scans.part_reader(self._turn, version, Asker())
        until_s = monotonic() + PRESENT_S
        count = size_bytes = 0
        for partition in self._turn.partitions:
            place = Place(partition)
            while True:
                room = Room(MAX_PRESENT + 1 - count, MAX_PRESENT_BYTES, monotonic() + PAGE_MS / 1000)
                part = await patiently(partial(read, place, room))  # scans may occupy all places of a node
                count, size_bytes = count + part.found, size_bytes + len(part.rows)
                if count > MAX_PRESENT or size_bytes > MAX_PRESENT_BYTES:
                    raise ProblemError(_TOO_MANY)
                for row in orjson.loads(b"[%b]" % part.rows):
                    yield row, partition, part.stamp
                if part.is_end:
                    break
                if monotonic() >= until_s:
                    raise ProblemError(_TOO_LONG)
                place = Place(partition, part.after)

    async def _behind(self, *, is_resumed: bool) -> Events:
        """Yield the changes after the version that was sent last, until a rewind takes that version away."""
        is_begun = not is_resumed
        was_missed: int | None = None
        while True:
            self._stream.require_open()
            newest = await self._news()
            if newest is None:
                return
            if was_missed is None:  # a watcher that resumes gets each version that it missed
                was_missed = newest if is_resumed else self._seen.version
            if newest > self._seen.version:
                is_slow = self._seen.version >= was_missed and newest - self._seen.version > KEEPING_UP
                async with aclosing(self._missed(newest, is_slow=is_slow)) as events:
                    async for piece in events:
                        yield piece
            elif self._stream.is_quiet:
                yield version_event(self._seen.version, self._seen.encode())
            elif not is_begun:
                yield KEEP_ALIVE
            else:
                await self._pause()
            is_begun = True

    async def _news(self) -> int | None:
        """Return the newest version that all partitions serve; `None` if a rewind took away the version sent last. If
        no replica answers, return the version sent last, and raise the problem after `PATIENCE_S`.
        """
        store = self._changes.scans.store(self._turn.store.name)
        if store.lineage != self._turn.store.lineage:
            return None
        try:
            of = (store.name, tuple(self._turn.partitions), self._seen)
            ask = partial(self._newest, Bound(min_position=self._seen))
            newest = (await self._versions.newest(of, ask)).number
        except ProblemError as error:
            if error.problem.refusal is Refusal.LINEAGE_CHANGED:
                return None
            self._failing_s = self._failing_s or monotonic()
            if error.problem.status not in MAY_PASS or monotonic() - self._failing_s > PATIENCE_S:
                raise
            return self._seen.version
        self._failing_s = None
        return newest

    async def _missed(self, newest: int, *, is_slow: bool) -> Events:
        """Yield the changes after the version sent last: all, or only the last one of each key if `is_slow`."""
        watch, last = self._watch, min(newest, self._seen.version + VERSIONS_AT_ONCE)
        merged = self._merged(self._seen.version + 1, last)
        left = len(self._turn.partitions)
        events = _HeldEvents()
        try:
            await merged.begin()
            async with aclosing(merged.pieces()) as pieces:
                async for piece in pieces:
                    position = self._position(piece.version, piece.committed_at_us)
                    committed_at = utc_text(piece.committed_at_us)
                    for number, line in enumerate(bytes(piece.lines).splitlines()):
                        watch.changed(orjson.loads(line)["change"], committed_at, position.encode())
                        if not is_slow or watch.pending >= MAX_PENDING:
                            events.add(watch.tell())
                        if events.size_bytes >= PIECE_BYTES:
                            yield events.take()
                        if number % LINES_AT_ONCE == LINES_AT_ONCE - 1:
                            await asyncio.sleep(0)
                    left -= piece.is_whole
                    if left:
                        continue
                    left = len(self._turn.partitions)
                    if not is_slow or piece.version == last:
                        self._seen = position
                        events.add(watch.tell())
                        self._count()
                        yield events.take_all(position)
        finally:
            await merged.close()

    def _count(self) -> None:
        self._streams.events.update(self._watch.told)
        self._streams.coalesced += self._watch.coalesced
        self._watch.told.clear()
        self._watch.coalesced = 0

    def _merged(self, first: int, last: int) -> MergedChanges:
        fetch = patient(self._changes.reader(ChangesTurn(self._turn, first, last)))
        return MergedChanges(self._turn.partitions, first, last, fetch)

    async def _newest(self, bound: Bound) -> ReadVersion:
        return await self._changes.scans.first_version(replace(self._turn, bound=bound))

    def _position(self, version: int, committed_at_us: int | None) -> Position:
        store = self._turn.store
        return Position(ApplicationId(store.application_id), Lineage(store.lineage), version, committed_at_us)

    async def _pause(self) -> None:
        """Wait for a moment, or until the stream is woken."""
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._stream.wait()


class _HeldEvents:
    """Events to send next. The last one is held back until it is clear whether it carries a position."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._texts: list[bytes] = []
        self._last: bytes | None = None

    def add(self, events: Iterable[bytes]) -> None:
        """Add events without their last lines."""
        for each in events:
            if self._last is not None:
                self._texts.append(with_id(self._last, None))
                self.size_bytes += len(self._texts[-1])
            self._last = each

    def take(self) -> bytes:
        """Return all but the last."""
        taken = b"".join(self._texts)
        self._texts.clear()
        self.size_bytes = 0
        return taken

    def take_all(self, position: Position) -> bytes:
        """Return all, with the position up to which everything was sent."""
        last, self._last = self._last, None
        end = version_event(position.version, position.encode()) if last is None else with_id(last, position.encode())
        return self.take() + end


_NARROWER: Final = "Watch a longer prefix, or keys; or read an export, and then the changes behind its version"
_TOO_MANY: Final = Problem(
    ProblemType.TOO_LARGE,
    f"more than {MAX_PRESENT} keys begin with this prefix, or more than {MAX_PRESENT_BYTES} bytes of them",
    where="prefix",
    fix=_NARROWER,
)
_TOO_LONG: Final = Problem(
    ProblemType.DEADLINE, f"the keys with this prefix were not found in {PRESENT_S:g} s", where="prefix", fix=_NARROWER
)
