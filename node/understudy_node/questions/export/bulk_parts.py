"""The seam to a maker of parts of exports that is faster than one row after another on the serving loop.

On the loop itself the rows of a scan become messages of an Arrow stream in short steps, from what was printed.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import orjson

from understudy_node.questions.export.arrow_schema import batch_message
from understudy_node.questions.scan.part_encoding import CsvRows, Gathered, NdjsonRows
from understudy_node.questions.scan.rows import RowMaker
from understudy_node.replica.read_views import Reading
from understudy_shared.questions.export.arrow_batches import ArrowBatches
from understudy_shared.questions.export.columns import ExportColumns
from understudy_shared.questions.scan.page import Place, Room
from understudy_shared.questions.scan.question import ScanQuestion
from understudy_shared.reads.export_format import ExportFormat

BATCH_ROWS: Final = 1_024
"""Number of rows of a record batch."""

ROWS_AT_ONCE: Final = 64
"""Number of rows that are parsed in one step."""


class ArrowRows:
    """The record batches of a part. See `ArrowBatches`."""

    def __init__(self, columns: ExportColumns, schema: Any) -> None:
        self._batches = ArrowBatches(columns, schema)
        self._rows: list[bytes] = []
        self._messages: list[bytes] = []
        self.add = self._rows.append

    def finish(self) -> Generator[None, None, None]:
        """See `Gathered`."""
        for start in range(0, len(self._rows), BATCH_ROWS):
            printed: list[Mapping[str, Any]] = []
            for at in range(start, min(start + BATCH_ROWS, len(self._rows)), ROWS_AT_ONCE):
                printed += map(orjson.loads, self._rows[at : min(at + ROWS_AT_ONCE, start + BATCH_ROWS)])
                yield
            self._messages.append(batch_message((yield from self._batches.steps(printed))))

    def payload(self) -> bytes:
        """See `Gathered`."""
        return b"".join(self._messages)


@dataclass(frozen=True, slots=True)
class BulkQuestion:
    """The rows that an export asks a store for. `maker` is the compiled `question` (its reader, filter, and fields)."""

    maker: RowMaker
    question: ScanQuestion
    format: ExportFormat
    columns: ExportColumns


class MadePart(NamedTuple):
    """The rows of a partition behind a place. `pieces`: lines of NDJSON (`{"row":{...}}`) or of CSV, or messages of
    Arrow record batches with the schema of `arrow_schema(columns, ...)`, cut anywhere. `found` counts rows, `looked_at`
    the keys that were looked at; `after` are the own bytes of the last one (see `scan_keys`), None at the end of the
    partition.
    """

    pieces: tuple[bytes | memoryview, ...]
    found: int
    looked_at: int
    after: bytes | None
    is_end: bool


class BulkMaker(Protocol):
    """A maker of parts. It ends a part at `room.bytes` or `room.rows`, or at `room.until_s`, and looks at one key at
    least. `room.is_confined` is never set.
    """

    async def part(self, asked: BulkQuestion, reading: Reading, place: Place, room: Room) -> MadePart | None:
        """Return a part; None for a question, or a kind of store, that this maker does not take. Raises the problem of
        one that cannot be read. It is cancelled when the reader has left.
        """


def gathered_rows(asked: BulkQuestion, schema: Any) -> Gathered:
    """Return what rows of a question are gathered in; `schema` is that of Arrow."""
    match asked.format:
        case ExportFormat.NDJSON:
            return NdjsonRows()
        case ExportFormat.CSV:
            return CsvRows(asked.columns)
        case ExportFormat.ARROW:
            return ArrowRows(asked.columns, schema)
