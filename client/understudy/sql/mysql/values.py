"""Columns and values of results as MySQL has them. It imports pyarrow and mysql-mimic.

Rule: a value arrives whole, or is an error that names its column. What MySQL has no type for is text: JSON for lists,
structs and maps, ISO 8601 for intervals. NaN and infinities stand in their columns as drivers read them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final

import orjson
import pyarrow as pa
from mysql_mimic import ColumnType, ResultColumn
from mysql_mimic.charset import CharacterSet

from understudy.sql.cells import json_of
from understudy.sql.errors import SqlError
from understudy.sql.names import identifier

MAX_ROW_BYTES: Final = 8 * 1024 * 1024
"""Size of a row above which it is refused: a packet of the protocol has less than 16 MiB."""

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  # MySQL's have no zone; ours are in UTC
Convert = Callable[[pa.Array], list[Any]]


class ResultColumns:
    """The columns of a result: what is said of them, and how their values are written."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names: list[str] = schema.names
        kinds = [_kind(each.type) for each in schema]
        self.described: list[Any] = [make(name) for name, (make, _) in zip(self._names, kinds, strict=True)]
        self._converts = [convert for _, convert in kinds]

    def rows(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        """Return the rows of a batch. Raises SqlError for a value that has no form in MySQL."""
        columns = [self._converted(at, array) for at, array in enumerate(batch.columns)]
        rows = list(zip(*columns, strict=True)) if columns else []
        if batch.nbytes > MAX_ROW_BYTES:
            for row in rows:
                _require_room(row)
        return rows

    def _converted(self, at: int, array: pa.Array) -> list[Any]:
        try:
            return self._converts[at](array)
        except (ValueError, OverflowError, pa.ArrowException) as error:
            what = f"a value of the column {self._names[at]} has no form in MySQL: {error}"
            fix = f"Ask for it as text: CAST({identifier(self._names[at])} AS CHAR)"
            raise SqlError(what, where="SQL", fix=fix) from None


def _require_room(row: Sequence[Any]) -> None:
    size_bytes = sum(len(each) for each in row if isinstance(each, (str, bytes)))
    if size_bytes * 2 > MAX_ROW_BYTES * 3:
        what = f"a row has {size_bytes} characters, and a packet of MySQL has less than 16 MiB"
        raise SqlError(what, where="SQL", fix="Leave out long columns, or export the store")


def _column(kind: Any, **given: Any) -> Callable[[str], Any]:
    return lambda name: ResultColumn(name, kind, **given)


def _kind(arrow_type: pa.DataType) -> tuple[Callable[[str], Any], Convert]:
    for is_kind, make, convert in _KINDS:
        if is_kind(arrow_type):
            return make, convert
    return _column(ColumnType.VAR_STRING), _texts


def _plain(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _real_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"


def _floats(array: pa.Array) -> list[Any]:
    """Return the shortest texts of numbers of 32 bits: as Python's numbers they have digits of noise."""
    texts = array.cast(pa.string()).to_pylist()
    return [each if each is None else _FLOAT_WORDS.get(each, each) for each in texts]


def _decimals(array: pa.Array) -> list[Any]:
    return [None if each is None else format(each, "f") for each in array.to_pylist()]


def _big_numbers(array: pa.Array) -> list[Any]:
    return [None if each is None else str(each) for each in array.to_pylist()]


def _dates(array: pa.Array) -> list[Any]:
    return [None if each is None else _day(each) for each in array.cast(pa.int32()).to_pylist()]


def _day(days: int) -> date:
    try:
        return date(1970, 1, 1) + timedelta(days=days)
    except OverflowError:
        raise ValueError("its year is not of four digits") from None


def _moments(array: pa.Array) -> list[Any]:
    micros = array.cast(pa.timestamp("us", array.type.tz), safe=False).cast(pa.int64()).to_pylist()
    return [None if each is None else _moment(each) for each in micros]


def _moment(micros: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise ValueError("its year is not of four digits") from None


def _times(array: pa.Array) -> list[Any]:
    found = [each.value if each.is_valid else None for each in array.cast(pa.time64("us"))]
    return [None if each is None else timedelta(microseconds=each) for each in found]


def _texts(array: pa.Array) -> list[Any]:
    found = map(json_of, array)
    return [each if each is None or isinstance(each, str) else orjson.dumps(each).decode() for each in found]


def _documents(array: pa.Array) -> list[Any]:
    return [orjson.dumps(json_of(each)).decode() if each.is_valid else None for each in array]


def _time_text(column: Any, value: timedelta) -> bytes:
    minutes, seconds = divmod(value.seconds, 60)
    micros = f".{value.microseconds:06}" if value.microseconds else ""
    return f"{minutes // 60 + value.days * 24:02}:{minutes % 60:02}:{seconds:02}{micros}".encode()


def _moment_text(column: Any, value: datetime) -> bytes:
    return value.isoformat(" ").encode()


_FLOAT_WORDS: Final = {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_NEW_FLOAT: Final = _column(ColumnType.FLOAT, binary_encoder=lambda _, value: struct.pack("<f", float(value)))
_NEW_DOUBLE: Final = _column(ColumnType.DOUBLE, text_encoder=lambda _, value: _real_text(value).encode())
_KINDS: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[str], Any], Convert]]] = (
    (pa.types.is_boolean, _column(ColumnType.TINY), _plain),
    (pa.types.is_uint64, _column(ColumnType.NEWDECIMAL), _big_numbers),
    (pa.types.is_integer, _column(ColumnType.LONGLONG), _plain),
    (pa.types.is_float32, _NEW_FLOAT, _floats),
    (pa.types.is_floating, _NEW_DOUBLE, _plain),
    (pa.types.is_decimal, _column(ColumnType.NEWDECIMAL), _decimals),
    (lambda each: pa.types.is_string(each) or pa.types.is_large_string(each), _column(ColumnType.VAR_STRING), _plain),
    (
        lambda each: pa.types.is_binary(each) or pa.types.is_large_binary(each),
        _column(ColumnType.BLOB, character_set=CharacterSet.binary),
        _plain,
    ),
    (pa.types.is_date32, _column(ColumnType.DATE), _dates),
    (pa.types.is_timestamp, _column(ColumnType.DATETIME, text_encoder=_moment_text), _moments),
    (pa.types.is_time, _column(ColumnType.TIME, text_encoder=_time_text), _times),
    (pa.types.is_nested, _column(ColumnType.JSON), _documents),
)


def batched(rows: Sequence[tuple[Any, ...]], number: int) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Yield so many rows at once."""
    for at in range(0, len(rows), number):
        yield rows[at : at + number]
