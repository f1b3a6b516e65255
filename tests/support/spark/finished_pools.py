"""Values of every type that are awkward for an aggregate, and the aggregates that take it: as texts of Spark SQL."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

Values = Callable[[random.Random], list[str]]


@dataclass(frozen=True, slots=True)
class Pool:
    """A type with what its columns are filled from. `takes` are the kinds of aggregates that it has beside `_ANY`."""

    type: str
    values: Values
    takes: frozenset[str]


def aggregates(pool: Pool) -> list[str]:
    """Every aggregate that takes the column `v` of the pool's type; `w` is another one, `o` a double."""
    return [text for kind in ("any", *sorted(pool.takes)) for text in _AGGREGATES[kind]]


_AGGREGATES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "any": (
            *("count(v)", "count(v, w)", "first(v)", "first(v, true)", "last(v)", "last(v, true)", "any_value(v)"),
            *("collect_list(v)", "array_agg(v)", "min_by(v, o)", "max_by(v, o)"),
            *("collect_list(struct(v, o))", "collect_list(array(v))"),
        ),
        "ordered": (
            *("min(v)", "max(v)", "min_by(o, v)", "max_by(o, v)", "max(struct(v, o))", "min(array(v))"),
            *("collect_set(v)", "collect_set(array(v))", "collect_set(struct(v))"),
            *("approx_count_distinct(v)", "approx_count_distinct(v, 0.3)"),
        ),
        "boolean": tuple(f"{name}(v)" for name in ("every", "any", "some", "bool_and", "bool_or", "count_if")),
        "bits": ("bit_and(v)", "bit_or(v)", "bit_xor(v)"),
        "number": (
            *("sum(v)", "try_sum(v)", "avg(v)", "try_avg(v)", "sum(v) FILTER (WHERE o > 0)", "median(v)"),
            *("var_pop(v)", "var_samp(v)", "stddev_pop(v)", "stddev_samp(v)", "skewness(v)", "kurtosis(v)"),
            *("corr(v, w)", "corr(o, v)", "corr(v, 1)", "covar_pop(v, w)", "covar_samp(v, w)"),
            *(f"regr_{name}(v, w)" for name in ("count", "avgx", "avgy", "r2", "slope", "intercept")),
            *(f"regr_{name}(v, w)" for name in ("sxx", "syy", "sxy")),
        ),
        "interval": ("sum(v)", "try_sum(v)", "avg(v)", "try_avg(v)"),
    }
)

WITHOUT_RESULT: Final = frozenset({"median(v)"})
"""Of numbers; of intervals no sum and no average has one."""

_ORDERED, _NUMBER = frozenset({"ordered"}), frozenset({"ordered", "number"})


def _integers(name: str, bits: int) -> Pool:
    def values(chance: random.Random) -> list[str]:
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        drawn = [chance.randint(low, high) for _ in range(8)] + [chance.randint(-100, 100) for _ in range(8)]
        return [f"CAST('{value}' AS {name})" for value in (0, 1, -1, low, high, low + 1, high - 1, *drawn)]

    return Pool(name, values, _NUMBER | {"bits"})


def _floats(name: str, *extremes: str) -> Pool:
    def values(chance: random.Random) -> list[str]:
        drawn = [repr(chance.uniform(-10, 10)) for _ in range(10)]
        drawn += [repr(chance.uniform(-1, 1) * 10 ** chance.randint(-30, 30)) for _ in range(10)]
        drawn += [repr(round(chance.uniform(-100, 100), 2)) for _ in range(10)]
        special = ("NaN", "Infinity", "-Infinity", "0.0", "-0.0", "1.0", "-1.0", "0.1", "1.0E-160", "3.0E-160")
        return [f"CAST('{value}' AS {name})" for value in (*special, *extremes, *drawn)]

    return Pool(name, values, _NUMBER)


def _decimals(precision: int, scale: int) -> Pool:
    name, top = f"decimal({precision},{scale})", 10**precision - 1

    def text(unscaled: int) -> str:
        digits = str(abs(unscaled)).rjust(scale + 1, "0")
        point = len(digits) - scale
        return f"CAST('{'-' if unscaled < 0 else ''}{digits[:point]}.{digits[point:]}' AS {name})"

    def values(chance: random.Random) -> list[str]:
        drawn = [chance.randint(-top, top) for _ in range(12)]
        drawn += [chance.choice((-1, 1)) * chance.randrange(10 ** chance.randint(1, precision)) for _ in range(12)]
        return [text(value) for value in (0, 1, -1, top, -top, top // 2, top // 3, 5 * 10 ** (precision - 1), *drawn)]

    return Pool(name, values, _NUMBER)


def _fixed(name: str, *values: str, takes: frozenset[str] = _ORDERED) -> Pool:
    return Pool(name, lambda _: list(values), takes)


_TIMES: Final = (
    *("timestamp_micros(-9223372036854775808)", "timestamp_micros(9223372036854775807)", "timestamp_micros(-1)"),
    *("timestamp'0001-01-01 00:00:00'", "timestamp'9999-12-31 23:59:59.999999'", "timestamp'1582-10-10 12:00:00'"),
)

POOLS: Final[Mapping[str, Pool]] = MappingProxyType(
    {
        "boolean": _fixed("boolean", "true", "false", takes=_ORDERED | {"boolean"}),
        **{
            name: _integers(name, bits)
            for name, bits in (("tinyint", 8), ("smallint", 16), ("int", 32), ("bigint", 64))
        },
        "float": _floats("float", "1.4E-45", "3.4028235E38", "-3.4028235E38", "16777217"),
        "double": _floats(
            "double", "4.9E-324", "1.7976931348623157E308", "-1.7976931348623157E308", "9007199254740993"
        ),
        **{
            f"decimal-{precision}-{scale}": _decimals(precision, scale)
            for precision, scale in (
                *((1, 0), (5, 2), (7, 7), (8, 3), (9, 2), (11, 2), (12, 4), (15, 0), (18, 4), (19, 0), (20, 10)),
                *((28, 5), (34, 0), (38, 0), (38, 10), (38, 38)),
            )
        },
        "string": _fixed(
            "string",
            *("''", "'a'", "'b'", "'A'", r"'\u0000'", "'日本語é'", "repeat('x', 300)", "CAST(X'FFFE' AS string)"),
            *("' a '", "'\"quoted\"'", "'null'", "'NaN'", "'1'"),
        ),
        "binary": _fixed("binary", "X''", "X'00'", "X'4A'", "X'FFFEFD'", "X'4A4B'", "CAST(repeat('y', 99) AS binary)"),
        "date": _fixed(
            "date",
            *("date'0001-01-01'", "date'1582-10-04'", "date'1582-10-15'", "date'9999-12-31'", "date'1970-01-01'"),
            *("date_from_unix_date(-2147483648)", "date_from_unix_date(2147483647)"),
        ),
        "timestamp": _fixed("timestamp", *_TIMES),
        "timestamp_ntz": _fixed("timestamp_ntz", *(f"CAST({value} AS timestamp_ntz)" for value in _TIMES[2:])),
        "time": _fixed("time(6)", "time'00:00:00'", "time'23:59:59.999999'", "time'12:34:56.789'"),
        "months": _fixed(
            "interval year to month",
            *("make_ym_interval(0, 0)", "make_ym_interval(1, 2)", "make_ym_interval(-1, -2)", "make_ym_interval(0, 1)"),
            takes=_ORDERED | {"interval"},
        ),
        "days": _fixed(
            "interval day to second",
            *("make_dt_interval(0)", "make_dt_interval(1, 2, 3, 4.5)", "make_dt_interval(0, 0, 0, -0.000005)"),
            takes=_ORDERED | {"interval"},
        ),
        "longest-months": _fixed(
            "interval year to month", "make_ym_interval(178956970, 7)", "make_ym_interval(-178956970, -8)"
        ),
        "longest-days": _fixed(
            "interval day to second",
            *("make_dt_interval(106751991, 4, 0, 54.775807)", "make_dt_interval(-106751991, -4, 0, -54.775808)"),
        ),
        "calendar": _fixed(
            "interval", "make_interval(1, 2, 3, 4, 5, 6, 7.8)", "make_interval(-1, -2, 0, -4)", takes=frozenset()
        ),
        "array": _fixed(
            "array<array<double>>",
            *("array(array(1D, -0.0D), null)", "array(array(double('NaN')))", "array()", "array(array(0D, null))"),
        ),
        "binaries": _fixed("array<binary>", "array(X'4A')", "array(X'', null)", "CAST(array() AS array<binary>)"),
        "map": _fixed(
            "map<int,array<string>>",
            *("map(1, array('x', null))", "map(-1, CAST(array() AS array<string>), 2, null)"),
            takes=frozenset(),
        ),
        "words": _fixed("map<string,int>", "map('a', 1)", "map('a', CAST(null AS int), 'b', 2)", takes=frozenset()),
        "struct": _fixed(
            "struct<b:binary,d:double,r:array<struct<x:decimal(20,2),t:timestamp>>>",
            "named_struct('b', X'4A', 'd', -0.0D, 'r', array(named_struct('x', 1.5BD, 't', timestamp_micros(-62135596800000001))))",  # noqa: E501
            "named_struct('b', null, 'd', double('NaN'), 'r', array(null, named_struct('x', null, 't', timestamp_micros(1))))",  # noqa: E501
        ),
        "struct-with-map": _fixed(
            "array<struct<m:map<string,binary>,x:float>>",
            *("array(named_struct('m', map('a', X'4A'), 'x', float('NaN')))", "array(null)"),
            takes=frozenset(),
        ),
    }
)
