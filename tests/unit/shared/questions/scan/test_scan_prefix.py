"""A prefix of some key columns is sought where the bytes of rows allow it, and then finds exactly its rows (Q6)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.questions.scan.requests import MAX_LATER_COLUMNS, KeyPrefix, parse_prefix
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    Field,
    LongType,
    SparkType,
    StringType,
    StructType,
    TimestampType,
)

WINDOW = StructType((Field("start", TimestampType()), Field("end", TimestampType())))


def key_of(*types: SparkType) -> KeyCodec:
    return KeyCodec(StructType(tuple(Field(f"c{at}", each) for at, each in enumerate(types))))


def sought(codec: KeyCodec, values: Sequence[object]) -> KeyPrefix:
    return parse_prefix(codec, values, partitions=3)


LONGS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 1, 256]))
KEYS = st.tuples(LONGS, st.sampled_from([None, False, True]), st.sampled_from([None, "", "a", "x" * 40]))


@given(st.lists(KEYS, min_size=1, max_size=30), st.integers(1, 2))
def test_the_rows_that_begin_as_a_prefix_says_are_exactly_those_that_have_it(
    keys: list[tuple[object, ...]], count: int
) -> None:
    codec = key_of(LongType(), BooleanType(), StringType())
    prefix = sought(codec, list(keys[0][:count]))
    assert prefix.rows is not None
    for key in keys:
        assert codec.encode(key).startswith(prefix.rows.starts) is prefix.matches(key)
        assert prefix.matches(key) is (key[:count] == keys[0][:count])


@pytest.mark.parametrize(
    "types",
    [
        pytest.param((StringType(), LongType()), id="text"),
        pytest.param((WINDOW, LongType()), id="window"),
        pytest.param((DecimalType(38, 2), LongType()), id="wide decimal"),
        pytest.param((DoubleType(), LongType()), id="float, which may be stored as either zero"),
        pytest.param((LongType(), *[LongType()] * (MAX_LATER_COLUMNS + 1)), id="too many later columns"),
    ],
)
def test_a_prefix_is_not_sought_where_rows_of_other_keys_lie_between_its_own(types: tuple[SparkType, ...]) -> None:
    values: dict[type[SparkType], object] = {StringType: "a", DecimalType: "1.50", DoubleType: 0.5, LongType: 1}
    value = values.get(type(types[0]), {"start": "2024-01-01T00:00:00Z", "end": "2024-01-01T00:10:00Z"})
    assert sought(key_of(*types), [value]).rows is None
