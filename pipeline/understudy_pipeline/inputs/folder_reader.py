"""Reads ahead in one partition's folder: its files in the order of their names, each row once."""

from __future__ import annotations

import logging
from bisect import bisect_right
from pathlib import Path

import pyarrow as pa

from understudy_pipeline.inputs.columns import chunk_of
from understudy_pipeline.inputs.file_rows import FileRows, RowFile
from understudy_pipeline.inputs.folders import (
    FilePlace,
    FileTooShortError,
    file_names,
    find_violation,
    folder_of,
    open_rows,
    place_after,
    unreadable,
)
from understudy_pipeline.inputs.protocol import DataLostError
from understudy_pipeline.inputs.records import Chunk, Cursor, TopicPartition
from understudy_pipeline.inputs.timestamps import TimestampRule
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.printable import printable

log = logging.getLogger(__name__)

DATA_LOSS_FIX = "Start with a new checkpoint, or set fail_on_data_loss=false to go on with what is left"
MAX_ROWS = 10_000
MAX_BYTES = 8 << 20
MAX_PARTS = 500
"""Most rows, bytes (give or take the last block) and blocks that one `read` returns. A file has at least one block."""


class FolderReader:
    """The reader of one folder. Files that exist at construction and sort before the cursor's file count as read."""

    def __init__(
        self, root: Path, tp: TopicPartition, cursor: Cursor, rule: TimestampRule, *, fail_on_data_loss: bool
    ) -> None:
        """Start behind a cursor. Raises DataLostError if its row is gone, SettingsError and InputError."""
        self._root, self._tp, self._rule = root, tp, rule
        self._fail_on_data_loss = fail_on_data_loss
        self.losses = 0
        """The number of times that it continued behind lost rows."""
        self._ordinal = cursor.ordinal
        self._open: RowFile | None = None
        self._size: int | None = None
        """Size of the current file when it was opened. None if it is not to be checked."""
        self._is_finished = True
        """Whether the current file was read to its end."""
        self._place = place_after(cursor.offset) or FilePlace("", 0)
        if place_after(cursor.offset) is None:
            self._report_loss(f"'{printable(cursor.offset)}' is not an offset of a file (<name>:<row>)")
        self._known: list[str] = []
        self._known = self._names()
        if self._place.name:
            self._open_current()

    def read(self, most: int) -> tuple[Chunk | None, int | None]:
        """Read up to `most` rows. Also returns the lag behind them, a lower bound; None if it is unknown.

        An error after some rows is dropped: the next call meets it again and raises it.
        """
        batches: list[pa.RecordBatch] = []
        lag: int | None = None
        try:
            self._check_files()
            self._read(min(most, MAX_ROWS), batches)
            lag = self._lag()
        except UnderstudyError:
            if not batches:
                raise
        if not batches:
            return None, lag
        together = pa.Table.from_batches(batches).combine_chunks().to_batches()
        assert len(together) == 1, "columns of a turn are far below Arrow's limit of 2 GiB"
        return chunk_of(self._tp, together[0]), lag

    def close(self) -> None:
        """Close the current file."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _check_files(self) -> None:
        """List the folder. Raises DataLostError for each violation of its rules."""
        names = self._names()
        wrong = find_violation(names, self._known, self._place, is_finished=self._is_finished)
        if wrong is not None:
            self._report_loss(wrong)
        if self._size is not None and self._place.name in names:
            size = _size(self._path(self._place.name))
            if size not in (None, self._size):
                self._report_loss(f"the file '{printable(self._place.name)}' changed from {self._size} to {size} bytes")
                self._size = size
        self._known = names

    def _read(self, most: int, batches: list[pa.RecordBatch]) -> None:
        read_bytes = 0
        while (
            most > 0
            and read_bytes < MAX_BYTES
            and len(batches) < MAX_PARTS
            and (opened := self._next_file()) is not None
        ):
            taken = self._take(opened, most)
            if taken is not None:
                batch = taken.records(self._place.name, ordinal=self._ordinal)
                batches.append(batch)
                self._ordinal += batch.num_rows
                most -= batch.num_rows
                read_bytes += batch.nbytes

    def _take(self, opened: RowFile, most: int) -> FileRows | None:
        """Read rows and advance the place. After an error the file is closed, and opened again at the same place."""
        try:
            taken = opened.take(most)
        except OSError as error:
            self.close()
            raise unreadable(self._path(self._place.name), error) from error
        except UnderstudyError:
            self.close()
            raise
        self._place = self._place._replace(row=opened.next_index)
        return taken

    def _next_file(self) -> RowFile | None:
        """Return the current file if it has rows left, else the next one that has. None if every file was read."""
        while True:
            if self._open is None and not self._is_finished:
                self._open_current()
            if self._open is not None and self._open.remaining:
                return self._open
            self.close()
            self._is_finished = True
            ahead = self._unread()
            if not ahead:
                return None
            self._place, self._is_finished, self._size = FilePlace(ahead[0], 0), False, None

    def _open_current(self) -> None:
        """Open the current file at its place."""
        name, row = self._place
        try:
            self._open = open_rows(self._path(name), self._rule, index=row)
        except FileNotFoundError:
            self._report_loss(f"the file '{printable(name)}' is gone, perhaps before it was read to its end")
        except FileTooShortError:
            self._report_loss(f"the file '{printable(name)}' ends before its row {row - 1}, which was read")
        self._is_finished = self._open is None
        self._size = None if self._open is None else self._open.size

    def _unread(self) -> list[str]:
        return self._known[bisect_right(self._known, self._place.name) :]

    def _lag(self) -> int:
        return (self._open.remaining if self._open is not None else 0) + len(self._unread())

    def _names(self) -> list[str]:
        return file_names(folder_of(self._root, self._tp), self._rule, self._known)

    def _path(self, name: str) -> Path:
        return folder_of(self._root, self._tp) / name

    def _report_loss(self, what: str) -> None:
        if self._fail_on_data_loss:
            raise DataLostError(what, where=str(folder_of(self._root, self._tp)), fix=DATA_LOSS_FIX)
        self.losses += 1
        log.warning("%s", what, extra={"action": "data-lost", **self._tp._asdict()})


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
