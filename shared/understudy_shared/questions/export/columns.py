"""The columns of an export: the members of a scan's row as typed columns, and in Arrow. pyarrow is imported on first
use.

Columns of key, value and result are flat if their names differ, else nested by part. The elements of a key
(sessions, rows, values, entries, timers) are a list in one column, as in a scan.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from understudy_shared.base.words import StoreKind
from understudy_shared.reads.columns import walk
from understudy_shared.spark.arrow import Convert, arrow_type, converter
from understudy_shared.spark.types import (
    ArrayType,
    BooleanType,
    Field,
    SparkType,
    StringType,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    import pyarrow as pa

PROBLEM: Final = "problem"
"""The column that says, as JSON, why a key could not be read; null for all others."""

PARTS: Final = ("key", "value", "result")
Fields = Mapping[str, frozenset[str]]
"""The wanted value and result columns, by part."""

_GROUPS: Final = frozenset(("applyInPandasWithState", "flatMapGroupsWithState"))
_EXPIRY: Final = (Field("expires_at", TimestampType()), Field("expired", BooleanType()))
_NEXT: Final = Field("next_cursor", StringType())


@dataclass(frozen=True, slots=True)
class ExportColumn:
    """A column. `path` is its place in a row of a scan, `name` its name in a flat table."""

    name: str
    path: tuple[str, ...]
    type: SparkType


@dataclass(frozen=True, slots=True)
class ExportColumns:
    """The columns of an export. `is_flat`: no two columns of key, value and result have the same name."""

    columns: tuple[ExportColumn, ...]
    is_flat: bool

    def schema(self) -> StructType:
        """Return them as a struct: flat, or with a struct for each part."""
        if self.is_flat:
            return StructType(tuple(Field(each.name, each.type) for each in self.columns))
        parts = {part: [each for each in self.columns if each.path[0] == part] for part in PARTS}
        structs = [
            Field(part, StructType(tuple(Field(each.path[1], each.type) for each in columns)))
            for part, columns in parts.items()
            if columns
        ]
        others = [Field(each.name, each.type) for each in self.columns if each.path[0] not in PARTS]
        return StructType((*structs, *others))


@dataclass(frozen=True, slots=True)
class StoreColumns:
    """The names and types of a store's columns. They alone decide the form of its rows.

    `key` are the columns of a row's key, `user_key` the key columns of a map's entry. `moment` is the type of a
    session's start. `has_timeout`: groups have `timeout_at`. `has_ttl`: values may expire by the time of day.
    """

    kind: StoreKind
    operator: str
    key: tuple[Field, ...]
    user_key: tuple[Field, ...]
    value: tuple[Field, ...]
    result: tuple[Field, ...]
    moment: SparkType
    has_timeout: bool
    has_ttl: bool

    def columns(self, fields: Fields | None = None) -> ExportColumns:
        """Return the columns of an export. `fields` names the value and result columns; None: all."""
        key = [(("key", each.name), each.type) for each in self.key]
        of_parts = [*key, *(self._parts(fields) if self.kind is StoreKind.VALUE else ())]
        others = [((each.name,), each.type) for each in (*self._others(), Field(PROBLEM, StringType()))]
        found = [*of_parts, *others]
        is_flat = len({path[-1] for path, _ in found}) == len(found)
        return ExportColumns(
            tuple(ExportColumn(path[-1] if is_flat else ".".join(path), path, each) for path, each in found), is_flat
        )

    def _parts(self, fields: Fields | None) -> Iterator[tuple[tuple[str, ...], SparkType]]:
        for part, columns in (("value", self.value), ("result", self.result)):
            wanted = None if fields is None else fields.get(part, frozenset())
            yield from (((part, each.name), each.type) for each in columns if wanted is None or each.name in wanted)

    def _others(self) -> tuple[Field, ...]:
        said = [Field("value", StructType(self.value))]
        if self.result:
            said.append(Field("result", StructType(self.result)))
        match self.kind:
            case StoreKind.VALUE if self.operator in _GROUPS:
                return (Field("timeout_at", TimestampType()),) if self.has_timeout else ()
            case StoreKind.VALUE:
                return _EXPIRY if self.has_ttl else ()
            case StoreKind.SET:
                return _EXPIRY if self.operator == "dedupeWithinWatermark" else ()
            case StoreKind.SESSION:
                bounds = (Field("start", self.moment), Field("end", self.moment))
                return _listed("sessions", (*bounds, *said, _EXPIRY[1]))
            case StoreKind.JOIN_SIDE:
                return _listed("rows", (*said, Field("matched", BooleanType()), _EXPIRY[1]))
            case StoreKind.LIST:
                return _listed("values", (*said, *_EXPIRY))
            case StoreKind.MAP:
                return _listed("entries", (Field("key", StructType(self.user_key)), *said, *_EXPIRY))
            case StoreKind.TIMERS:
                return (Field("timers", ArrayType(TimestampType())), _NEXT)


def _listed(name: str, element: tuple[Field, ...]) -> tuple[Field, ...]:
    return (Field(name, ArrayType(StructType(element))), _NEXT)


METADATA: Final = b"understudy"
"""The key of our metadata. Its value is JSON: in a schema the version; in an empty batch a cursor, an end or an error.
"""


def arrow_schema(columns: ExportColumns, metadata: Mapping[str, object]) -> pa.Schema:
    """Return the schema of an export. `metadata` names the store and the version. It also says whether the table is
    flat, because a column of a flat table may have the name of a part.
    """
    import pyarrow as pa  # noqa: PLC0415

    found = [pa.field(each.name, arrow_type(each.type)) for each in columns.schema().fields]
    return pa.schema(found, {METADATA: orjson.dumps({**metadata, "is_flat": columns.is_flat})})


class ArrowBatches:
    """A converter of printed rows to record batches, in short steps. If Arrow cannot hold a value, it is null and the
    row has a problem.
    """

    def __init__(self, columns: ExportColumns, schema: pa.Schema) -> None:
        self._columns = columns
        self.schema = schema
        self._converts = [converter(each.type) for each in columns.columns]

    def steps(self, rows: Sequence[Mapping[str, Any]]) -> Generator[None, None, pa.RecordBatch]:
        """Return the batch of these rows; pause between columns."""
        import pyarrow as pa  # noqa: PLC0415

        arrays: dict[tuple[str, ...], Any] = {}
        problems: dict[int, str] = {}
        for column, convert in zip(self._columns.columns, self._converts, strict=True):
            if column.path != (PROBLEM,):
                values = _converted(column, convert, rows, problems)
                arrays[column.path] = pa.array(values, arrow_type(column.type))
                yield
        said = [_problem(row, problems.get(at)) for at, row in enumerate(rows)]
        arrays[PROBLEM,] = pa.array(said, pa.string())
        return pa.record_batch(self._placed(arrays), schema=self.schema)

    def _placed(self, arrays: Mapping[tuple[str, ...], Any]) -> list[Any]:
        import pyarrow as pa  # noqa: PLC0415

        if self._columns.is_flat:
            return [arrays[each.path] for each in self._columns.columns]
        placed = []
        for field in self.schema:
            inner = [each.path for each in self._columns.columns if len(each.path) > 1 and each.path[0] == field.name]
            placed.append(
                pa.StructArray.from_arrays([arrays[path] for path in inner], fields=list(field.type))
                if inner
                else arrays[field.name,]
            )
        return placed


def _converted(
    column: ExportColumn, convert: Convert, rows: Sequence[Mapping[str, Any]], problems: dict[int, str]
) -> list[object]:
    """Return the values of a column. Note each value that does not fit in `problems`, by the index of its row."""
    values: list[object] = []
    for at, row in enumerate(rows):
        value = walk(row, column.path)
        try:
            values.append(None if value is None else convert(value))
        except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
            values.append(None)
            problems[at] = f"Arrow cannot hold {column.name}: {error}"
    return values


def _problem(row: Mapping[str, Any], unfit: str | None) -> str | None:
    said = row.get(PROBLEM)
    if said is None and unfit is not None:
        said = {"type": "unfit-for-arrow", "title": unfit}
    return None if said is None else orjson.dumps(said).decode()
