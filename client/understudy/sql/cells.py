"""The values of results as JSON, as the API writes them. pyarrow's scalars come in; nothing is imported of it."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from understudy_shared.spark.temporal import date_text, day_time_text, time_text, timestamp_ntz_text, timestamp_text

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


def _timestamp(scalar: Any) -> str:
    unit = scalar.type.unit
    micros = scalar.value // 1_000 if unit == "ns" else scalar.value * _MICROS[unit]
    return (timestamp_text if scalar.type.tz else timestamp_ntz_text)(micros)


def _time(scalar: Any) -> str:
    return time_text(scalar.value if scalar.type.unit == "ns" else scalar.value * _MICROS[scalar.type.unit] * 1_000)


def _duration(scalar: Any) -> str:
    return day_time_text(
        scalar.value // 1_000 if scalar.type.unit == "ns" else scalar.value * _MICROS[scalar.type.unit]
    )


def _interval(scalar: Any) -> str:
    """Print an interval of DuckDB, which has months, days and a time, as ISO 8601."""
    months, days, nanos = scalar.as_py()
    text = day_time_text(nanos // 1_000) if nanos or not (months or days) else ""
    said = f"P{f'{months}M' if months else ''}{f'{days}D' if days else ''}"
    return text if said == "P" else said + text.removeprefix("P")


def _struct(scalar: Any) -> dict[str, Any]:
    return {name: json_of(value) for name, value in scalar.items()}


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
    "DurationScalar": _duration,
    "MonthDayNanoIntervalScalar": _interval,
    "StructScalar": _struct,
    "MapScalar": _map,
    **dict.fromkeys(("ListScalar", "LargeListScalar", "FixedSizeListScalar"), _list),
}
