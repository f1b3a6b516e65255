"""The rows of a scan as the messages of an Arrow stream: from what was printed, in short steps."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Final

import orjson

from understudy_node.stores.arrow_schema import batch_message
from understudy_shared.reads.arrow_batches import ArrowBatches
from understudy_shared.reads.export_columns import ExportColumns

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
