"""Reads planned ranges of Redis Streams on executors, by XRANGE: exactly the planned entries, or an error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from understudy_aligned.inputs.protocol import DataLostError, Range
from understudy_aligned.inputs.redis_rows import Entry, EntryFields, entry_id, entry_rows
from understudy_aligned.inputs.redis_server import DATA_LOSS_FIX, StreamServer, stream_key

log = logging.getLogger(__name__)

MAX_ENTRIES = 5_000
FIRST_ENTRIES = 500
MAX_BYTES = 8 << 20
"""Most entries and bytes of one page, and of one stream in one fetch: the server builds each answer as a whole and
serves no other client meanwhile. The size of earlier entries says how many fit.
"""


class RedisRangeReader:
    """A reader of ranges. Ordinals have no gaps, so a range's ends say how many entries it must have.

    A range from the beginning of a stream is counted back from its end: only a stream without XDEL has as many entries
    as were planned.
    """

    def __init__(
        self, server: StreamServer, fields_of: Callable[[str], EntryFields], *, fail_on_data_loss: bool
    ) -> None:
        self._server = server
        self._fields_of = fields_of
        self._fail_on_data_loss = fail_on_data_loss
        self.losses = 0

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        if span.start.offset == span.end.offset:
            return
        ordinal = span.start.ordinal
        if not span.start.offset:
            ordinal = span.end.ordinal - sum(len(page) for page in self._pages(span))
            self._check_beginning(span, missing=ordinal - span.start.ordinal)
        last, fields = b"", self._fields_of(span.partition.topic)
        for page in self._pages(span):
            yield entry_rows(page, fields, ordinal=ordinal)
            ordinal, last = ordinal + len(page), page[-1][0]
        if last != span.end.offset.encode():
            self._report_loss(span, f"the last entry that was planned, {span.end.offset}, is gone")
        elif ordinal != span.end.ordinal:
            self._report_loss(
                span, f"{span.end.ordinal - ordinal} of {span.end.ordinal - span.start.ordinal} entries are gone"
            )

    def close(self) -> None:
        self._server.close()

    def _pages(self, span: Range) -> Iterator[Sequence[Entry]]:
        key, behind, end = stream_key(span.partition), span.start.offset, span.end.offset
        if behind and entry_id(behind) > entry_id(end):  # planned across a loss: the stream was created again between
            behind = ""
        count = FIRST_ENTRIES
        while page := self._server.entries(key, f"({behind}" if behind else "-", end, count):
            yield page
            behind = page[-1][0].decode()
            if behind == end or len(page) < count:
                return
            page_bytes = sum(len(field) for _, fields in page for field in fields)
            count = max(1, min(MAX_ENTRIES, MAX_BYTES * len(page) // max(page_bytes, 1)))

    def _check_beginning(self, span: Range, *, missing: int) -> None:
        """Report entries that were trimmed since the range was planned. Entries that XDEL removed may be missing."""
        if missing > 0:
            ((info, _),) = self._server.read_streams([(stream_key(span.partition), "", 0)])
            if info is None or not info.has_deleted:
                self._report_loss(span, f"{missing} of its first entries are gone")

    def _report_loss(self, span: Range, what: str) -> None:
        text = f"entries of the stream '{stream_key(span.partition)}' up to {span.end.offset} are lost: {what}"
        if self._fail_on_data_loss:
            raise DataLostError(text, where=self._server.where, fix=DATA_LOSS_FIX)
        self.losses += 1
        log.warning("%s", text, extra={"action": "data-lost", **span.partition._asdict()})
