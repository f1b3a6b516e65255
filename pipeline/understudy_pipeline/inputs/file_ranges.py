"""Reads planned ranges of files on executors: exactly the planned rows, or an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from understudy_pipeline.inputs.file_rows import RowFile
from understudy_pipeline.inputs.folder_reader import DATA_LOSS_FIX
from understudy_pipeline.inputs.folders import (
    FilePlace,
    FileTooShortError,
    file_names,
    folder_of,
    open_rows,
    place_after,
    unreadable,
)
from understudy_pipeline.inputs.protocol import DataLostError, Range
from understudy_pipeline.inputs.records import TopicPartition
from understudy_pipeline.inputs.timestamps import TimestampRules
from understudy_shared.base.printable import printable

log = logging.getLogger(__name__)

MAX_ROWS = 10_000
MAX_KEPT = 16
"""Most files that stay open at the end of a range, because the next range of the partition begins there."""


class FileRangeReader:
    """A reader of ranges. Ordinals have no gaps, so a range's ends say how many rows it must have."""

    def __init__(self, root: Path, rules: TimestampRules, *, fail_on_data_loss: bool) -> None:
        self._root = root
        self._rules = rules
        self._fail_on_data_loss = fail_on_data_loss
        self.losses = 0
        self._kept: dict[TopicPartition, tuple[str, RowFile]] = {}

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        start, end = place_after(span.start.offset), place_after(span.end.offset)
        if start is None or end is None or end < start:
            self._report_loss(span, "these are not two offsets of files in ascending order")
            return
        names = file_names(folder_of(self._root, span.partition), self._rules.of(span.partition.topic))
        ordinal, is_at_end = span.start.ordinal, start == end
        for name in names:
            if start.name <= name <= end.name and not is_at_end:
                for batch in self._rows(span, name, start, end, ordinal=ordinal):
                    ordinal += batch.num_rows
                    is_at_end = batch.column("offset")[-1].as_py() == span.end.offset
                    yield batch
        if not is_at_end:
            self._report_loss(span, "the last row that was planned is gone")
        elif ordinal != span.end.ordinal:
            planned, found = span.end.ordinal - span.start.ordinal, ordinal - span.start.ordinal
            self._report_loss(span, f"{planned} rows were planned, {found} are there")

    def close(self) -> None:
        for _, opened in self._kept.values():
            opened.close()
        self._kept.clear()

    def _rows(
        self, span: Range, name: str, start: FilePlace, end: FilePlace, *, ordinal: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the range that are in one file."""
        index = start.row if name == start.name else 0
        opened = self._opened(span, name, index)
        if opened is None:
            return
        path = folder_of(self._root, span.partition) / name
        try:
            while opened.remaining and (left := end.row - opened.next_index if name == end.name else MAX_ROWS) > 0:
                taken = opened.take(min(left, MAX_ROWS))
                if taken is not None:
                    batch = taken.records(name, ordinal=ordinal)
                    ordinal += batch.num_rows
                    yield batch
            if name == end.name and opened.remaining and len(self._kept) < MAX_KEPT:
                self._kept[span.partition] = (name, opened)
        except OSError as error:
            raise unreadable(path, error) from error
        finally:
            if self._kept.get(span.partition, ("", None))[1] is not opened:
                opened.close()

    def _opened(self, span: Range, name: str, index: int) -> RowFile | None:
        """Return the file, positioned at a row. Reuse an open file if it is positioned there."""
        kept_name, kept = self._kept.pop(span.partition, ("", None))
        if kept is not None:
            if (kept_name, kept.next_index) == (name, index):
                return kept
            kept.close()
        try:
            path, rule = folder_of(self._root, span.partition) / name, self._rules.of(span.partition.topic)
            return open_rows(path, rule, index=index)
        except (FileNotFoundError, FileTooShortError):
            self._report_loss(span, f"the file '{printable(name)}' is gone, or has lost rows")
            return None

    def _report_loss(self, span: Range, what: str) -> None:
        text = f"rows from '{printable(span.start.offset)}' to '{printable(span.end.offset)}' are lost: {what}"
        if self._fail_on_data_loss:
            raise DataLostError(text, where=str(folder_of(self._root, span.partition)), fix=DATA_LOSS_FIX)
        self.losses += 1
        log.warning("%s", text, extra={"action": "data-lost", **span.partition._asdict()})
