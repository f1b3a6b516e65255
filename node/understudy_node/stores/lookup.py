"""The readers of stores. One key's answer is the value and its age, read together, or a typed refusal.

The bound is measured here, at serving time, with the same view that gives the value. An answer is assembled from bytes:
what is constant for a version was encoded when the version was published, not for each lookup.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, cast

import orjson

from understudy_node.checkpoint.description import CheckpointDescription
from understudy_node.checkpoint.state_variables import BY_PANDAS
from understudy_node.engine.base import RowCache
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task import TaskReplica
from understudy_node.replica.task_view import RetainedVersions, TaskView
from understudy_node.stores.finder import OWN_PLACES, Finder, FoundMembers, KeyRecords
from understudy_node.stores.stores import ServedStore, StoreAlias, served_stores
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import ApplicationId, Lineage, ReplicaState, StoreName
from understudy_shared.http.lookup_requests import encoded_key
from understudy_shared.http.problems import Problem, ProblemType, problem_of, refused
from understudy_shared.questions.lookup.batches import NOT_FOUND
from understudy_shared.reads.bounds import EVERYTHING, NO_BOUND, Bound, ReadVersion, Refusal, Selection, refusal
from understudy_shared.reads.tokens import PageCursor, key_digest
from understudy_shared.spark.key_codec import ANY_PARTITION, KeyCodec, Row
from understudy_shared.spark.types import DoubleType, FloatType, StringType


class LookupAnswer(NamedTuple):
    """A lookup that was answered: 200 with a value, or 404 with `found: false`; only that body means absent."""

    status: int
    body: bytes


class Hidden(NamedTuple):
    """A key with only expired elements, for a reader who asked not to see them: answered as absent. `members` say why,
    with a comma at the end.
    """

    members: bytes


Said = bytes | Hidden | Problem | None
"""The result for a key: the members of a found key, Hidden, a problem, or None for an absent key."""


class ResolvedKey(NamedTuple):
    """A key, resolved: its partition, its bytes as the store has them, and its JSON for the answer."""

    partition: int
    stored: bytes
    json: bytes


@dataclass(frozen=True, slots=True)
class StoreReader(KeyRecords):
    """The reader of one store from this node's replicas.

    `row_prefix` is what the provider puts before a row: RocksDB a version byte, the HDFS-backed provider nothing.
    `layout` names how its keys are encoded and placed.
    """

    store: ServedStore
    application_id: ApplicationId
    lineage: Lineage
    partitions: int
    replicas: Mapping[int, TaskReplica]
    row_prefix: bytes
    json_name: bytes
    layout: str
    max_key_bytes: int
    printed: RowCache
    section: int
    """Section of the cache of printed rows."""
    keys_at_once: ClassVar[int] = 200
    """Number of keys looked up before the event loop is yielded: about 1 ms."""

    def resolve(self, row: tuple[object, ...]) -> ResolvedKey:
        """Resolve the key of a parsed row; hashing gives the partition, as it did for Spark."""
        codec = self.store.codec
        encoded = encoded_key(codec, row, self.max_key_bytes)
        partition = codec.partition(row, self.partitions)
        return ResolvedKey(partition, self.row_prefix + encoded, orjson.dumps(codec.to_json(encoded)))

    def look_up(self, key: ResolvedKey, bound: Bound) -> LookupAnswer | Problem:
        reading = self.read_from(key.partition, bound)
        if isinstance(reading, Problem):
            return reading
        stored = reading.view.stores[self.store.store_name].get(key.stored)
        found = NOT_FOUND if stored is None else self.print_found(stored)
        body = b'{"store":%b,"key":%b,%b%b' % (self.json_name, key.json, found, reading.tail)
        return LookupAnswer(404 if stored is None else 200, body)

    def find_many(
        self, rows: Sequence[bytes], reading: Reading, partition: int, selection: Selection = EVERYTHING
    ) -> list[Said]:
        """Find many keys: a found one as `print_found` prints it, None if it is absent, a problem if the record is
        damaged. `rows` lack the provider's prefix; they and `reading` are of `partition`.
        """
        try:
            prefix, print_found = self.row_prefix, self.print_found
            store = reading.view.stores[self.store.store_name]
            if len(rows) == 1:  # nearly all hops without load
                only = store.get(prefix + rows[0])
                return [None if only is None else print_found(only)]
            stored = store.get_many([prefix + row for row in rows] if prefix else rows)
            if None not in stored:
                section = self.section
                printed = self.printed.all_of([(section, each) for each in cast("list[bytes]", stored)])
                if printed is not None:
                    return cast("list[Said]", printed)
            return [None if each is None else print_found(each) for each in stored]
        except UnderstudyError as error:
            if len(rows) == 1:
                return [problem_of(error)]
            # Only some of the keys are damaged.
            return [found for row in rows for found in self.find_many([row], reading, partition)]

    def read_from(self, partition: int, bound: Bound, known_end: int = 0) -> Reading | Problem:
        """Return the version to answer from, with its lag, or why this node may not answer.

        `known_end` is the newest committed version that the caller heard of; the newer of it and this node's end
        counts.
        """
        replica = self.replicas.get(partition)
        if replica is None:
            return self._not_owner(partition)
        view = replica.view
        if view is None:
            return self._not_initialised(replica)
        if bound is not NO_BOUND and (wanted := bound.read_version) is not None:
            named = self._named_version(replica, view, bound, wanted)
            if isinstance(named, Problem):
                return named
            view = named
        readings = replica.readings
        reading = readings.of(view, known_end)
        if bound is not NO_BOUND:
            reason = self._refusal(bound, replica, reading, known_end)
            if reason is not None:
                return refused(reason, candidates=[replica.origin.as_candidate(reading.lag, reason)])
        readings.answered += 1
        return reading

    def print_found(self, stored: bytes) -> bytes:
        """Print the members of an answer for a found value, with a comma at the end."""
        place = (self.section, stored)
        known = self.printed.find(place)
        if isinstance(known, bytes):
            return known
        printed = self.store.print_found(stored[len(self.row_prefix) :])
        self.printed.keep(place, printed)
        return printed

    def _named_version(
        self, replica: TaskReplica, shown: TaskView, bound: Bound, wanted: ReadVersion
    ) -> TaskView | Problem:
        """Return the version that a reader names, or why it cannot be read now: an older one is opened first."""
        cursor, snapshot = bound.selection.cursor, bound.snapshot
        if cursor is not None:
            try:
                cursor.require_of(self.store.name, self.lineage)
            except UnderstudyError as error:
                return problem_of(error)
        elif snapshot is not None and snapshot.lineage != self.lineage:
            return refused(Refusal.LINEAGE_CHANGED, candidates=[])
        view = replica.view_at(wanted)
        if view is not None:
            return view
        if replica.progress.was_taken_back(wanted.number, wanted.committed_at_us):
            return self._unread(replica, bound, Refusal.LINEAGE_CHANGED)
        if wanted.number > shown.version:
            return self._unread(replica, bound, Refusal.VERSION_NOT_YET)
        unread = replica.open_past(wanted)
        if unread.error is not None:
            return problem_of(unread.error)
        if unread.refusal is None:
            detail = "too many older versions are being opened"
            return Problem(ProblemType.OVERLOADED, detail, where=str(replica.task), fix="Retry after a second")
        return self._unread(replica, bound, unread.refusal, retained=unread.retained)

    def _unread(
        self, replica: TaskReplica, bound: Bound, refusal: Refusal, *, retained: RetainedVersions | None = None
    ) -> Problem:
        if refusal is Refusal.LINEAGE_CHANGED and bound.snapshot is None:
            refusal = Refusal.VERSION_GONE  # the reader sent a cursor, or a number: no position to drop
        if refusal is Refusal.VERSION_GONE:
            return replica.origin.as_gone(retained)
        return refused(refusal, candidates=[replica.origin.as_candidate(None, refusal)])

    def _refusal(self, bound: Bound, replica: TaskReplica, reading: Reading, known_end: int) -> Refusal | None:
        position = bound.min_position
        if position is not None and (position.application_id, position.lineage) != (self.application_id, self.lineage):
            return Refusal.LINEAGE_CHANGED
        if position is not None and replica.progress.was_taken_back(position.version, position.committed_at_us):
            return Refusal.LINEAGE_CHANGED
        return refusal(
            bound,
            lag=reading.lag,
            role=replica.role,
            version=reading.view.version,
            position_committed_at_us=None if position is None else replica.progress.committed_at_us(position.version),
            known_end=known_end,
        )

    def _not_owner(self, partition: int) -> Problem:
        held = ", ".join(map(str, sorted(self.replicas))) or "none"
        return Problem(
            ProblemType.NOT_OWNER,
            f"the key belongs to partition {partition} of {self.store.name}, which this node does not hold",
            where=f"partitions held: {held}",
            fix="Ask a router, or the host that its metadata call names",
        )

    def _not_initialised(self, replica: TaskReplica) -> Problem:
        if replica.state is ReplicaState.CLOSED:  # The replica left after the generation was read.
            return self._not_owner(replica.task.partition)
        error = replica.error
        if error is not None:
            return Problem(ProblemType.STORE_ERROR, error.what, error.where, error.fix)
        return Problem(
            ProblemType.NOT_INITIALISED,
            f"partition {replica.task.partition} of {self.store.name} is being restored",
            where=str(replica.task),
            fix="Retry when /readyz says so",
            extra={"candidates": [replica.origin.as_candidate(None, "not-initialised")]},
        )


_NUMBERS = (FloatType, DoubleType)


def as_pandas_keeps(codec: KeyCodec, encoded: bytes) -> Iterator[tuple[bytes, Row]]:
    """Yield the other keys that `transformWithStateInPandas` may use for a key with nulls: encoded, and as rows.

    Spark hashes the null, so the key is in null's partition, but the store gets what pandas has instead: NaN for a
    number, and from pandas 3 on the text "NaN" for a string.
    """
    row = codec.decode(encoded)
    grouping = list(zip(codec.key.fields[: codec.num_hash_columns], row, strict=False))
    nulls = {type(field.type) for field, value in grouping if value is None}
    if nulls.intersection(_NUMBERS):
        yield _replaced(codec, row, is_text_too=False)
    if StringType in nulls:
        yield _replaced(codec, row, is_text_too=True)


def _replaced(codec: KeyCodec, row: Row, *, is_text_too: bool) -> tuple[bytes, Row]:
    values = list(row)
    for at, field in enumerate(codec.key.fields[: codec.num_hash_columns]):
        if values[at] is None and isinstance(field.type, _NUMBERS):
            values[at] = math.nan
        elif values[at] is None and is_text_too and isinstance(field.type, StringType):
            values[at] = "NaN"
    return codec.encode(tuple(values)), tuple(values)


@dataclass(frozen=True, slots=True)
class FindingReader(StoreReader):
    """A reader of a store that answers with its `finder`."""

    finder: Finder
    keys_at_once: ClassVar[int] = 10
    """Number of keys between two turns of the loop: a key may have a thousand elements."""

    def look_up(self, key: ResolvedKey, bound: Bound) -> LookupAnswer | Problem:
        reading = self.read_from(key.partition, bound)
        if isinstance(reading, Problem):
            return reading
        found = self._find(key.stored, reading.view, key.partition, bound.selection)
        said = NOT_FOUND if found is None else found.members
        body = b'{"store":%b,"key":%b,%b%b' % (self.json_name, key.json, said, reading.tail)
        return LookupAnswer(404 if found is None or found.is_hidden else 200, body)

    def key_row(self, kept: bytes) -> bytes:
        return self.finder.key_row(kept)

    def first_bytes(self, view: TaskView) -> bytes | None:
        return self.finder.first_bytes(view)

    def own_bytes(self, kept: bytes) -> bytes:
        return self.finder.own_bytes(kept)

    def start_bytes(self, start: bytes, row_bytes: int | None) -> bytes | None:
        return self.finder.start_bytes(start, row_bytes)

    def find_many(
        self, rows: Sequence[bytes], reading: Reading, partition: int, selection: Selection = EVERYTHING
    ) -> list[Said]:
        view, prefix = reading.view, self.row_prefix
        said: list[Said] = []
        for row in rows:
            try:
                found = self._find(prefix + row, view, partition, selection)
            except UnderstudyError as error:
                said.append(problem_of(error))
                continue
            said.append(None if found is None else Hidden(found.members) if found.is_hidden else found.members)
        return said

    def _find_null(self, stored: bytes, view: TaskView, partition: int, selection: Selection) -> FoundMembers | None:
        """Look up a key with nulls under the key that pandas made of it, in the partition of the null."""
        codec, prefix = self.store.codec, self.row_prefix
        for encoded, row in as_pandas_keeps(codec, stored[len(prefix) :]):
            found = self.finder.find(view, prefix + encoded, selection)
            if found is not None and codec.partition(row, self.partitions) in {partition, ANY_PARTITION}:
                raise UnderstudyError(
                    "this key has a null, and the key with NaN in its place may be in the same partition: pandas keeps"
                    " both under NaN, and which of them this is cannot be told",
                    where=f"{self.store.name}, partition {partition}",
                    fix='Ask for the key with "NaN" in place of the null, or let the query replace nulls in its keys',
                )
            if found is not None:
                return found
        return None

    def _find(self, stored: bytes, view: TaskView, partition: int, selection: Selection) -> FoundMembers | None:
        """Find a key, or the page of it that its cursor names."""
        if selection.cursor is not None:
            selection.cursor.require_key(stored[len(self.row_prefix) :])
            # After the first page, a partition that lacks the key looks like one where the key's elements have ended.
            is_lacking = self.store.codec.is_scattered and self.finder.find(view, stored, _FIRST) is None
            if is_lacking:
                return None
            selection = replace(selection, place=OWN_PLACES.of(selection.cursor))
        found = self.finder.find(view, stored, selection)
        if found is None and self.store.operator_name in BY_PANDAS:
            found = self._find_null(stored, view, partition, selection)
        if found is None or not found.is_page:
            return found
        if found.next is None:
            return found._replace(members=found.members + b'"next_cursor":null,')
        replica = self.replicas.get(partition)
        if replica is not None:  # Otherwise it has just left, and the next page is refused.
            replica.pin(view)
        digest = key_digest(stored[len(self.row_prefix) :])
        cursor = PageCursor(self.store.name, self.lineage, digest, view.version, view.committed_at_us, found.next)
        cursor = OWN_PLACES.put(cursor, found.place, beside=selection.cursor)
        return found._replace(members=found.members + b'"next_cursor":"%b",' % cursor.encode().encode())


_FIRST = Selection(limit=1)


def store_readers(
    description: CheckpointDescription,
    aliases: Mapping[str, StoreAlias],
    *,
    application_id: ApplicationId,
    row_prefix: bytes,
    max_key_bytes: int,
    replicas: Mapping[int, Mapping[int, TaskReplica]],
    rows: RowCache,
) -> dict[StoreName, StoreReader]:
    """Make the readers of all stores. `replicas` are each operator's, by partition; `rows` caches printed rows.
    `row_prefix` is what the provider puts before a row.
    """
    partitions = {operator.operator_id: operator.partitions for operator in description.operators}
    readers: dict[StoreName, StoreReader] = {}
    for name, store in served_stores(description, aliases).items():
        fields: dict[str, Any] = {
            "store": store,
            "application_id": application_id,
            "lineage": description.query_id,
            "partitions": partitions[store.operator_id],
            "replicas": replicas.get(store.operator_id, {}),
            "row_prefix": row_prefix,
            "json_name": orjson.dumps(store.name),
            "layout": store.codec.layout(partitions[store.operator_id]),
            "max_key_bytes": max_key_bytes,
            "printed": rows,
            "section": rows.new_section(),
        }
        if store.make_finder is None:
            readers[name] = StoreReader(**fields)
        else:
            readers[name] = FindingReader(**fields, finder=store.make_finder(row_prefix))
    return readers
