"""What a file is to its readers: rows that are numbered from 0 on, taken one after another."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from understudy_pipeline.inputs.columns import rows


class FileRows(NamedTuple):
    """Rows of one file. `indices` ascend; they have gaps where lines are blank."""

    indices: pa.Int64Array
    times: pa.Int64Array
    keys: pa.BinaryArray | None
    values: pa.BinaryArray

    def records(self, name: str, *, ordinal: int) -> pa.RecordBatch:
        """In `ROW_SCHEMA`, numbered from `ordinal` on; offsets are `<name>:<index>`."""
        offsets = pc.binary_join_element_wise(pa.scalar(name), self.indices.cast(pa.string()), ":")
        return rows(offsets=offsets, ordinal=ordinal, times=self.times, keys=self.keys, values=self.values)


class RowFile(Protocol):
    """An open file, at its first row. What reads it raises OSError, and SettingsError for what cannot be parsed."""

    next_index: int
    """Of the next row."""

    size: int
    """Bytes of the file when it was opened."""

    @property
    def remaining(self) -> int:
        """Rows that may come, at least: 0 at the end, and 1 or more before it."""

    def skip(self, index: int) -> bool:
        """Go on to the row `index`, which may be the end. False when the file ends before."""

    def take(self, count: int) -> FileRows | None:
        """Rows of the next numbers, up to so many; None when there is none among them."""

    def last(self) -> int | None:
        """The number of the last row, which is then passed; None when none comes."""

    def close(self) -> None:
        """Let go of it."""
