"""Histories of keys and changes of versions at a node, read from the checkpoint beside the replica that is on show.

KIP-968 asks the same of versioned stores: the first entry of a history is what was valid at the first version, whenever
it was written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import monotonic, perf_counter
from typing import Final, NamedTuple

import orjson
from fastapi import APIRouter, Request, Response

from understudy_node.questions.export.service import PiecesResponse
from understudy_node.questions.lookup.hop import MISPLACED, read_hop, require_reader
from understudy_node.questions.lookup.reads import NodeReads
from understudy_node.questions.scan.rows import RowMaker, row_maker, said_of_record
from understudy_node.questions.watch.hub import are_equal, members_of, said_of
from understudy_node.replica.local_bases import LocalBases
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task import TaskReplica
from understudy_node.replica.task_stores import VersionChanges
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.lookup import FindingReader, Said, StoreReader
from understudy_shared.base.errors import MissingVersionError, UnsupportedError, VanishedError
from understudy_shared.base.words import LagInfo, StoreKind
from understudy_shared.http.problems import Problem, ProblemError, refused
from understudy_shared.questions.changes.histories import (
    PATH,
    Histories,
    HistoryHop,
    HistoryRange,
    decode_history_hop,
)
from understudy_shared.questions.changes.service import PATH as CHANGES_PATH
from understudy_shared.questions.changes.service import (
    ChangesHop,
    ChangesPlace,
    ChangesService,
    ChangesTurn,
    FetchChanges,
    VersionLines,
    ahead_bytes,
    decode_changes_hop,
    encode_changes,
)
from understudy_shared.questions.export.hop import PART_BYTES
from understudy_shared.questions.scan.long_reads import Asker
from understudy_shared.questions.scan.service import Scans
from understudy_shared.reads.bounds import NO_BOUND, BadBoundError, ReadVersion, Refusal, Selection

MAX_HISTORY_BYTES: Final = 1024 * 1024
"""Size at which a page of a history ends, with one entry at least."""


class HistoryPage(NamedTuple):
    """A page of a history: the versions that it is of, its entries, and where the next page begins; None at the end.

    An entry is a version at which the answer for the key changed: the members and the stamp of its JSON, without
    braces.
    """

    first: int
    last: int
    entries: list[tuple[bytes, bytes]]
    next_from: int | None


@dataclass(frozen=True, slots=True)
class HistoryQuestion:
    """The history of a key from one version to another, both inclusive. Without `first` it begins with the oldest that
    can be read; `row` is the key as the codec encodes it.
    """

    partition: int
    row: bytes
    first: int | None
    last: int
    selection: Selection
    until_s: float


def read_history(reader: StoreReader, replica: TaskReplica, asked: HistoryQuestion, disk: LocalBases) -> HistoryPage:
    """Read a page of a history. Raises its key's problem, and MissingVersionError where a version is missing."""
    entries: list[tuple[bytes, bytes]] = []
    before: bytes | None = None
    first, size = asked.first or 0, 0
    for view in _views(replica, asked, disk):
        first = first or view.version
        (said,) = said_of(reader, [asked.row], view, asked.partition, asked.selection)
        if isinstance(said, Problem):
            raise ProblemError(said)
        members = members_of(said)
        if before is None or not are_equal(members, before):
            entries.append((members, view.stamp))
            before = members
            size += len(members)
        if view.version < asked.last and (size >= MAX_HISTORY_BYTES or monotonic() >= asked.until_s):
            return HistoryPage(first, view.version, entries, view.version + 1)
    return HistoryPage(first, asked.last, entries, None)


def _views(replica: TaskReplica, asked: HistoryQuestion, disk: LocalBases) -> Iterator[TaskView]:
    if asked.first is not None:
        yield from replica.read_each(_any_commit(asked.first), asked.last, disk)
        return
    retained = replica.retained()
    for number in range(asked.last if retained is None else retained.first, asked.last + 1):
        # Spark removes state files and commits at different moments: the oldest commits may have lost their state.
        views = replica.read_each(_any_commit(number), asked.last, disk)
        try:
            view = next(views)
        except (MissingVersionError, VanishedError):
            if number == asked.last or monotonic() >= asked.until_s:
                raise
            continue
        yield view
        yield from views
        return


def _any_commit(number: int) -> ReadVersion:
    return ReadVersion(number, of_any_commit=True)


HISTORY_S = 2.0
"""Time after which a page of a history ends."""


class NodeHistories(Histories):
    """The histories of the keys of this node's replicas."""

    def __init__(self, reads: NodeReads, scans: Scans) -> None:
        super().__init__(scans)
        self._reads = reads

    async def read(self, name: str, partition: int, row: bytes, asked: HistoryRange) -> bytes:
        return await self._read(self._reads.reader(name), partition, row, asked)

    async def read_for_router(self, hop: HistoryHop) -> bytes:
        """Return a page of a history for a router. Raises its problem."""
        reader = require_reader(self._reads, hop)
        if not reader.store.codec.may_hold(hop.partition, hop.row, reader.partitions):
            raise ProblemError(MISPLACED)
        return await self._read(reader, hop.partition, hop.row, hop.range)

    async def _read(self, reader: StoreReader, partition: int, row: bytes, asked: HistoryRange) -> bytes:
        shown = reader.read_from(partition, NO_BOUND)
        if isinstance(shown, Problem):
            raise ProblemError(shown)
        replica, newest = reader.replicas[partition], shown.view.version
        for version in (asked.first, asked.last):
            if version is not None and version > newest:
                candidate = replica.origin.as_candidate(shown.lag, Refusal.VERSION_NOT_YET)
                raise ProblemError(refused(Refusal.VERSION_NOT_YET, candidates=[candidate]))
        question = HistoryQuestion(
            partition,
            row,
            asked.first,
            newest if asked.last is None else asked.last,
            Selection(include_expired=asked.include_expired),
            monotonic() + HISTORY_S,
        )
        return _printed(partition, await self._page(reader, replica, question))

    async def _page(self, reader: StoreReader, replica: TaskReplica, asked: HistoryQuestion) -> HistoryPage:
        try:
            return await asyncio.wrap_future(replica.in_thread(partial(read_history, reader, replica, asked)))
        except (MissingVersionError, VanishedError):  # Spark purged it, perhaps just now
            retained = await asyncio.to_thread(replica.retained)
            raise ProblemError(replica.origin.as_gone(retained)) from None


def _printed(partition: int, page: HistoryPage) -> bytes:
    entries = b",".join(b"{%b,%b}" % (members.rstrip(b","), stamp) for members, stamp in page.entries)
    return b'"partition":%d,"from":%d,"to":%d,"versions":[%b],"next_from":%b}\n' % (
        partition,
        page.first,
        page.last,
        entries,
        orjson.dumps(page.next_from),
    )


def history_hop_routes(histories: NodeHistories) -> APIRouter:
    """Make the call by which routers ask for a history."""
    routes = APIRouter()

    @routes.post(PATH)
    async def history(request: Request) -> Response:
        """Return the history of a key, as the JSON after the key."""
        hop = await read_hop(request, decode_history_hop)
        return Response(b"{" + await histories.read_for_router(hop), media_type="application/json")

    return routes


PART_S: Final = 1.0
"""Time of work after which a part ends."""

SLICE_S: Final = 0.0005
"""Time of work between two pauses: a thread that works holds the interpreter, and lookups wait for it."""


class PartitionChangesQuestion(NamedTuple):
    """The changes of a partition from a place on, up to version `last`. `ahead_bytes` is the room for the versions
    after the first one; in a part that `is_short` the same limit holds for the first one, too.
    """

    maker: RowMaker
    partition: int
    place: ChangesPlace
    last: int
    ahead_bytes: int
    is_short: bool = False


ChangedKey = tuple[bytes, Said]
"""A changed key: its row, and the result of a lookup of it in the version."""


def _require_changes(reader: StoreReader) -> None:
    """Raise the problem of a store whose changes cannot be read."""
    if reader.store.kind is StoreKind.JOIN_SIDE:
        what = f"{reader.store.name} is a side of a join, whose rows are in several tables"
        raise BadBoundError(what, where="store", fix="Watch its keys, read their histories, or export two versions")


def _no_changelogs(reader: StoreReader) -> BadBoundError:
    """Return the problem of a store that Spark writes without changelogs."""
    fix = (
        "Export two versions and compare them, read the history of a key, or watch keys; Spark writes changelogs with"
        " spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled=true"
    )
    what = f"RocksDB writes whole snapshots of {reader.store.name}, no changelogs: what a version changed is not known"
    return BadBoundError(what, where="store", fix=fix)


def read_part(replica: TaskReplica, asked: PartitionChangesQuestion, disk: LocalBases) -> tuple[VersionLines, ...]:
    """Read a part: at least one key of its first version, and the following versions as far as there is room for each
    as a whole. Raises MissingVersionError and VanishedError for a version that the checkpoint lacks.
    """
    until_s = monotonic() + PART_S
    found: list[VersionLines] = []
    room_bytes = asked.ahead_bytes if asked.is_short else PART_BYTES
    for view, keys in _versions(replica, asked, disk):
        behind = 0 if found else asked.place.looked_at
        lines = _lines_of(asked, view, keys, behind, room_bytes, until_s)
        if found and (not lines.is_whole or len(lines.lines) > room_bytes):
            break
        found.append(lines)
        room_bytes = asked.ahead_bytes - sum(len(each.lines) for each in found)
        if not lines.is_whole or room_bytes <= 0 or monotonic() >= until_s:
            break
    return tuple(found)


def _lines_of(  # noqa: PLR0917  # which version, from where on, and within which room
    asked: PartitionChangesQuestion,
    view: TaskView,
    keys: Iterator[ChangedKey],
    behind: int,
    room_bytes: int,
    until_s: float,
) -> VersionLines:
    """Return the lines of a version for the keys after the first `behind` ones, for one key at least."""
    maker, lines = asked.maker, list[bytes]()
    head = b'{"change":{"version":%d,"partition":%d,' % (view.version, asked.partition)
    size, looked_at = 0, behind
    is_whole = True
    pause = _Pause()
    for key in keys:
        if looked_at > behind and (size >= room_bytes or monotonic() >= until_s):
            is_whole = False
            break
        row = _row_of(maker, key)
        if row is not None:
            lines.append(b"%b%b}\n" % (head, row))
            size += len(lines[-1])
        looked_at += 1
        pause.between_slices()
    return VersionLines(view.version, b"".join(lines), len(lines), looked_at, is_whole, view.committed_at_us)


def _row_of(maker: RowMaker, key: ChangedKey) -> bytes | None:
    """Return the members of a change after its place; None for a key that is not wanted."""
    codec, (row, said) = maker.reader.store.codec, key
    if not maker.has_key(codec.decode(row)):
        return None
    shown = None if said is None else maker.found(row, said)
    if shown is None:
        return b'"found":false,"key":%b}' % orjson.dumps(codec.to_json(row))
    return shown[1:] if isinstance(said, Problem) else b'"found":true,' + shown[1:]


def _versions(
    replica: TaskReplica, asked: PartitionChangesQuestion, disk: LocalBases
) -> Iterator[tuple[TaskView, Iterator[ChangedKey]]]:
    """Yield each version from the place on with its changed keys; in the first version, those after the place."""
    reader, first = asked.maker.reader, asked.place.version
    skip = asked.place.looked_at
    each = replica.read_changes(reader.store.store_name, first, asked.last)
    if not isinstance(reader, FindingReader):
        for changed in each:
            yield changed.view, _stored(reader, changed, skip)
            skip = 0
        return
    past: Iterator[TaskView] | None = None
    for changed in each:
        number, committed_at_us = changed.view.version, changed.view.committed_at_us
        shown = replica.view_at(ReadVersion(number, committed_at_us)) if past is None else None
        if shown is None:
            past = past or replica.read_each(_any_commit(number), asked.last, disk)
            shown = next(past)
        yield changed.view, _found(asked, changed, shown, skip)
        skip = 0


def _stored(reader: StoreReader, changed: VersionChanges, skip: int) -> Iterator[ChangedKey]:
    """Yield the changed keys of a store that prints stored values, with the values that the version stored."""
    if changed.operations:
        what = f"version {changed.view.version} of {reader.store.name} merges values into others"
        raise UnsupportedError(
            what, where=f"store {reader.store.name}", fix="Please report this with the Spark version"
        )
    for kept, value in islice(changed.changes.items(), skip, None):
        yield reader.key_row(kept), None if value is None else said_of_record(reader, value)


def _found(asked: PartitionChangesQuestion, changed: VersionChanges, view: TaskView, skip: int) -> Iterator[ChangedKey]:
    """Yield each key with changed records once, with the result of a lookup of it in the version."""
    maker, reader = asked.maker, asked.maker.reader
    first = reader.first_bytes(view)
    if first is None:
        return
    reading = Reading(view, LagInfo(view.version, None, None, None), b"")
    for kept in islice(_own_keys(reader, first, changed), skip, None):
        row = reader.key_row(kept)
        (said,) = reader.find_many([row], reading, asked.partition, maker.selection)
        yield row, said


def _own_keys(reader: StoreReader, first: bytes, changed: VersionChanges) -> Mapping[bytes, None]:
    """Return one record's key for each changed key, in the order of the changelog."""
    if any(each.kind == "delete-range" for each in changed.operations):
        what = f"version {changed.view.version} deletes a range of keys of {reader.store.name}, and not one by one"
        raise BadBoundError(what, where="from", fix="Export this version and the one before it, and compare them")
    found: dict[bytes, bytes] = {}
    for kept in (*changed.changes, *(each.key for each in changed.operations)):
        if kept.startswith(first):
            found.setdefault(reader.own_bytes(kept), kept)
    return dict.fromkeys(found.values())


class _Pause:
    """The pauses of a thread, in which lookups have the interpreter for themselves."""

    def __init__(self) -> None:
        self._until_s = perf_counter() + SLICE_S

    def between_slices(self) -> None:
        """Sleep for a moment, if a slice has passed since the last time."""
        if perf_counter() >= self._until_s:
            time.sleep(SLICE_S)
            self._until_s = perf_counter() + SLICE_S


class NodeChanges(ChangesService):
    """The changes of the stores of this node's replicas."""

    def __init__(self, reads: NodeReads, scans: Scans) -> None:
        super().__init__(scans)
        self._reads = reads

    def reader(self, asked: ChangesTurn) -> FetchChanges:
        reader, scan = self._reads.reader(asked.turn.store.name), asked.turn.asked
        _require_changes(reader)
        maker = row_maker(reader, scan.question, longs_as_text=scan.longs_as_text)
        room_bytes = ahead_bytes(len(asked.turn.partitions))

        async def read(number: int, place: ChangesPlace, is_short: bool) -> tuple[VersionLines, ...]:
            return await self._part(
                reader, PartitionChangesQuestion(maker, number, place, asked.last, room_bytes, is_short)
            )

        return read

    async def part_for_router(self, hop: ChangesHop) -> tuple[VersionLines, ...]:
        scan = hop.scan
        reader = require_reader(self._reads, scan)
        _require_changes(reader)
        selection = Selection(scan.elements, include_expired=scan.question.include_expired)
        maker = row_maker(reader, scan.question, selection, longs_as_text=scan.longs_as_text)
        place = ChangesPlace(scan.version.number, hop.skip)
        asked = PartitionChangesQuestion(maker, scan.partition, place, hop.last, scan.room_bytes, hop.is_short)
        return await self._part(reader, asked)

    async def _part(self, reader: StoreReader, asked: PartitionChangesQuestion) -> tuple[VersionLines, ...]:
        shown = reader.read_from(asked.partition, NO_BOUND)
        if isinstance(shown, Problem):
            raise ProblemError(shown)
        replica = reader.replicas[asked.partition]
        if asked.last > shown.view.version:
            candidate = replica.origin.as_candidate(shown.lag, Refusal.VERSION_NOT_YET)
            raise ProblemError(refused(Refusal.VERSION_NOT_YET, candidates=[candidate]))
        async with self.scans.long_reads.part_turn():
            try:
                return await asyncio.wrap_future(replica.in_thread(partial(read_part, replica, asked)))
            except (MissingVersionError, VanishedError):  # Spark purged it, perhaps just now
                readable = await asyncio.to_thread(replica.changelogs, reader.store.store_name)
        if readable is None:
            raise _no_changelogs(reader)
        raise ProblemError(replica.origin.as_gone(readable))


def changes_hop_routes(changes: NodeChanges) -> APIRouter:
    routes = APIRouter()

    @routes.post(CHANGES_PATH)
    async def part(request: Request) -> Response:
        """Return the changes of one partition after a place."""
        hop = await read_hop(request, decode_changes_hop)
        asker = Asker()
        found = await asker.while_it_waits(request.receive, changes.part_for_router(hop))
        return PiecesResponse(() if found is None else encode_changes(found))

    return routes
