"""The protocol of an open file: rows that are numbered from 0 on and read in order."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from understudy_pipeline.inputs.arrays import scalar
from understudy_pipeline.inputs.columns import rows


class FileRows(NamedTuple):
    """Rows of one file. `indices` ascend, with gaps for blank lines."""

    indices: pa.Int64Array
    times: pa.Int64Array
    keys: pa.BinaryArray | None
    values: pa.BinaryArray

    def records(self, name: str, *, ordinal: int) -> pa.RecordBatch:
        """Return the rows in `ROW_SCHEMA`, numbered from `ordinal` on. Offsets are `<name>:<index>`."""
        offsets = pc.binary_join_element_wise(
            scalar(name, pa.string()), self.indices.cast(pa.string()), scalar(":", pa.string())
        )
        return rows(offsets=offsets, ordinal=ordinal, times=self.times, keys=self.keys, values=self.values)


class RowFile(Protocol):
    """An open file at its first row. Reading raises OSError, and SettingsError for content that cannot be parsed."""

    next_index: int
    """The index of the next row."""

    size: int
    """Bytes of the file when it was opened."""

    @property
    def remaining(self) -> int:
        """A lower bound of the rows left: 0 at the end, at least 1 before it."""

    def skip(self, index: int) -> bool:
        """Skip to row `index`, which may be the end. Returns False if the file ends before it."""

    def take(self, count: int) -> FileRows | None:
        """Read up to `count` rows. None if all of them are blank, or at the end."""

    def last(self) -> int | None:
        """Skip to the end, and return the index of the last row. None if there is no row left."""

    def close(self) -> None:
        """Close the file."""
