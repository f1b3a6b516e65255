"""The parts of an export at a node: their columns, rows in their form, and the messages of Arrow.

An Arrow stream of an export is: the schema, record batches, and empty record batches whose metadata says where the
stream can be resumed, and at its end how many rows there were. pyarrow is imported by the first use.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from understudy_node.checkpoint.operators import SESSION_WINDOW
from understudy_node.checkpoint.state_variables import TRANSFORM
from understudy_node.questions.scan.parts import ExportRows
from understudy_node.questions.scan.rows import RowMaker
from understudy_node.stores.operator_state import has_timeout
from understudy_node.stores.stores import ServedStore
from understudy_shared.base.extras import PACKAGE
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.export.columns import METADATA, ArrowBatches, ExportColumns, Fields, StoreColumns
from understudy_shared.questions.scan.question import ScanQuestion
from understudy_shared.questions.scan.requests import row_columns
from understudy_shared.reads.columns import walk
from understudy_shared.reads.export_format import ExportFormat, csv_row
from understudy_shared.spark.types import Field, SparkType, StructType, TimestampType

if TYPE_CHECKING:
    import pyarrow as pa


def require_pyarrow() -> None:
    """Import pyarrow. Raises a bad-bound problem where it is not installed."""
    try:
        import pyarrow  # noqa: F401, PLC0415
    except ImportError:
        raise ProblemError(
            Problem(
                ProblemType.BAD_BOUND,
                "this service cannot write Arrow: the package pyarrow is not installed on its nodes",
                where="format",
                fix=f"Ask for format=ndjson or format=csv; or install {PACKAGE}[arrow] for the nodes",
            )
        ) from None


def shape_of(columns: ExportColumns) -> str:
    """Return the digest of names and types: parts of two nodes must agree in it."""
    said = [(each.name, each.type.name) for each in columns.columns]
    return blake2b(orjson.dumps(said), digest_size=8).hexdigest()


def record_message(schema: pa.Schema, members: Mapping[str, object]) -> bytes:
    """Return the message of an empty record batch that says something by its metadata."""
    import pyarrow as pa  # noqa: PLC0415

    empty = pa.record_batch([pa.array([], each.type) for each in schema], schema=schema)
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, schema)  # it writes the schema first, with the first batch
    writer.write_batch(empty, custom_metadata={METADATA: orjson.dumps(members)})
    return bytes(sink.getvalue())[schema.serialize().size :]


def export_columns(store: ServedStore, fields: Fields | None = None) -> ExportColumns:
    """Return the columns of an export of a store. `fields` names the value and result columns; None: all."""
    codec = store.codec
    key = _named(codec.names, [field.type for field in codec.key.fields])
    count = row_columns(codec)
    columns = StoreColumns(
        kind=store.kind,
        operator=store.operator_name,
        key=key[:count],
        user_key=key[count:],
        value=_named(store.value_names, [field.type for field in store.value_schema.fields]),
        result=tuple(Field(name, each) for name, each in store.result_types),
        moment=_moment(store),
        has_timeout=has_timeout(store.value_schema),
        has_ttl=store.operator_name in TRANSFORM,
    )
    return columns.columns(fields)


def _named(names: tuple[str, ...], types: list[SparkType]) -> tuple[Field, ...]:
    return tuple(Field(name, each) for name, each in zip(names, types, strict=True))


def _moment(store: ServedStore) -> SparkType:
    """Return the type of the start of a session, which is that of the query's event time."""
    for field in store.value_schema.fields:
        if field.name == SESSION_WINDOW and isinstance(field.type, StructType) and field.type.fields:
            return field.type.fields[0].type
    return TimestampType()


BATCH_ROWS: Final = 1_024
"""Number of rows of a record batch."""

ROWS_AT_ONCE: Final = 64
"""Number of rows that are parsed in one step."""


class CsvRows(ExportRows):
    """A line of CSV for each row. Null is an empty field, an empty text is quoted, and what is nested is JSON."""

    def __init__(self, columns: ExportColumns) -> None:
        super().__init__()
        self._paths = [each.path for each in columns.columns]

    def add(self, row: bytes) -> None:
        printed = orjson.loads(row)
        self._pieces.append(csv_row([walk(printed, path) for path in self._paths]))


class ArrowExportRows(ExportRows):
    """The record batches of a part. See `ArrowBatches`."""

    def __init__(self, columns: ExportColumns, schema: Any) -> None:
        super().__init__()
        self._batches = ArrowBatches(columns, schema)
        self._rows: list[bytes] = []

    def add(self, row: bytes) -> None:
        self._rows.append(row)

    def finish(self) -> Generator[None, None, None]:
        for start in range(0, len(self._rows), BATCH_ROWS):
            printed: list[Mapping[str, Any]] = []
            for at in range(start, min(start + BATCH_ROWS, len(self._rows)), ROWS_AT_ONCE):
                printed += map(orjson.loads, self._rows[at : min(at + ROWS_AT_ONCE, start + BATCH_ROWS)])
                yield
            batch = yield from self._batches.steps(printed)
            self._pieces.append(bytes(batch.serialize()))


@dataclass(frozen=True, slots=True)
class BulkQuestion:
    """The rows that an export asks a store for. `maker` is the compiled `question` (its reader, filter, and fields)."""

    maker: RowMaker
    question: ScanQuestion
    format: ExportFormat
    columns: ExportColumns


class MadePart(NamedTuple):
    """The rows of a partition after a place. `pieces`: lines of NDJSON (`{"row":{...}}`) or of CSV, or messages of
    Arrow record batches with the schema of `arrow_schema(columns, ...)`, cut anywhere. `found` counts rows, `looked_at`
    the keys that were read; `after` are the own bytes of the last one (see `keys_after`), None at the end of the
    partition.
    """

    pieces: tuple[bytes | memoryview, ...]
    found: int
    looked_at: int
    after: bytes | None
    is_end: bool


def gathered_rows(asked: BulkQuestion, schema: Any) -> ExportRows:
    """Return the collector of rows in the format of a question; only Arrow needs `schema`."""
    match asked.format:
        case ExportFormat.NDJSON:
            return ExportRows()
        case ExportFormat.CSV:
            return CsvRows(asked.columns)
        case ExportFormat.ARROW:
            return ArrowExportRows(asked.columns, schema)
