"""Reads Parquet files: a row is a record. Columns: `value`, optionally `key`, and `timestamp` unless it is a field."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from understudy_pipeline.inputs.arrays import numbers
from understudy_pipeline.inputs.columns import times_in_values, within_years
from understudy_pipeline.inputs.file_rows import FileRows
from understudy_pipeline.inputs.timestamps import TimestampRule
from understudy_shared.base.errors import SettingsError

MAX_ROWS = 10_000
MAX_BYTES = 8 << 20
"""Most rows and bytes that are decoded at once. Bytes are estimated by the mean row size of the row group."""

_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)


class ParquetRows:
    """An open Parquet file. Raises OSError, and SettingsError for a file that is damaged or has the wrong columns."""

    def __init__(self, path: Path, rule: TimestampRule) -> None:
        self._rule = rule
        self._path = path
        self.size = path.stat().st_size
        self.next_index = 0
        with _parsing(path):
            self._file = parquet.ParquetFile(path)
        try:
            self._columns = checked_columns(self._file.schema_arrow, rule, where=str(path))
        except BaseException:
            self._file.close()
            raise
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._rest: pa.RecordBatch | None = None

    @property
    def remaining(self) -> int:
        return int(self._file.metadata.num_rows) - self.next_index

    def skip(self, index: int) -> bool:
        if index > self._file.metadata.num_rows:
            return False
        self.next_index, self._batches, self._rest = index, None, None
        return True

    def take(self, count: int) -> FileRows | None:
        rest = self._rest
        with _parsing(self._path):
            while rest is None or not rest.num_rows:
                if (rest := next(self._read(), None)) is None:
                    return None
        taken, self._rest = rest.slice(0, count), rest.slice(count)
        first, self.next_index = self.next_index, self.next_index + taken.num_rows
        with _parsing(self._path):  # a cast fails for a value that does not fit its column
            return self._to_rows(taken, first)

    def last(self) -> int | None:
        rows = int(self._file.metadata.num_rows)
        is_behind, self.next_index = self.next_index < rows, rows
        return rows - 1 if is_behind else None

    def close(self) -> None:
        self._file.close()

    def _read(self) -> Iterator[pa.RecordBatch]:
        """Return the batches from `next_index` on: the same iterator until `skip` resets it."""
        if self._batches is None:
            self._batches = self._read_on(self.next_index)
        return self._batches

    def _read_on(self, index: int) -> Iterator[pa.RecordBatch]:
        metadata = self._file.metadata
        for group in range(metadata.num_row_groups):
            of_group = metadata.row_group(group)
            if index >= of_group.num_rows:
                index -= of_group.num_rows
                continue
            row_bytes = of_group.total_byte_size // of_group.num_rows + 1
            most = max(1, min(MAX_ROWS, MAX_BYTES // row_bytes))
            for batch in self._file.iter_batches(most, row_groups=[group], columns=self._columns):
                skipped = min(index, batch.num_rows)
                yield batch.slice(skipped)
                index -= skipped

    def _to_rows(self, batch: pa.RecordBatch, first: int) -> FileRows:
        values = batch.column("value").cast(pa.binary())
        keys = batch.column("key").cast(pa.binary()) if "key" in self._columns else None
        if self._rule.is_record_time:
            times = times_of(batch.column("timestamp"))
        else:
            times = times_in_values(self._rule, values.to_pylist())
        indices = numbers(np.arange(first, first + batch.num_rows, dtype=np.int64))
        return FileRows(indices, times, keys, values)


def checked_columns(schema: pa.Schema, rule: TimestampRule, *, where: str) -> list[str]:
    """Return the columns to read. Raises SettingsError if one is missing or has a wrong type."""
    types = {field.name: field.type for field in schema}
    for name in ("value", "key"):
        if name in types and not any(is_one(types[name]) for is_one in _BYTES):
            raise _schema_error(f"the column '{name}' is {types[name]}, neither binary nor string", where)
    if "value" not in types:
        raise _schema_error("there is no column 'value'", where)
    columns = [name for name in ("key", "value") if name in types]
    if not rule.is_record_time:
        return columns
    if "timestamp" not in types:
        raise _schema_error("there is no column 'timestamp'", where)
    if not (pa.types.is_timestamp(types["timestamp"]) or pa.types.is_int64(types["timestamp"])):
        raise _schema_error(f"the column 'timestamp' is {types['timestamp']}, neither timestamp nor int64", where)
    return [*columns, "timestamp"]


def check_schema(path: Path, rule: TimestampRule) -> None:
    """Check the columns of a file. Raises SettingsError and OSError."""
    ParquetRows(path, rule).close()


def times_of(column: pa.Array) -> pa.Int64Array:
    """Convert to epoch milliseconds, from timestamps (UTC if they name no zone) or from integer milliseconds."""
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.timestamp("ms", tz=column.type.tz), safe=False)
    return within_years(column.cast(pa.int64()))


@contextmanager
def _parsing(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # an error of the file system, not of the file's content
            raise
        raise SettingsError(
            f"this Parquet file cannot be read: {error}",
            where=str(path),
            fix="Replace it, or rename it so that it begins with '_'; a file must be complete when it appears",
        ) from error


def _schema_error(what: str, where: str) -> SettingsError:
    fix = "Give it value (binary or string), key if there are keys, and timestamp unless the time is json:<field>"
    return SettingsError(what, where=where, fix=fix)
