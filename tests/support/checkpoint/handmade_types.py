"""A checkpoint made by hand: `op0` with a column of each type, awkward values among them; `op1` with awkward names."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.described import schema_json
from tests.support.checkpoint.handmade import HandmadeCheckpoint

from understudy_shared.spark import types as t
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import Field, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

ROWS = 300
_DAY = 86_400_000_000


def _struct(**types: t.SparkType) -> StructType:
    return StructType(tuple(Field(name, each) for name, each in types.items()))


KEY = _struct(k=t.StringType(), n=t.IntType())
WINDOW = _struct(start=t.TimestampType(), end=t.TimestampType())
VALUE = _struct(
    b=t.BooleanType(),
    y=t.ByteType(),
    s=t.ShortType(),
    i=t.IntType(),
    l=t.LongType(),
    f=t.FloatType(),
    d=t.DoubleType(),
    small=t.DecimalType(10, 2),
    big=t.DecimalType(38, 4),
    txt=t.StringType(),
    raw=t.BinaryType(),
    day=t.DateType(),
    ts=t.TimestampType(),
    ntz=t.TimestampNtzType(),
    w=WINDOW,
    pair=_struct(x=t.DoubleType(), tag=t.StringType()),
    tags=t.ArrayType(t.StringType()),
    m=t.MapType(t.StringType(), t.LongType()),
    took=t.DayTimeIntervalType(),
)
NAMED_KEY = _struct(n=t.LongType(), key=t.StringType())
NAMED_VALUE = _struct(n=t.LongType(), Group=t.StringType(), value=t.LongType(), N=t.LongType())

FLOATS = (0.0, -0.0, 1.5, -2.25, math.nan, math.inf, -math.inf, 1e300, 0.1)
TEXTS = ("", "a", "b", "B", "ä", "abc", "abd", "abc%", "x'y", "Zz", "\U0001f600")


def row_of(at: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the key and the value of a row; a tenth of all columns is null."""
    rng = random.Random(at)

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.1 else value

    start = maybe(1_356_998_400_000_000 + at % 7 * _DAY)
    number = rng.choice(FLOATS)
    value = (
        *(
            maybe(each)
            for each in (rng.random() < 0.5, at % 5 - 2, at % 11, at % 13, rng.choice((-(2**63), 2**53 + 1, at % 9)))
        ),
        maybe(number if abs(number) < 1e30 or not math.isfinite(number) else 0.1),
        maybe(rng.choice(FLOATS)),
        maybe(Decimal(at % 17 - 8).scaleb(-2)),
        maybe(Decimal(rng.choice((10**30 + at % 3, at % 4))).scaleb(-4)),
        maybe(rng.choice(TEXTS)),
        maybe(bytes([at % 3, 0, at % 2])),
        maybe(15_706 + at % 6 - 3),
        maybe(1_356_998_400_000_000 + at % 10 * 3_600_000_000),
        maybe(1_356_998_400_000_000 + at % 8 * 1_000),
        maybe((start, None if start is None else start + _DAY)),
        maybe((maybe(rng.choice(FLOATS)), maybe(rng.choice(TEXTS)))),
        maybe([maybe(each) for each in TEXTS[: at % 4]]),
        maybe([[text, maybe(at)] for text in TEXTS[1 : 1 + at % 3]]),
        maybe(at % 5 * 1_500_000),
    )
    return (None if at == 7 else f"k{at % 60}" if at % 50 else TEXTS[at // 50], None if at == 11 else at), value


@dataclass(frozen=True, slots=True)
class HandmadeTypes(HandmadeCheckpoint):
    """Every version has the same rows, but for the long column `value` of `op1`, which is the version."""

    def create(self) -> HandmadeTypes:
        """Write all of a checkpoint but its batches."""
        self.write("metadata", b'{"id":"11111111-2222-4333-8444-555555555555"}')
        for operator, (key, value) in enumerate(((KEY, VALUE), (NAMED_KEY, NAMED_VALUE))):
            self.write(f"state/{operator}/_metadata/metadata", spark.operator_metadata(operator))
            schema = spark.chunked(schema_json(key)) + spark.chunked(schema_json(value))
            self.write(f"state/{operator}/0/_metadata/schema", spark.utf("v2") + schema)
        return self

    def write_state(self, version: int) -> None:
        """The state files of a version, and its offsets: everything before the commit."""
        self.write(f"offsets/{version - 1}", spark.offsets(provider=self.provider, partitions=self.partitions))
        named = [((at, f"key-{at}"), (at * 10, "ab"[at % 2], version, at)) for at in range(20)]
        typed = [row_of(at) for at in range(ROWS)]
        for operator, key, value, rows in ((0, KEY, VALUE, typed), (1, NAMED_KEY, NAMED_VALUE, named)):
            codec, encode = KeyCodec(key), compile_row_encoder(value)
            for partition in range(self.partitions):
                records = [
                    (codec.encode(of_key), encode(of_value))
                    for of_key, of_value in rows
                    if codec.partition(of_key, self.partitions) == partition
                ]
                self.write(f"state/{operator}/{partition}/{version}.delta", spark.lz4(spark.plain(records)))
