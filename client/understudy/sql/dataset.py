"""A store as a `pyarrow.dataset.Dataset`, which DuckDB hands columns and a filter. It imports pyarrow.

Of the interface DuckDB uses `schema`, `scanner(columns=, filter=)`, and of the scanner `projected_schema` and
`to_reader()`. Rows are read page by page as DuckDB takes them: pyarrow's own scanner reads ahead.

DuckDB does not reapply a filter that it pushed down to a source, so ours has to be exact. Filters for pyarrow are exact
except for numbers that may be NaN: to DuckDB (and Spark) NaN is the greatest number, to Arrow it compares with nothing.
Filters of such columns are rewritten.

A filter arrives as pyarrow writes it: as Substrait, a Protocol Buffers message. The few messages that filters use are
parsed here: the packages of Substrait would pin an older protobuf. An unknown part is `Unknown`, and nothing follows
from it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache, reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from understudy.sql.reads import Rows, StatementReads
from understudy.sql.tables import (
    Check,
    Combined,
    Comparison,
    Literal,
    Not,
    OneOf,
    Path,
    Predicate,
    Table,
    Unknown,
    UnreadFilterError,
    narrowed,
)
from understudy.sql.tables import paths as paths_of
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.questions.export.columns import METADATA, ArrowBatches, ExportColumns, arrow_schema

_COMPARE = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


Message = Mapping[int, list[Any]]
"""The fields of a message by their numbers: an int, or the bytes of what is longer than eight."""

MAX_DEPTH: Final = 100

_OPS: Final = {"equal": "=", "not_equal": "!=", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_MIRRORED: Final = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TESTS: Final = {"is_null": "is_null", "is_not_null": "not_null", "is_nan": "is_nan"}

_EXTENSIONS, _REFERRED = 2, 3
_LITERAL, _SELECTION, _FUNCTION, _IF_THEN, _ONE_OF = 1, 2, 3, 6, 8


def read_filter(data: bytes) -> Predicate:
    """Read a filter: an ExtendedExpression with one expression. Raises UnreadFilterError for other messages."""
    try:
        message = fields(data)
        (referred,) = message[_REFERRED]
        return _Reader(_functions(message)).predicate(fields(fields(referred)[1][0]), 0)
    except (LookupError, ValueError, TypeError, struct.error) as error:
        raise UnreadFilterError(f"DuckDB sent a filter that cannot be read: {error!r}") from None


def fields(data: bytes) -> Message:
    """Read the fields of a message. Raises ValueError."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
                found.setdefault(tag >> 3, []).append(value)
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(data, at)
            case 5:
                size = 4
            case kind:
                raise ValueError(f"a field has the kind {kind}")
        if at + size > len(data):
            raise ValueError("a message is cut")
        found.setdefault(tag >> 3, []).append(data[at : at + size])
        at += size
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
    raise ValueError("a number has more than ten bytes")


def _functions(message: Message) -> Mapping[int, str]:
    """Return the names of functions by their anchors."""
    said = [fields(fields(each)[3][0]) for each in message.get(_EXTENSIONS, ())]
    return {_first(each, 2, 0): each[3][0].decode().partition(":")[0] for each in said}


class _Reader:
    """A reader of expressions, which name functions by numbers."""

    def __init__(self, functions: Mapping[int, str]) -> None:
        self._functions = functions

    def predicate(self, expression: Message, depth: int) -> Predicate:
        """Read an expression that is true, false or null."""
        if depth > MAX_DEPTH:
            return Unknown("an expression that is nested too deeply")
        if _FUNCTION in expression:
            return self._call(fields(expression[_FUNCTION][0]), depth)
        if _ONE_OF in expression:
            return _one_of(fields(expression[_ONE_OF][0]))
        if _IF_THEN in expression:
            return self._null_or(fields(expression[_IF_THEN][0]), depth)
        return Unknown(f"an expression of the kind {sorted(expression)}")

    def _call(self, call: Message, depth: int) -> Predicate:
        name = self._functions[_first(call, 1, 0)]
        arguments = [fields(fields(each)[3][0]) for each in call.get(4, ())]
        if name in ("and", "or"):
            return Combined(name, tuple(self.predicate(each, depth + 1) for each in arguments))
        if name == "not" and len(arguments) == 1:
            return Not(self.predicate(arguments[0], depth + 1))
        if name in _TESTS and len(arguments) == 1:
            path = _path(arguments[0])
            return Unknown(name) if path is None else Check(path, _TESTS[name])
        if name in _OPS and len(arguments) == 2:
            return _comparison(_OPS[name], *arguments)
        return Unknown(f"the function {name}")

    def _null_or(self, choice: Message, depth: int) -> Predicate:
        """Read `if_else(is_valid(column), column in (...), null)`."""
        (clause,) = choice[1]
        condition, then = (fields(fields(clause)[number][0]) for number in (1, 2))
        test, found = self.predicate(condition, depth + 1), self.predicate(then, depth + 1)
        otherwise = fields(choice[2][0])
        is_null = _LITERAL in otherwise and 29 in fields(otherwise[_LITERAL][0])
        if is_null and isinstance(found, OneOf) and test == Check(found.path, "not_null"):
            return OneOf(found.path, found.literals, keeps_null=True)
        return Unknown("a choice")


def _comparison(op: str, left: Message, right: Message) -> Predicate:
    path, other = _path(left), right
    if path is None:
        path, other, op = _path(right), left, _MIRRORED[op]
    literal = _literal(other)
    return (
        Unknown("a comparison of other than a column and a constant")
        if path is None or literal is None
        else (Comparison(path, op, literal))
    )


def _one_of(choice: Message) -> Predicate:
    path = _path(fields(choice[1][0]))
    literals = tuple(_literal(fields(each)) for each in choice.get(2, ()))
    if path is None or None in literals:
        return Unknown("a list of other than constants")
    return OneOf(path, literals, keeps_null=False)


def _path(expression: Message) -> Path | None:
    """Return the column that an expression is; None for other expressions."""
    if _SELECTION not in expression:
        return None
    reference = fields(expression[_SELECTION][0])
    path: list[int] = []
    segment = reference.get(1, [None])[0]
    while segment is not None:
        place = fields(fields(segment)[2][0])
        path.append(_first(place, 1, 0))
        segment = place.get(2, [None])[0]
    return tuple(path) or None


def _literal(expression: Message) -> Literal | None:
    """Return the constant that an expression is; None for null, and for other or unknown expressions."""
    if _LITERAL not in expression:
        return None
    for number, (value, *_) in fields(expression[_LITERAL][0]).items():
        read = _CONSTANTS.get(number)
        if read is not None:
            return read(value)
    return None


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _decimal(data: bytes) -> Decimal:
    message = fields(data)
    unscaled = int.from_bytes(message[1][0], "little", signed=True)
    return Decimal(f"{unscaled}E-{_first(message, 3, 0)}")


def _moment(data: bytes) -> int | None:
    message = fields(data)
    return _signed(_first(message, 2, 0)) if _first(message, 1, 0) == 6 else None


_CONSTANTS: Final[Mapping[int, Callable[[Any], Literal | None]]] = {
    1: bool,
    **dict.fromkeys((2, 3, 5, 7, 14, 16, 17, 27), _signed),  # integers, timestamp, date, time, timestamp_tz
    10: lambda data: struct.unpack("<f", data)[0],
    11: lambda data: struct.unpack("<d", data)[0],
    12: bytes.decode,
    13: bytes,
    24: _decimal,
    34: _moment,
    35: _moment,
}


def _first(message: Message, number: int, default: int) -> int:
    found: int = message.get(number, [default])[0]
    return found


class Filter:
    """A filter of a table: as a tree, if it is understood, and as the expression to apply."""

    def __init__(self, given: pc.Expression, schema: pa.Schema) -> None:
        """Read what DuckDB sent. Raises UnreadFilterError for a filter that cannot be applied exactly."""
        readable = pa.schema([each for each in schema if _has_substrait(each.type)])
        self.names: list[str] = readable.names
        self.predicate: Predicate
        self.columns: list[str]
        try:
            self.predicate = read_filter(bytes(given.to_substrait(readable)))
            paths = paths_of(self.predicate)
        except (pa.ArrowException, UnreadFilterError) as error:
            if any(_has_floats(each.type) for each in schema):
                raise UnreadFilterError(f"a filter cannot be applied exactly: {error}") from None
            self.predicate, self.columns, self.expression = Unknown("a filter"), schema.names, given
            return
        self.columns = sorted({self.names[path[0]] for path in paths})
        has_floats = any(pa.types.is_floating(_leaf(readable, path)[1]) for path in paths)
        self.expression = _rewritten(self.predicate, readable) if has_floats else given


@cache
def _has_substrait(arrow_type: pa.DataType) -> bool:
    """Whether Substrait has a name for a type: a schema with another one cannot be written."""
    try:
        pc.field("x").is_valid().to_substrait(pa.schema([("x", arrow_type)]))
    except pa.ArrowException:
        return False
    return True


def _has_floats(arrow_type: pa.DataType) -> bool:
    if pa.types.is_struct(arrow_type):
        return any(_has_floats(each.type) for each in arrow_type)
    return bool(pa.types.is_floating(arrow_type))


def _leaf(schema: pa.Schema, path: Path) -> tuple[tuple[str, ...], pa.DataType]:
    """Return the names of a column, or of a field of one, and its type."""
    field = schema.field(path[0])
    names = [field.name]
    for index in path[1:]:
        field = field.type.field(index)
        names.append(field.name)
    return tuple(names), field.type


def _rewritten(predicate: Predicate, schema: pa.Schema) -> pc.Expression:
    """Return a filter as an expression where NaN is the greatest number, and equal to itself."""
    match predicate:
        case Combined(op, parts):
            return reduce(and_ if op == "and" else or_, [_rewritten(each, schema) for each in parts])
        case Not(of):
            return ~_rewritten(of, schema)
        case Comparison(path, op, literal):
            return _compared(*_leaf(schema, path), op, literal)
        case OneOf(path, literals, keeps_null):
            names, arrow_type = _leaf(schema, path)
            field = pc.field(*names)
            found = reduce(or_, [_compared(names, arrow_type, "=", each) for each in literals])
            return found if keeps_null else pc.if_else(field.is_valid(), found, pa.scalar(False))
        case Check(path, what):
            field = pc.field(*_leaf(schema, path)[0])
            tests = {"is_null": field.is_null, "not_null": field.is_valid, "is_nan": lambda: pc.is_nan(field)}
            return tests[what]()
        case Unknown(what):
            raise UnreadFilterError(f"a filter cannot be applied exactly: {what}")


def _compared(names: tuple[str, ...], arrow_type: pa.DataType, op: str, literal: Any) -> pc.Expression:
    """Return a comparison; null where the column is null."""
    field = pc.field(*names)
    if not pa.types.is_floating(arrow_type):
        return _COMPARE[op](field, pa.scalar(literal, arrow_type))
    if literal != literal:  # noqa: PLR0124
        raise UnreadFilterError("a filter cannot be applied exactly: a comparison with NaN")
    compared = _COMPARE[op](field, pa.scalar(literal, arrow_type))
    return compared | pc.is_nan(field) if op in (">", ">=") else compared


class StoreDataset(ds.Dataset):  # type: ignore[misc]
    """A table for one statement; its rows come from the statement's reads."""

    def __init__(self, table: Table, reads: StatementReads) -> None:
        self._table, self._reads = table, reads
        self._schema = _schema(table, table.of(table.column_names()))
        self.open: list[Iterator[pa.RecordBatch]] = []
        """The batches of each scan: what DuckDB does not read to the end is closed with the statement."""

        self.unread: UnderstudyError | None = None
        """The reason why a filter was not taken."""

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: object) -> DatasetScan:  # noqa: A002
        """Return a scan of these columns, and of the rows that the filter matches."""
        wanted = self._schema.names if columns is None else list(columns)
        try:
            found = None if filter is None else Filter(filter, self._schema)
        except UnderstudyError as error:
            self.unread = error
            raise
        batches = self._batches(wanted, found)
        self.open.append(batches)
        return DatasetScan(pa.schema([self._schema.field(each) for each in wanted]), batches)

    def _batches(self, wanted: Sequence[str], found: Filter | None) -> Iterator[pa.RecordBatch]:
        columns = self._table.of([*wanted, *(found.columns if found else ())])
        access = narrowed(found.predicate if found else None, self._table, found.names if found else ())
        batches = ArrowBatches(columns, _schema(self._table, columns))
        for rows in self._reads.pages(self._table, access, self._table.fields(columns)):
            batch = _batch(batches, rows) if isinstance(rows, Sequence) else _placed(rows, columns, batches.schema)
            yield (batch if found is None else _filtered(batch, found.expression)).select(wanted)


class DatasetScan:
    """A scan that DuckDB reads."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.projected_schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches)


def _schema(table: Table, columns: ExportColumns) -> pa.Schema:
    return arrow_schema(columns, {"store": table.store})


def _batch(batches: ArrowBatches, rows: Rows) -> pa.RecordBatch:
    steps = batches.steps(rows)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def _placed(batch: pa.RecordBatch, columns: ExportColumns, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a batch of an export, which nests them in key, value and result if names collide."""
    is_flat = orjson.loads(batch.schema.metadata[METADATA])["is_flat"]

    def found(path: Sequence[str]) -> pa.Array:
        if is_flat or len(path) == 1:
            return batch.column(path[-1])
        return batch.column(path[0]).field(path[1])

    return pa.record_batch([found(each.path) for each in columns.columns], schema=schema)


def _filtered(batch: pa.RecordBatch, expression: pc.Expression) -> pa.RecordBatch:
    return batch.filter(expression)
