"""The rows of a scan: which keys a question wants, in which order, and how a row is printed (pure, but for the pin of a
long key). A row is what a lookup of its key says. What decides is read as cheaply as it can be: the key alone where
that is enough, else the printed members of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple, cast

import orjson

from understudy_node.engine.scans import after_prefix
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.lookup import FindingReader, Hidden, Said, StoreReader
from understudy_node.stores.stores import ServedStore
from understudy_shared.base.errors import CorruptFileError, UnderstudyError
from understudy_shared.base.words import StoreKind
from understudy_shared.http.lookup_requests import numbers_as_text
from understudy_shared.http.problems import Problem, ProblemType, problem_of
from understudy_shared.questions.scan.hop import MAX_ROW_BYTES
from understudy_shared.questions.scan.page import Access
from understudy_shared.questions.scan.question import ScanQuestion
from understudy_shared.questions.scan.requests import KeyPrefix, parse_prefix, row_columns
from understudy_shared.questions.scan.where import OrderBytes, Term, compile_order, compile_range, compile_where
from understudy_shared.reads.bounds import EVERYTHING, BadBoundError, Selection
from understudy_shared.reads.columns import Columns, StoreColumn, walk, walk_row
from understudy_shared.spark.json_values import compile_json_parser, is_scalar
from understudy_shared.spark.key_codec import Row, is_window
from understudy_shared.spark.types import Field, StructType

PASSED_BEFORE_SEEK: Final = 16
"""Number of records of one key that are passed over before the next key is sought: a seek costs more than that."""


class ScannedKey(NamedTuple):
    """A key of a store, by its first record. `own`: the bytes with which its records' keys begin, and no other's."""

    own: bytes
    kept: bytes
    value: bytes


def keys_after(
    reader: StoreReader, view: TaskView, after: bytes | None, starts: Sequence[bytes] = (b"",)
) -> Iterator[ScannedKey]:
    """Return the keys of a partition after `after`, the own bytes of a key; None: from the first on.

    `starts`, in order, are the beginnings of the wanted keys, without the store's first bytes. No key is the beginning
    of another, because its slots determine its size. So all records that begin with a key's own bytes belong to it.
    """
    first = reader.first_bytes(view)
    wanted = [] if first is None else [first + each for each in starts]
    return chain.from_iterable(_keys_of(reader, view, after, each) for each in wanted)


def key_of(reader: StoreReader, view: TaskView, own: bytes) -> ScannedKey:
    """Return the key with these own bytes. It must exist."""
    return next(_keys_of(reader, view, None, own))


def _keys_of(reader: StoreReader, view: TaskView, after: bytes | None, first: bytes) -> Iterator[ScannedKey]:
    """Yield the keys that begin with `first`, and are after `after`."""
    records, end = view.stores[reader.store.store_name], after_prefix(first)
    own_bytes = reader.own_bytes if isinstance(reader, FindingReader) else None
    start: bytes | None = first
    if after is not None:
        if end is not None and after >= end:
            return
        start = after_prefix(after)
        if start is None:  # no key is after it: the only key of a store has no columns, and may have no bytes
            return
        start = max(first, start)
    while start is not None:
        own: bytes | None = None
        passed = 0
        for kept, value in records.scan(start, end):
            if own is not None and kept.startswith(own):
                passed += 1
                if passed > PASSED_BEFORE_SEEK:
                    break
                continue
            own, passed = kept if own_bytes is None else own_bytes(kept), 0
            yield ScannedKey(own, kept, value)
        else:
            return
        start = after_prefix(own) if own is not None else None


KEY: Final = "key"
"""The order by all key columns."""

Parse = Callable[[object], object]


class RowOrder(NamedTuple):
    """An order. A rank is the bytes of the columns, then those with which the key is stored: no two rows have the same.

    Two partitions of a scattered store may have the same key. With `ends_with_partition` a rank ends with the
    partition, so that a page can end between the two rows.

    `of_key` by columns of the key, else `of_member` by a column of the printed value or result. `parse` is
    the parser of its printed values.
    """

    of_key: tuple[tuple[StoreColumn, OrderBytes], ...]
    of_member: tuple[StoreColumn, OrderBytes, Parse] | None
    is_reversed: bool
    ends_with_partition: bool = False

    def key_bytes(self, row: Row) -> bytes | None:
        """Return the bytes by which a key is ordered; None where it is ordered by something else."""
        if self.of_member is not None:
            return None
        return b"".join([order(walk_row(row, column.indexes)) for column, order in self.of_key])

    def member_bytes(self, printed: Mapping[str, Any]) -> bytes:
        """Return the bytes by which the printed members of a row are ordered. A row that cannot be read has none of
        them, and is ordered as null.
        """
        assert self.of_member is not None, "used only where a member orders"
        column, order, parse = self.of_member
        value = walk(printed.get(column.part) or {}, column.path)
        return order(None if value is None else parse(value))


def row_order(
    name: str,
    columns: Columns,
    key_columns: tuple[StoreColumn, ...],
    parser: Callable[[StoreColumn], Parse],
    *,
    is_reversed: bool,
) -> RowOrder:
    """Compile an order by its name. Raises BadBoundError that names the column."""
    wanted = key_columns if name == KEY and not columns.has(KEY) else (columns.find(name, "order"),)
    orders = [compile_order(column.type) for column in wanted]
    known = [(column, order) for column, order in zip(wanted, orders, strict=True) if order is not None]
    if len(known) < len(wanted):
        unfit = next(column for column, order in zip(wanted, orders, strict=True) if order is None)
        raise BadBoundError(f"values of {unfit} have no order here", where="order", fix="Order by another column")
    members = [(column, order, parser(column)) for column, order in known if column.part != "key"]
    return RowOrder(() if members else tuple(known), members[0] if members else None, is_reversed)


_FOUND: Final = b'"found":true,'
"""The first member of every found key, which a row leaves out."""

_SHOWN: Final = ("key", "value", "result", "sessions", "rows", "values", "entries")
"""Members whose whole numbers are printed as texts for readers who ask for that."""


@dataclass(frozen=True, slots=True)
class RowMaker:
    """The maker of the rows of one question from one store."""

    reader: StoreReader
    prefix: KeyPrefix | None
    of_key: tuple[Term, ...]
    of_members: tuple[tuple[Term, Parse], ...]
    """Comparisons of value and result columns, each with the parser of its printed values."""
    fields: Mapping[str, frozenset[str]] | None
    selection: Selection
    longs_as_text: bool
    only_counts: bool
    starts: tuple[bytes, ...] | None = None
    """The bytes with which the wanted keys begin, where a prefix of some columns is sought."""
    order: RowOrder | None = None

    @property
    def is_filtered(self) -> bool:
        return self.prefix is not None or bool(self.of_key or self.of_members)

    @property
    def counts_records(self) -> bool:
        """Whether it counts all keys of a store in which each key is one record."""
        is_plain = self.reader.store.make_finder is None
        return self.only_counts and is_plain and not self.is_filtered and self.selection.include_expired

    @property
    def access(self) -> Access:
        """The way in which a partition is read for it."""
        return "seek" if self.starts is not None or self.is_sought else "filtered-pass" if self.is_filtered else "pass"

    @property
    def is_sought(self) -> bool:
        """Whether it asks for one key, which is looked up."""
        return self.prefix is not None and self.prefix.whole is not None

    def row(self, key: ScannedKey, reading: Reading, partition: int) -> bytes | None:
        """Return the row of a key, empty where rows are only counted; None for a key that is left out."""
        reader = self.reader
        if self.only_counts and not self.is_filtered and self.selection.include_expired:
            return b""
        finds = isinstance(reader, FindingReader)
        key_row = reader.key_row(key.kept) if finds else key.kept[len(reader.row_prefix) :]
        if (self.prefix is not None or self.of_key) and not self.has_key(reader.store.codec.decode(key_row)):
            return None
        if self.only_counts and not self.of_members and self.selection.include_expired:
            return b""
        said = self._said(key, key_row, reading, partition) if finds else said_of_record(reader, key.value)
        return self._row_of(key_row, said)

    def ranked(
        self, key: ScannedKey, reading: Reading, partition: int, is_wanted: Callable[[bytes], bool]
    ) -> bytes | None:
        """Return the rank of a key; None for one that is left out, or whose rank is not wanted. What decides is read as
        cheaply as it can be.
        """
        assert self.order is not None, "used only for ordered rows"
        key_row = self.reader.key_row(key.kept)
        row = self.reader.store.codec.decode(key_row)
        by_key = self.order.key_bytes(row)
        ending = key.own + partition.to_bytes(4) if self.order.ends_with_partition else key.own
        rank = None if by_key is None else by_key + ending
        if not self.has_key(row) or (rank is not None and not is_wanted(rank)):
            return None
        if rank is not None and not self.of_members and self.selection.include_expired:
            return rank
        said = self._said(key, key_row, reading, partition)
        if isinstance(said, Hidden):
            return None
        printed: Mapping[str, Any] = {}
        if not isinstance(said, Problem):
            printed = orjson.loads(b"{%b}" % cast(bytes, said)[len(_FOUND) : -1])
            if not self._matches(printed):
                return None
        rank = self.order.member_bytes(printed) + ending if rank is None else rank
        return rank if is_wanted(rank) else None

    def found(self, key_row: bytes, said: Said) -> bytes | None:
        """Return the row of a key that was looked up."""
        if said is None or (self.of_key and not self.has_key(self.reader.store.codec.decode(key_row))):
            return None
        return self._row_of(key_row, said)

    def has_key(self, row: Row) -> bool:
        """Whether a key is wanted, by its own columns."""
        if self.prefix is not None and not self.prefix.matches(row):
            return False
        return all(term.matches(walk_row(row, term.column.indexes)) for term in self.of_key)

    def _said(self, key: ScannedKey, key_row: bytes, reading: Reading, partition: int) -> Said:
        reader = self.reader
        if not isinstance(reader, FindingReader):
            return said_of_record(reader, key.value)
        (said,) = reader.find_many([key_row], reading, partition, self.selection)
        if said is None:
            raise CorruptFileError("a key is stored, and a lookup does not find it", where=f"store {reader.store.name}")
        return said

    def _row_of(self, key_row: bytes, said: Said) -> bytes | None:
        if isinstance(said, Hidden):
            return None
        if isinstance(said, Problem):
            members = orjson.dumps({"problem": _told(said)})[1:-1]  # whether it matches cannot be told
        else:
            assert said is not None, "the key is there"
            members = said[len(_FOUND) : -1]
            if self.of_members or self.fields is not None:
                printed = orjson.loads(b"{%b}" % members)
                if not self._matches(printed):
                    return None
                members = self._chosen(printed) if self.fields is not None else members
        if self.only_counts:
            return b""
        key_json = orjson.dumps(self.reader.store.codec.to_json(key_row))
        row = b'{"key":%b%b%b}' % (key_json, b"," if members else b"", members)
        if len(row) > MAX_ROW_BYTES:
            row = b'{"key":%b,"problem":%b}' % (key_json, _TOO_LARGE)
        return longs_as_text(row) if self.longs_as_text else row

    def _matches(self, printed: Mapping[str, Any]) -> bool:
        for term, parse in self.of_members:
            part = printed.get(term.column.part) or {}
            value = walk(part, term.column.path)
            if not term.matches(None if value is None else parse(value)):
                return False
        return True

    def _chosen(self, printed: Mapping[str, Any]) -> bytes:
        fields, shown = self.fields or {}, {}
        for member, content in printed.items():
            if member not in ("value", "result"):
                shown[member] = content
            elif member in fields:
                shown[member] = {name: each for name, each in content.items() if name in fields[member]}
        return orjson.dumps(shown)[1:-1]


def said_of_record(reader: StoreReader, value: bytes) -> Said:
    """Print a stored value as row members, in a store that prints what is stored. It bypasses the cache of
    printed rows: a scan would fill it with rows that no lookup needs.
    """
    try:
        return reader.store.print_found(value[len(reader.row_prefix) :])
    except UnderstudyError as error:
        return problem_of(error)


def row_maker(
    reader: StoreReader,
    question: ScanQuestion,
    selection: Selection = EVERYTHING,
    *,
    longs_as_text: bool = False,
    prefix: KeyPrefix | None = None,
) -> RowMaker:
    """Compile a question for a store. `selection` is for the elements of each key, `prefix` that of the question where
    it was parsed before.

    Raises BadBoundError that names the member, and the column, at fault.
    """
    store = reader.store
    if prefix is None and question.prefix:
        prefix = parse_prefix(store.codec, question.prefix, reader.partitions)
    starts, only_counts = _starts(reader, prefix), question.operation == "count"
    if not question.names_columns:  # to compile the columns takes longer than a seek
        return RowMaker(reader, prefix, (), (), None, selection, longs_as_text, only_counts, starts)
    columns, keys = _columns(store)
    terms = compile_where(question.where, columns)
    if question.has_range and store.kind is StoreKind.TIMERS:
        raise BadBoundError("an export takes no range of timers", where="from", fix="Scan them, which is a seek")
    if question.has_range:
        terms = (*terms, *compile_range(_ranged(keys), question.low, question.high))
    return RowMaker(
        reader,
        prefix,
        tuple(each for each in terms if each.column.part == "key"),
        tuple((each, _printed_parser(each.column)) for each in terms if each.column.part != "key"),
        None if question.fields is None else columns.by_part(question.fields),
        selection,
        longs_as_text,
        only_counts,
        starts,
        None
        if question.order is None
        else row_order(question.order, columns, keys, _printed_parser, is_reversed=question.reverse)._replace(
            ends_with_partition=store.codec.is_scattered
        ),
    )


def _columns(store: ServedStore) -> tuple[Columns, tuple[StoreColumn, ...]]:
    """Return the columns that questions about a store may name, those of a value only where a key has one; and those of
    the key.
    """
    codec = store.codec
    key = [(name, each.type) for name, each in zip(codec.names, codec.key.fields, strict=True)][: row_columns(codec)]
    keys = tuple(StoreColumn("key", (name,), (at,), each) for at, (name, each) in enumerate(key))
    if store.kind is not StoreKind.VALUE:
        return Columns(key), keys
    value = [(name, each.type) for name, each in zip(store.value_names, store.value_schema.fields, strict=True)]
    return Columns(key, value, store.result_types), keys


def _ranged(keys: Sequence[StoreColumn]) -> StoreColumn:
    """Return the column of a range: the first of the key, of a window its start."""
    if not keys:
        raise BadBoundError("the key of this store has no columns", where="from", fix="Leave out from and to")
    first = keys[0]
    if is_window(first.type):
        return StoreColumn(
            "key", (*first.path, "start"), (*first.indexes, 0), cast(StructType, first.type).fields[0].type
        )
    return first


def _starts(reader: StoreReader, prefix: KeyPrefix | None) -> tuple[bytes, ...] | None:
    """Return how the stored keys with a prefix begin; None where other keys lie between them."""
    rows = None if prefix is None else prefix.rows
    if rows is None:
        return None
    starts = [reader.start_bytes(start, rows.row_bytes) for start in rows.starts]
    return None if None in starts else tuple(sorted(cast("list[bytes]", starts)))


def _printed_parser(column: StoreColumn) -> Parse:
    """Return a parser of the printed values of a column."""
    if not is_scalar(column.type) and compile_order(column.type) is None:
        return lambda printed: printed  # a question can only ask whether it is null
    parse = compile_json_parser(StructType((Field("column", column.type),)))
    return lambda printed: parse([printed])[0]


def _told(problem: Problem) -> dict[str, object]:
    """Return the problem of a key that cannot be read, as a row shows it: without details. A lookup of the key has all
    of it, for readers who may see the key.
    """
    return {"type": problem.type.slug, "title": problem.type.title, "status": problem.status}


_TOO_LARGE: Final = orjson.dumps(_told(Problem(ProblemType.TOO_LARGE, "")))


def longs_as_text(row: bytes) -> bytes:
    printed = orjson.loads(row)
    return orjson.dumps({name: numbers_as_text(each) if name in _SHOWN else each for name, each in printed.items()})
