"""The rows of a result in the requested form: a table for people, lines, or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import orjson

from understudy.terminal.console import Sheet, print_page
from understudy.terminal.export_files import WrittenArrow, WrittenParquet, form_by_ending, written_whole
from understudy.terminal.reports import shown
from understudy_shared.base.texts import printable
from understudy_shared.spark.types import unique_names

if TYPE_CHECKING:
    from understudy.sql.session import Answer


import base64
import math
from decimal import Decimal

from understudy_shared.spark.temporal import date_text, day_time_text, time_text, timestamp_ntz_text, timestamp_text

MAX_TABLE_ROWS: Final = 1_000
"""Number of rows of a table for people: it is laid out when all of them are there."""

FORMATS: Final = ("table", "csv", "json", "parquet", "arrow")
_BY_SUFFIX: Final = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
}

Values = Sequence[Any]


_MAX_LONG: Final = 2**63
_MICROS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


def json_of(scalar: Any) -> Any:
    """Return a value of a result. A time is text of ISO 8601, also where Python has no such time."""
    if not scalar.is_valid:
        return None
    write = _BY_SCALAR.get(type(scalar).__name__)
    return _plain(scalar.as_py()) if write is None else write(scalar)


def _plain(value: Any) -> Any:
    match value:
        case bool() | int() | str():
            return value
        case float():
            if math.isfinite(value):
                return value
            return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            # Sums of integers are such: a number, as long as parsers of JSON take it.
            is_long = value == value.to_integral_value() and value.as_tuple().exponent == 0 and abs(value) < _MAX_LONG
            return int(value) if is_long else format(value, "f")
        case _:
            return str(value)


def _micros(scalar: Any) -> int:
    micros: int = scalar.value // 1_000 if scalar.type.unit == "ns" else scalar.value * _MICROS[scalar.type.unit]
    return micros


def _timestamp(scalar: Any) -> str:
    return (timestamp_text if scalar.type.tz else timestamp_ntz_text)(_micros(scalar))


def _time(scalar: Any) -> str:
    return time_text(scalar.value if scalar.type.unit == "ns" else scalar.value * _MICROS[scalar.type.unit] * 1_000)


def _interval(scalar: Any) -> str:
    """Print an interval of DuckDB, which has months, days and a time, as ISO 8601."""
    months, days, nanos = scalar.as_py()
    text = day_time_text(nanos // 1_000) if nanos or not (months or days) else ""
    said = f"P{f'{months}M' if months else ''}{f'{days}D' if days else ''}"
    return text if said == "P" else said + text.removeprefix("P")


def _map(scalar: Any) -> Any:
    entries = [(json_of(each["key"]), json_of(each["value"])) for each in scalar.values]
    names = [name for name, _ in entries]
    is_object = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return dict(entries) if is_object else [list(each) for each in entries]


def _list(scalar: Any) -> list[Any]:
    return [json_of(each) for each in scalar.values]


_BY_SCALAR: Final[Mapping[str, Callable[[Any], Any]]] = {
    "TimestampScalar": _timestamp,
    "Date32Scalar": lambda scalar: date_text(scalar.value),
    "Time64Scalar": _time,
    "DurationScalar": lambda scalar: day_time_text(_micros(scalar)),
    "MonthDayNanoIntervalScalar": _interval,
    "StructScalar": lambda scalar: {name: json_of(value) for name, value in scalar.items()},
    "MapScalar": _map,
    **dict.fromkeys(("ListScalar", "LargeListScalar", "FixedSizeListScalar"), _list),
}


def format_of(form: str | None, out: str, *, on_terminal: bool) -> str:
    """Return the form of the output: as requested, by the file's name, else a table on a terminal.
    Raises CommandError for a file whose ending is unknown.
    """
    return form or form_by_ending(out, _BY_SUFFIX) or ("table" if on_terminal and out == "-" else "json")


def write(answer: Answer, form: str, out: str) -> tuple[int, bool]:
    """Write all rows. Returns how many were written, and whether there are more, which a table leaves out."""
    if form == "table" and out == "-":
        return _print_table(answer)
    with written_whole(out) as file:
        return _WRITERS[form](answer, file), False


def _print_table(answer: Answer) -> tuple[int, bool]:
    rows = list(islice(_rows(answer), MAX_TABLE_ROWS + 1))
    some = rows[:MAX_TABLE_ROWS]
    print_page((Sheet([printable(each) for each in answer.schema.names], [tuple(map(shown, row)) for row in some]),))
    return len(some), len(rows) > len(some)


def _rows(answer: Answer) -> Iterator[Values]:
    for batch in answer.batches():
        columns = [[json_of(each) for each in column] for column in batch.columns]
        yield from zip(*columns, strict=True)


def _write_lines(lines: Iterable[bytes], file: BinaryIO) -> int:
    rows = 0
    for line in lines:
        file.write(line)
        rows += 1
    return rows


def _write_json(answer: Answer, file: BinaryIO) -> int:
    names = unique_names(answer.schema.names)
    found = (dict(zip(names, row, strict=True)) for row in _rows(answer))
    return _write_lines((orjson.dumps(row) + b"\n" for row in found), file)


def _write_csv(answer: Answer, file: BinaryIO) -> int:
    file.write(_csv_line(answer.schema.names))
    return _write_lines(map(_csv_line, _rows(answer)), file)


def _csv_line(row: Values) -> bytes:
    return ",".join(map(_csv_cell, row)).encode("utf-8", "replace") + b"\n"


def _csv_cell(value: Any) -> str:
    """Return a field: null is empty, an empty text is quoted, what is nested is JSON; as in an export."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return '"' + text.replace('"', '""') + '"' if not text or any(each in text for each in ',"\r\n#') else text


def _write_columns(written: WrittenArrow | WrittenParquet, answer: Answer) -> int:
    import pyarrow as pa  # noqa: PLC0415

    rows = 0
    written.write([pa.RecordBatch.from_pylist([], answer.schema)])  # a result without rows has its columns, too
    for batch in answer.batches():
        written.write([batch])
        rows += batch.num_rows
    written.finish()
    return rows


_WRITERS: Final[Mapping[str, Callable[[Answer, BinaryIO], int]]] = {
    "table": _write_csv,
    "csv": _write_csv,
    "json": _write_json,
    "parquet": lambda answer, file: _write_columns(WrittenParquet(file), answer),
    "arrow": lambda answer, file: _write_columns(WrittenArrow(file), answer),
}
