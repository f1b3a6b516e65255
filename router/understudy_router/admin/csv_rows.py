"""Rows of the lag report as comma-separated values (RFC 4180), in slices (pure).

An unknown value is an empty field. A text that a spreadsheet would take for a formula gets an apostrophe in front.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from understudy_router.admin.lag_page import COLUMNS, Row

CSV_TYPE = "text/csv; charset=utf-8; header=present"

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(slices: Iterable[Sequence[Row]]) -> Iterator[bytes]:
    """Yield the heading and the rows."""
    yield _lines([COLUMNS])
    for rows in slices:
        yield _lines([[_cell(row[column]) for column in COLUMNS] for row in rows])


def _lines(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode(errors="replace")


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
