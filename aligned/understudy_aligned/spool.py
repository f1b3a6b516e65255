"""The spool: a planned batch in one Arrow file, which executors on this machine map instead of reading the inputs.

It is only a cache: an executor that cannot read the file reads the input. Writing a batch removes all other files,
except that of the batch that Spark runs. Each planner holds a lock in its folder, which the kernel releases when the
process ends. So the next planner can find and remove the folders of planners that died.

For Python workers the file holds records, and the workers make rows of them: that spares the planner's process. For the
accelerator jar it holds rows, because the jar hands the file to Spark as it is.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from understudy_aligned.inputs.protocol import Range
from understudy_aligned.inputs.records import ROW_SCHEMA
from understudy_aligned.offset import SourceOffset, topics_at
from understudy_aligned.options import AlignedOptions
from understudy_aligned.rows import (
    COALESCE_BYTES,
    ROWS,
    RangeRows,
    RowOptions,
    Slice,
    arrow_schema,
    concat,
    joined_rows,
    large_bytes,
)

RangeRecords = Sequence[tuple[Range, Sequence[pa.RecordBatch]]]
"""The ranges of a batch, with their records."""


DeadLetters = tuple[Range, pa.RecordBatch]
"""Poison records of a range that are to be written aside when the batch runs."""

Formed = tuple[Sequence[Sequence[pa.RecordBatch]], tuple[DeadLetters, ...]]
"""The contents of a file: a part for each range, and the poison records that are in no part."""


class RecordsForm:
    """The content of a planner's spool files. Here it is records, from which Python workers make rows."""

    schema: pa.Schema = ROW_SCHEMA
    joins = True
    """Whether parts may share a record batch."""

    def form(self, ranges: RangeRecords, end: SourceOffset) -> Formed:
        """Return the content of the file for the batch that ends at this offset."""
        return [records for _, records in ranges], ()

    def depends_on(self, end: SourceOffset) -> object:
        """Return everything that a file depends on beside its ranges and the ids of their topics."""
        return None


class RowsForm(RecordsForm):
    """The content for the jar: rows as Spark gets them, in whole record batches; poison records are handled already."""

    joins = False

    def __init__(self, options: AlignedOptions) -> None:
        self._options = options
        self._rows = RowOptions.of(options)
        self.schema = arrow_schema(self._rows)

    def form(self, ranges: RangeRecords, end: SourceOffset) -> Formed:
        """Convert the records. Raises UndecodableError for a poison record that ends the query."""
        ranks = {topic: rank for rank, topic in enumerate(topics_at(self._options, end))}
        parts, letters = [], []
        for span, records in ranges:
            rows = RangeRows(span, self._rows, rank=ranks[span.partition.topic])
            pieces = ((rows, Slice.whole(each)) for each in records)
            parts.append(list(joined_rows(pieces, self._rows, batch=end.batches, stream_time_ms=end.stream_time_ms)))
            if (poison := rows.dead_letters) is not None:
                letters.append((span, poison))
        return parts, tuple(letters)

    def depends_on(self, end: SourceOffset) -> object:
        """Return the number of the batch, the ranks of topics, and the stream time if it is a column."""
        stream_time_ms = end.stream_time_ms if self._rows.include_stream_time else None
        return end.batches, topics_at(self._options, end), stream_time_ms


log = logging.getLogger(__name__)

_LOCK_NAME = "lock"
_PREFIX = "planner-"
_REUSED = "reused"
_WRITE_BYTES = 64 << 10


class SpoolPlace(NamedTuple):
    """Rows of a record batch in a file: the index of the batch, the first row, and how many they are."""

    batch: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A batch on disk: its path, the places of each part, and the poison records to write aside."""

    path: str
    parts: tuple[tuple[SpoolPlace, ...], ...]
    letters: tuple[DeadLetters, ...] = ()


class Spool:
    """The spool of one planner: a private folder below `root`."""

    def __init__(self, root: Path, schema: pa.Schema = ROW_SCHEMA, *, joins: bool = False) -> None:
        """Prepare without I/O. The first `write` creates the folder. All files have the schema.

        With `joins`, small record batches are joined, also across parts: writing a record batch takes 0.2 ms of CPU,
        whatever its size.
        """
        self._root = root
        self._schema = schema
        self._most_rows = ROWS if joins else 0
        self._is_closed = False
        self._folder: Path | None = None
        self._lock = -1
        self._batches = 0
        self._failing = False
        self._reused: Path | None = None
        """A file without readers. Overwriting its pages is cheaper than writing new ones."""

    def write(self, parts: Sequence[Sequence[pa.RecordBatch]]) -> SpoolFile | None:
        """Replace all files by one for this batch. Return None if writing fails, and log the first failure in a row."""
        try:
            written = self.write_beside(None, parts)
        except OSError as refusal:
            if not self._failing:
                log.warning("batches are read twice: the spool in %s cannot be written: %s", self._root, refusal)
            self._failing = True
            return None
        self._failing = False
        return written

    def write_beside(self, kept: SpoolFile | None, parts: Sequence[Sequence[pa.RecordBatch]]) -> SpoolFile:
        """Write a batch, and remove all other files but `kept`. If this raises OSError, the batch has no file."""
        self.clear(but=kept)
        try:
            return self._write(parts)
        except OSError:
            self.clear(but=kept)
            raise

    def clear(self, *, but: SpoolFile | None = None) -> None:
        """Remove every batch, or every one but this."""
        if self._folder is not None:
            for path in self._folder.glob("*.arrow"):
                if but is None or str(path) != but.path:
                    path.unlink(missing_ok=True)

    def reuse(self, path: str) -> None:
        """Write the next batch over this file, which no reader has. No reader can open it by its name any more."""
        if self._folder is not None:
            with suppress(OSError):
                self._reused = Path(path).replace(self._folder / _REUSED)

    def close(self) -> None:
        """Remove the planner's folder. From then on every write fails."""
        self._is_closed = True
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._folder = None

    def _write(self, parts: Sequence[Sequence[pa.RecordBatch]]) -> SpoolFile:
        folder = self.folder()
        self._batches += 1
        # File names are never reused: an executor must not read another batch's records.
        path = folder / f"{self._batches}.arrow"
        with self._opened(path) as file:
            # A batch is some twenty small writes. Without the buffer each would be a Python call.
            stream = pa.BufferedOutputStream(pa.PythonFile(file, "w"), _WRITE_BYTES)
            with pa.ipc.new_file(stream, self._schema) as writer:
                joined = _Joined(writer, self._most_rows)
                places = [tuple(map(joined.add, batches)) for batches in parts]
                joined.write()
            stream.flush()
            file.truncate()  # the file before may have been longer
        return SpoolFile(str(path), tuple(places))

    def _opened(self, path: Path) -> BinaryIO:
        reused, self._reused = self._reused, None
        if reused is not None:
            with suppress(OSError):  # a cleaner of temporary files may have taken it
                return reused.replace(path).open("r+b")
        return path.open("xb")

    def folder(self) -> Path:
        """Return the planner's folder. Create it at first use, and again if a cleaner deleted it. Raises OSError."""
        if self._is_closed:
            raise OSError(errno.EBADF, "the spool is closed")
        if self._folder is not None and self._folder.is_dir():
            return self._folder
        self._remove_folder()
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._root.stat().st_uid not in {0, os.getuid()}:
            # Its owner could replace our files.
            raise PermissionError(errno.EPERM, "the folder belongs to another user")
        _remove_abandoned(self._root)
        # A folder without a held lock counts as abandoned. So take the lock before the folder gets its final name:
        # other planners look only at folders with such a name.
        draft = Path(tempfile.mkdtemp(prefix="new-", dir=self._root))
        self._lock = os.open(draft / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._folder = draft.rename(self._root / (_PREFIX + draft.name.removeprefix("new-")))
        return self._folder


class _Joined:
    """A writer that joins small record batches into larger ones."""

    def __init__(self, writer: pa.ipc.RecordBatchFileWriter, most_rows: int) -> None:
        self._writer = writer
        self._most_rows = most_rows
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._written = 0

    def add(self, batch: pa.RecordBatch) -> SpoolPlace:
        size = large_bytes(batch) if self._most_rows else 0
        if self._rows + batch.num_rows > self._most_rows or self._bytes + size > COALESCE_BYTES:
            self.write()
        place = SpoolPlace(self._written, self._rows, batch.num_rows)
        self._held.append(batch)
        self._rows, self._bytes = self._rows + batch.num_rows, self._bytes + size
        return place

    def write(self) -> None:
        if self._held:
            self._writer.write_batch(concat(self._held))
            self._held, self._rows, self._bytes, self._written = [], 0, 0, self._written + 1


def read_spool(path: str, parts: Sequence[Sequence[SpoolPlace]]) -> list[list[Slice]]:
    """Map the records of parts. Raises OSError or ArrowException if the file is gone or incomplete."""
    with pa.memory_map(path) as file, pa.ipc.open_file(file) as reader:
        found = {number: reader.get_batch(number) for number in {place.batch for places in parts for place in places}}
        return [[Slice(found[number], first, rows) for number, first, rows in places] for places in parts]


def _remove_abandoned(root: Path) -> None:
    for folder in root.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
