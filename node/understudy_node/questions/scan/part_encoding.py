"""The rows of a part as it is sent: JSON behind commas for a page, lines for an export."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

import orjson

from understudy_shared.questions.export.columns import ExportColumns
from understudy_shared.reads.columns import walk
from understudy_shared.reads.export_format import csv_row


class Gathered(Protocol):
    """The rows of a part, which are added one by one as a scan prints them."""

    def add(self, row: bytes) -> None:
        """Add a row."""

    def finish(self) -> Generator[None, None, None]:
        """Do what is left to do, in steps."""

    def payload(self) -> bytes:
        """Return the rows as they are sent."""


class JsonRows:
    """The rows of a page, with commas between them."""

    def __init__(self) -> None:
        self._rows: list[bytes] = []
        self.add = self._rows.append

    def finish(self) -> Generator[None, None, None]:
        """See `Gathered`."""
        yield from ()

    def payload(self) -> bytes:
        """See `Gathered`."""
        return b",".join(self._rows)


class NdjsonRows:
    """A line for each row."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def add(self, row: bytes) -> None:
        """See `Gathered`."""
        self._lines.append(b'{"row":%b}\n' % row)

    def finish(self) -> Generator[None, None, None]:
        """See `Gathered`."""
        yield from ()

    def payload(self) -> bytes:
        """See `Gathered`."""
        return b"".join(self._lines)


class CsvRows:
    """A line of CSV for each row. Null is an empty field, an empty text is quoted, and what is nested is JSON."""

    def __init__(self, columns: ExportColumns) -> None:
        self._paths = [each.path for each in columns.columns]
        self._lines: list[bytes] = []

    def add(self, row: bytes) -> None:
        """See `Gathered`."""
        printed = orjson.loads(row)
        self._lines.append(csv_row([walk(printed, path) for path in self._paths]))

    def finish(self) -> Generator[None, None, None]:
        """See `Gathered`."""
        yield from ()

    def payload(self) -> bytes:
        """See `Gathered`."""
        return b"".join(self._lines)


def csv_head(columns: ExportColumns) -> bytes:
    """Return the line with the names of the columns."""
    return csv_row([each.name for each in columns.columns])
