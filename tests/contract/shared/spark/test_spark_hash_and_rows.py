"""Our UnsafeRow bytes, hashes and normal keys against those of Spark itself, for generated values of every type."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.spark.values import same

from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.murmur3 import compile_row_hash
from understudy_shared.spark.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    Field,
    FloatType,
    IntType,
    LongType,
    MapType,
    ShortType,
    SparkType,
    StringType,
    StructType,
    TimestampNtzType,
    TimestampType,
    TimeType,
    VoidType,
    YearMonthIntervalType,
    parse_schema,
)
from understudy_shared.spark.unsafe_row import compile_row_decoder, compile_row_encoder

ROWS = 200
PAIR = StructType((Field("a", LongType()), Field("b", StringType())))
DEEP = StructType((Field("when", TimestampType()), Field("tags", ArrayType(StringType())), Field("pair", PAIR)))

GROUPS: dict[str, tuple[SparkType, ...]] = {
    "integers": (BooleanType(), ByteType(), ShortType(), IntType(), LongType(), VoidType()),
    "floats": (FloatType(), DoubleType()),
    "decimals": (DecimalType(10, 2), DecimalType(18, 0), DecimalType(19, 4), DecimalType(38, 18), DecimalType(38, 0)),
    "text": (StringType(), BinaryType(), StringType()),
    "dates": (DateType(), TimestampType(), TimestampNtzType(), TimeType()),
    "intervals": (YearMonthIntervalType(), DayTimeIntervalType(), CalendarIntervalType()),
    "arrays": (
        ArrayType(BooleanType()),
        ArrayType(ShortType()),
        ArrayType(FloatType()),
        ArrayType(DecimalType(12, 3)),
        ArrayType(DecimalType(30, 3)),
        ArrayType(StringType()),
        ArrayType(TimestampType()),
        ArrayType(CalendarIntervalType()),
        ArrayType(ArrayType(LongType())),
        ArrayType(VoidType()),
    ),
    "structs": (
        PAIR,
        DEEP,
        StructType((Field("w", DecimalType(38, 0)), Field("i", CalendarIntervalType()))),
        ArrayType(PAIR),
    ),
    "maps": (
        MapType(StringType(), LongType()),
        MapType(IntType(), ArrayType(StringType())),
        MapType(DecimalType(25, 1), PAIR),
    ),
    "wide": tuple([LongType(), StringType(), DecimalType(20, 1)] * 23),
}


@dataclass
class Values:
    """Random values of a type, with the edges that hashes and bytes trip over. Repeatable by its seed."""

    null_share: float = 0.15
    random: random.Random = field(default_factory=lambda: random.Random(42))

    def row(self, types: tuple[SparkType, ...]) -> tuple[Any, ...]:
        """Calendar intervals are never null in a row: Spark leaves whatever was there before in their 16 bytes."""
        return tuple(self.value(t) if isinstance(t, CalendarIntervalType) else self.nullable(t) for t in types)

    def nullable(self, spark_type: SparkType) -> Any:
        return (
            None
            if self.random.random() < self.null_share or isinstance(spark_type, VoidType)
            else self.value(spark_type)
        )

    def value(self, spark_type: SparkType) -> Any:
        match spark_type:
            case StructType(fields):
                return self.row(tuple(part.type for part in fields))
            case ArrayType(element):
                return [self.nullable(element) for _ in range(self.random.choice((0, 1, 3, 9, 70)))]
            case MapType(key, value):
                keys = list(dict.fromkeys(self.value(key) for _ in range(self.random.randrange(6))))
                return [(key, self.nullable(value)) for key in keys]
            case BooleanType():
                return self.random.random() < 0.5
            case ByteType() | ShortType() | IntType() | LongType():
                return self.integer(spark_type.BITS)
            case FloatType():
                return struct.unpack("<f", struct.pack("<f", self.float(1e38)))[0]
            case DoubleType():
                return self.float(1e300)
            case DecimalType(precision, scale):
                digits = self.random.randint(0, precision)
                return Decimal(f"{self.random.choice((-1, 1)) * self.random.randrange(10**digits)}E{-scale}")
            case _:
                return self.other(spark_type)

    def other(self, spark_type: SparkType) -> Any:
        match spark_type:
            case StringType():
                return "".join(self.random.choices("aZ0 é日😀\0\x7f", k=self.random.randrange(12)))
            case BinaryType():
                return self.random.randbytes(self.random.randrange(12))
            case DateType():
                return self.random.randint(-800_000, 3_000_000)
            case TimestampType() | TimestampNtzType():
                return self.random.choice((0, -1, self.random.randint(-(10**17), 3 * 10**17)))
            case TimeType():
                return self.random.randrange(86_400_000_000) * 1000
            case YearMonthIntervalType():
                return self.integer(31)
            case DayTimeIntervalType():
                return self.random.randint(-(10**17), 10**17)
            case _:
                return self.integer(31), self.integer(31), self.random.randint(-(10**15), 10**15)

    def integer(self, bits: int) -> int:
        limit = 1 << bits - 1
        return self.random.choice((-limit, -1, 0, limit - 1, self.random.randrange(-limit, limit)))

    def float(self, limit: float) -> float:
        edges = (0.0, -0.0, math.nan, math.inf, -math.inf)
        return self.random.choice((*edges, self.random.uniform(-1, 1), self.random.uniform(-limit, limit)))


@pytest.mark.parametrize("group", GROUPS)
def test_bytes_and_hashes_are_those_of_spark(spark: SparkSession, group: str) -> None:
    types = GROUPS[group]
    values = Values()
    rows = [values.row(types) for _ in range(ROWS)]
    frame = carried(spark, types, rows)
    schema = parse_schema(frame.schema.json())
    assert [column.type for column in schema.fields] == list(types)

    data = unsafe_rows(frame)
    encode, decode, show = compile_row_encoder(schema), compile_row_decoder(schema), compile_json_printer(schema)
    for row, spark_bytes in zip(rows, data, strict=True):
        assert same(decode(spark_bytes), row)
        assert encode(row) == spark_bytes
        assert list(show(spark_bytes)) == [column.name for column in schema.fields]

    single = [f"hash({column.name})" for column in schema.fields]
    hashed = frame.selectExpr(*single, f"hash({', '.join(column.name for column in schema.fields)})").collect()
    hash_one = [compile_row_hash(StructType((column,))) for column in schema.fields]
    hash_all = compile_row_hash(schema)
    for row, of_spark in zip(rows, hashed, strict=True):
        ours = [hash_column((value,)) for hash_column, value in zip(hash_one, row, strict=True)]
        assert [*ours, hash_all(row)] == list(of_spark), row


@pytest.mark.parametrize(
    "types",
    [
        (DoubleType(), ArrayType(FloatType()), StructType((Field("f", FloatType()),))),
        (MapType(StringType(), DoubleType()),),
        (MapType(DecimalType(25, 1), LongType()), MapType(BinaryType(), LongType())),
        (MapType(StructType((Field("a", IntType()), Field("b", StringType()))), LongType()),),
        (MapType(DoubleType(), LongType()),),
    ],
    ids=["floats", "string map", "decimal map", "struct map", "double map"],
)
def test_grouping_keys_are_normalised_as_spark_does(spark: SparkSession, types: tuple[SparkType, ...]) -> None:
    # Spark's mapsort turns a null number in a map into 0, so maps go without nulls here.
    values = Values(null_share=0.0 if isinstance(types[0], MapType) else 0.15)
    rows = [values.row(types) for _ in range(40)]
    frame = carried(spark, types, rows)
    keys = set(unsafe_rows(frame.groupBy(*frame.columns).count().drop("count")))
    codec = KeyCodec(parse_schema(frame.schema.json()))
    as_sent = compile_row_encoder(codec.key)
    assert {codec.encode(codec.parse_json(list(codec.to_json(as_sent(row)).values()))) for row in rows} == keys


def test_a_null_calendar_interval_is_read_whatever_spark_left_in_its_place(spark: SparkSession) -> None:
    source = "SELECT if(id = 1, NULL, make_interval(0, 0, 0, int(id))) AS i, id FROM range(3)"
    frame = spark.sql(source)
    decode = compile_row_decoder(parse_schema(frame.schema.json()))
    assert [decode(data) for data in unsafe_rows(frame)] == [((0, 0, 0), 0), (None, 1), ((0, 2, 0), 2)]


def test_strings_that_are_not_utf8_keep_their_bytes(spark: SparkSession) -> None:
    frame = spark.sql("SELECT cast(X'61FF62' AS string) AS s")
    (data,) = unsafe_rows(frame)
    codec = KeyCodec(parse_schema(frame.schema.json()))
    row = codec.parse_json(codec.to_json(data))
    assert codec.encode(row) == data
    assert compile_row_hash(codec.key)(row) == frame.selectExpr("hash(s)").collect()[0][0]


def unsafe_rows(frame: Any) -> list[bytes]:
    plan = frame._jdf.queryExecution().executedPlan()
    return [bytes(row.getBytes()) for row in plan.executeCollect()]


def carried(spark: SparkSession, types: tuple[SparkType, ...], rows: list[tuple[Any, ...]]) -> Any:
    """A frame of these rows: they travel as types that PySpark carries exactly, and SQL makes the real ones of them."""
    carrier = ", ".join(f"c{index} {carrier_type(spark_type)}" for index, spark_type in enumerate(types))
    frame = spark.createDataFrame([to_carrier(row) for row in rows], carrier, verifySchema=False)
    return frame.selectExpr(*(f"{from_carrier(t, f'c{index}')} AS c{index}" for index, t in enumerate(types)))


def to_carrier(value: Any) -> Any:
    return bytearray(value) if isinstance(value, bytes) else value


def carrier_type(spark_type: SparkType) -> str:
    match spark_type:
        case StructType(fields):
            return f"struct<{','.join(f'{part.name}:{carrier_type(part.type)}' for part in fields)}>"
        case ArrayType(element):
            return f"array<{carrier_type(element)}>"
        case MapType(key, value):
            return f"array<struct<k:{carrier_type(key)},v:{carrier_type(value)}>>"
        case DateType() | YearMonthIntervalType():
            return "int"
        case TimestampType() | TimestampNtzType() | TimeType() | DayTimeIntervalType():
            return "bigint"
        case CalendarIntervalType():
            return "struct<m:int,d:int,us:bigint>"
        case LongType():
            return "bigint"
        case ByteType():
            return "tinyint"
        case ShortType():
            return "smallint"
        case _:
            return spark_type.name


def from_carrier(spark_type: SparkType, source: str, depth: int = 0) -> str:
    item = f"x{depth}"
    match spark_type:
        case StructType(fields):
            parts = ", ".join(f"'{p.name}', {from_carrier(p.type, f'{source}.{p.name}', depth)}" for p in fields)
            return f"if({source} IS NULL, NULL, named_struct({parts}))"
        case ArrayType(element):
            return f"transform({source}, {item} -> {from_carrier(element, item, depth + 1)})"
        case MapType(key, value):
            entry = (
                f"struct({from_carrier(key, item + '.k', depth + 1)}, {from_carrier(value, item + '.v', depth + 1)})"
            )
            return f"map_from_entries(transform({source}, {item} -> {entry}))"
        case _:
            return CONVERSIONS.get(type(spark_type), "{0}").format(source)


EXACT_SECONDS = "cast(cast({0} AS decimal(20,0)) / 1000000 AS decimal(18,6))"
EXACT_INTERVAL = f"make_interval(0, {{0}}.m, 0, {{0}}.d, 0, 0, {EXACT_SECONDS.format('{0}.us')})"
CONVERSIONS: dict[type[SparkType], str] = {
    DateType: "date_from_unix_date({0})",
    TimestampType: "timestamp_micros({0})",
    TimestampNtzType: "cast(timestamp_micros({0}) AS timestamp_ntz)",
    TimeType: "time_from_micros(cast({0} / 1000 AS bigint))",
    YearMonthIntervalType: "make_ym_interval(0, {0})",
    DayTimeIntervalType: f"make_dt_interval(0, 0, 0, {EXACT_SECONDS})",
    CalendarIntervalType: f"if({{0}} IS NULL, NULL, {EXACT_INTERVAL})",
}


@pytest.fixture(scope="module", autouse=True)
def permissive_types(spark: SparkSession) -> Iterator[None]:
    """Spark hides TIME behind a switch, and hashes maps only with another."""
    switches = ("spark.sql.timeType.enabled", "spark.sql.legacy.allowHashOnMapType")
    for switch in switches:
        spark.conf.set(switch, "true")
    yield
    for switch in switches:
        spark.conf.unset(switch)
