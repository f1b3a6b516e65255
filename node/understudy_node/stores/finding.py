"""The reader of stores whose answers are found by a `Finder`; a `StoreReader` just prints stored rows.

Null keys of `transformWithStateInPandas`, as pandas hands them to Spark's store (pure).

Spark hashes the null, so the key is in null's partition, but the store gets what pandas has in its place: NaN for a
number, and from pandas 3 on the text "NaN" for a string.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import orjson

from understudy_node.checkpoint.state_variables import BY_PANDAS
from understudy_node.engine.base import RowCache
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task import TaskReplica
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.finder import Finder, Found
from understudy_node.stores.lookup import Hidden, LookupAnswer, ResolvedKey, Said, StoreReader
from understudy_node.stores.page_cursors import OWN_PLACES
from understudy_node.stores.stores import ServedStore
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.problems import Problem, problem_of
from understudy_shared.questions.lookup.batches import NOT_FOUND
from understudy_shared.reads.bounds import EVERYTHING, Bound, Selection
from understudy_shared.reads.tokens import PageCursor, key_digest
from understudy_shared.spark.key_codec import ANY_PARTITION, KeyCodec, Row
from understudy_shared.spark.types import DoubleType, FloatType, StringType

_NUMBERS = (FloatType, DoubleType)


def as_pandas_keeps(codec: KeyCodec, encoded: bytes) -> Iterator[tuple[bytes, Row]]:
    """Yield the other keys under which a key with nulls may be stored: encoded, and as rows."""
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

    def _find_null(self, stored: bytes, view: TaskView, partition: int, selection: Selection) -> Found | None:
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

    def _find(self, stored: bytes, view: TaskView, partition: int, selection: Selection) -> Found | None:
        """Find a key, or the page of it that its cursor names."""
        if selection.cursor is not None:
            selection.cursor.require_key(stored[len(self.row_prefix) :])
            # Behind its first page a key without elements looks like one at its end, in partitions that lack it, too.
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
        if replica is not None:  # Otherwise it has just left, and refuses the next reader.
            replica.pin(view)
        digest = key_digest(stored[len(self.row_prefix) :])
        cursor = PageCursor(self.store.name, self.lineage, digest, view.version, view.committed_at_us, found.next)
        cursor = OWN_PLACES.put(cursor, found.place, beside=selection.cursor)
        return found._replace(members=found.members + b'"next_cursor":"%b",' % cursor.encode().encode())


_FIRST = Selection(limit=1)


def store_reader(
    store: ServedStore,
    *,
    application_id: ApplicationId,
    lineage: Lineage,
    partitions: int,
    replicas: Mapping[int, TaskReplica],
    row_prefix: bytes,
    max_key_bytes: int,
    rows: RowCache,
) -> StoreReader:
    """Make the reader of a store, by the way in which it is read. `rows` caches printed rows."""
    fields: dict[str, Any] = {
        "store": store,
        "application_id": application_id,
        "lineage": lineage,
        "partitions": partitions,
        "replicas": replicas,
        "row_prefix": row_prefix,
        "json_name": orjson.dumps(store.name),
        "layout": store.codec.layout(partitions),
        "max_key_bytes": max_key_bytes,
        "printed": rows,
        "section": rows.new_section(),
    }
    if store.make_finder is None:
        return StoreReader(**fields)
    return FindingReader(**fields, finder=store.make_finder(row_prefix))
