"""A part of the changes of a store: what each version changed in one partition, as lines of JSON.

A store that prints what is stored under a key needs its changelogs alone, so a part costs by changes, not by keys. In
a store where several records make an answer, a changed key is read at its version, as its history reads it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from time import monotonic, perf_counter
from typing import Final, NamedTuple

import orjson

from understudy_node.questions.scan.rows import RowMaker, said_of_record
from understudy_node.replica.local_bases import LocalBases
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task import TaskReplica
from understudy_node.replica.task_stores import VersionChanges
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.finding import FindingReader
from understudy_node.stores.lookup import Said, StoreReader
from understudy_shared.base.errors import UnsupportedError
from understudy_shared.base.words import LagInfo, StoreKind
from understudy_shared.http.problems import Problem
from understudy_shared.questions.changes.question import ChangesPlace, VersionLines
from understudy_shared.questions.export.hop import PART_BYTES
from understudy_shared.reads.bounds import BadBoundError, ReadVersion

PART_S: Final = 1.0
"""Time of work after which a part ends."""

SLICE_S: Final = 0.0005
"""Time of work between two pauses: a thread that works holds the interpreter, and lookups wait for it."""


class ChangesQuestion(NamedTuple):
    """The changes of a partition from a place on, up to version `last`. `ahead_bytes` is the room for the versions
    behind the first one, and of a short part for that one, too.
    """

    maker: RowMaker
    partition: int
    place: ChangesPlace
    last: int
    ahead_bytes: int
    is_short: bool = False


class ChangedKey(NamedTuple):
    """A changed key: its row, and what the version holds for it."""

    row: bytes
    said: Said


def require_changes(reader: StoreReader) -> None:
    """Raise the problem of a store whose changes cannot be read."""
    if reader.store.kind is StoreKind.JOIN_SIDE:
        what = f"{reader.store.name} is a side of a join, whose rows are in several tables"
        raise BadBoundError(what, where="store", fix="Watch its keys, read their histories, or export two versions")


def no_changelogs(reader: StoreReader) -> BadBoundError:
    """Return the problem of a store that Spark writes without changelogs."""
    fix = (
        "Export two versions and compare them, read the history of a key, or watch keys; Spark writes changelogs with"
        " spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled=true"
    )
    what = f"RocksDB writes whole snapshots of {reader.store.name}, no changelogs: what a version changed is not known"
    return BadBoundError(what, where="store", fix=fix)


def read_part(replica: TaskReplica, asked: ChangesQuestion, disk: LocalBases) -> tuple[VersionLines, ...]:
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
    asked: ChangesQuestion, view: TaskView, keys: Iterator[ChangedKey], behind: int, room_bytes: int, until_s: float
) -> VersionLines:
    """Return the lines of a version, whose first `behind` keys were read before: of one key at least."""
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
    """Return the members of a change behind its place; None for a key that is not wanted."""
    codec, said = maker.reader.store.codec, key.said
    if not maker.has_key(codec.decode(key.row)):
        return None
    row = None if said is None else maker.found(key.row, said)
    if row is None:
        return b'"found":false,"key":%b}' % orjson.dumps(codec.to_json(key.row))
    return row[1:] if isinstance(said, Problem) else b'"found":true,' + row[1:]


def _versions(
    replica: TaskReplica, asked: ChangesQuestion, disk: LocalBases
) -> Iterator[tuple[TaskView, Iterator[ChangedKey]]]:
    """Yield each version from the place on, with the keys that it changed; of the first those behind the place."""
    reader, first = asked.maker.reader, asked.place.version
    skip = asked.place.looked_at
    each = replica.read_changes(reader.store.store_name, first, asked.last)
    if not isinstance(reader, FindingReader):
        for changed in each:
            yield changed.view, _stored(reader, changed, skip)
            skip = 0
        return
    views = replica.read_each(ReadVersion(first, of_any_commit=True), asked.last, disk)
    for changed, view in zip(each, views, strict=True):
        yield changed.view, _found(asked, changed, view, skip)
        skip = 0


def _stored(reader: StoreReader, changed: VersionChanges, skip: int) -> Iterator[ChangedKey]:
    """Yield the keys of a store that prints what is stored, with what the version stored."""
    if changed.operations:
        what = f"version {changed.view.version} of {reader.store.name} merges values into others"
        raise UnsupportedError(
            what, where=f"store {reader.store.name}", fix="Please report this with the Spark version"
        )
    for kept, value in islice(changed.changes.items(), skip, None):
        yield ChangedKey(reader.key_row(kept), None if value is None else said_of_record(reader, value))


def _found(asked: ChangesQuestion, changed: VersionChanges, view: TaskView, skip: int) -> Iterator[ChangedKey]:
    """Yield the keys of which records were changed, each once, with what the version holds for them."""
    maker, reader = asked.maker, asked.maker.reader
    first = reader.first_bytes(view)
    if first is None:
        return
    reading = Reading(view, LagInfo(view.version, None, None, None), b"")
    for kept in islice(_own_keys(reader, first, changed), skip, None):
        row = reader.key_row(kept)
        (said,) = reader.find_many([row], reading, asked.partition, maker.selection)
        yield ChangedKey(row, said)


def _own_keys(reader: StoreReader, first: bytes, changed: VersionChanges) -> Mapping[bytes, None]:
    """Return a record's key of each changed key, in the order of the changelog."""
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
