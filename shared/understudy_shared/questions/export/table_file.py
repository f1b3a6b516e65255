"""The rows of an export as one file: Parquet, Arrow's file format, or bytes as they come. It imports pyarrow.

Rule. The bytes of a file depend on its rows alone, not on the parts in which they came: two servers of one release make
the same file of one version, so that a reader may take ranges of it from either.

Threads write, and a thread goes on when the call that waits for it is cancelled. So the file is closed after that.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any, Final

import orjson

from understudy_shared.questions.export.arrow_batches import METADATA

GROUP_ROWS: Final = 65_536
"""Number of rows of a row group, and of a record batch."""

_OF_FILES: Final = ("store", "lineage", "version", "is_flat")
"""The metadata of a file: what servers know alike of a version, whatever Spark has purged of its commits."""


class BytesFile:
    """A file of bytes as they come. One method runs at a time, in whatever threads they are called."""

    def __init__(self, descriptor: int) -> None:
        self._lock = threading.RLock()
        self._file = os.fdopen(os.dup(descriptor), "wb")
        self.size_bytes = 0

    def add(self, data: bytes) -> None:
        """Write a part. Raises ValueError after `close`."""
        with self._lock:
            self._add(data)

    def finish(self) -> None:
        """Write what stands after the rows."""
        with self._lock:
            self._finish()
            self.close()

    def close(self) -> None:
        """Release the descriptor. What was given up before its end is ended first."""
        with self._lock:
            self._give_up()
            self._file.close()

    def _add(self, data: bytes) -> None:
        self._file.write(data)
        self.size_bytes += len(data)

    def _finish(self) -> None:
        """Do nothing: bytes need no end."""

    def _give_up(self) -> None:
        """Do nothing: bytes need no end."""


class TableFile(BytesFile):
    """A file of Arrow batches; `add` takes them as a stream of the IPC format. `ending` is `parquet` or `arrow`."""

    def __init__(self, descriptor: int, ending: str) -> None:
        super().__init__(descriptor)
        self._ending = ending
        self._writer: Any = None
        self._held: list[Any] = []
        self._rows = 0

    def _add(self, data: bytes) -> None:
        """Write whole row groups, and hold the rest. Raises pyarrow's errors for columns that the format lacks."""
        import pyarrow as pa  # noqa: PLC0415

        if self._file.closed:
            raise ValueError("the file is closed")
        reader = pa.ipc.open_stream(pa.BufferReader(data))
        if self._writer is None:
            said = orjson.loads(reader.schema.metadata[METADATA])
            kept = orjson.dumps({name: said[name] for name in _OF_FILES if name in said})
            self._writer = self._opened(reader.schema.with_metadata({METADATA: kept}))
        for batch in reader:
            self._held.append(batch)
            self._rows += batch.num_rows
        while self._rows >= GROUP_ROWS:
            self._write(GROUP_ROWS)
        self.size_bytes = self._file.tell() + sum(batch.nbytes for batch in self._held)

    def _finish(self) -> None:
        """Write the last rows, and the end of the file."""
        if self._rows:
            self._write(self._rows)
        self._writer.close()
        self._writer = None
        self.size_bytes = self._file.tell()

    def _give_up(self) -> None:
        if self._writer is not None:
            with suppress(OSError, ValueError):
                self._writer.close()

    def _opened(self, schema: Any) -> Any:
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415

        self._schema, sink = schema, pa.PythonFile(self._file, "w")
        if self._ending == "arrow":
            return pa.ipc.new_file(sink, schema)
        return parquet.ParquetWriter(sink, schema, compression="zstd")

    def _write(self, rows: int) -> None:
        """Write one group of so many rows, in one chunk."""
        import pyarrow as pa  # noqa: PLC0415

        table = pa.Table.from_batches(self._held).replace_schema_metadata(self._schema.metadata)
        self._writer.write_table(table.slice(0, rows).combine_chunks(), GROUP_ROWS)
        self._held, self._rows = table.slice(rows).to_batches(), self._rows - rows
