"""Keys of a batch, column by column: the same rows, partitions and JSON as key by key."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.values import schemas_and_rows, struct_of

from understudy_shared.spark.key_codec import EncodedKeys, KeyCodec
from understudy_shared.spark.types import (
    BooleanType,
    ByteType,
    DoubleType,
    IntType,
    LongType,
    ShortType,
    SparkType,
    StringType,
    StructType,
)

PARTITIONS = 7
VALUES: dict[SparkType, st.SearchStrategy[object]] = {
    StringType(): st.text(max_size=20),
    BooleanType(): st.booleans(),
    ByteType(): st.integers(-(2**7), 2**7 - 1),
    ShortType(): st.integers(-(2**15), 2**15 - 1),
    IntType(): st.integers(-(2**31), 2**31 - 1),
    LongType(): st.integers(-(2**63), 2**63 - 1),
}
schemas = st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3)
wrong = st.none() | st.integers(-(2**63), 2**64 - 1) | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=3)


def one_by_one(codec: KeyCodec, keys: Sequence[object]) -> EncodedKeys:
    rows = [codec.parse_json(key) for key in keys]
    encoded = [codec.encode(row) for row in rows]
    places = [codec.partition(row, PARTITIONS) for row in rows]
    return EncodedKeys(places, encoded, [orjson.dumps(codec.to_json(data)) for data in encoded])


@given(st.data(), schemas, st.booleans())
def test_plain_keys_are_taken_by_columns_and_become_what_each_alone_becomes(
    data: st.DataObject, kinds: list[SparkType], by_name: bool
) -> None:
    num_hash_columns = data.draw(st.none() | st.integers(0, len(kinds)))
    codec = KeyCodec(struct_of(*kinds), num_hash_columns=num_hash_columns)
    rows = data.draw(st.lists(st.tuples(*(VALUES[kind] for kind in kinds)), min_size=1, max_size=9))
    keys: Sequence[object] = [dict(zip(codec.names, row, strict=True)) if by_name else list(row) for row in rows]
    assert codec.key_columns.encode(keys, PARTITIONS) == one_by_one(codec, keys)


@given(st.data(), schemas)
def test_what_is_taken_by_columns_is_what_each_alone_becomes_whatever_stands_among_the_keys(
    data: st.DataObject, kinds: list[SparkType]
) -> None:
    codec = KeyCodec(struct_of(*kinds))
    cells = [VALUES[kind] | wrong for kind in kinds]
    whole = st.tuples(*cells).map(list) | st.fixed_dictionaries(dict(zip(codec.names, cells, strict=True)))
    keys = data.draw(st.lists(whole | wrong | st.lists(wrong, max_size=4), max_size=4))
    encoded = codec.key_columns.encode(keys, PARTITIONS)
    if encoded is not None:
        assert encoded == one_by_one(codec, keys)


@given(schemas_and_rows())
def test_keys_of_every_other_type_are_left_to_the_codec_or_become_the_same(
    schema_and_row: tuple[StructType, tuple[object, ...]],
) -> None:
    schema, row = schema_and_row
    codec = KeyCodec(schema)
    key = orjson.loads(orjson.dumps(codec.to_json(codec.encode(row))))
    encoded = codec.key_columns.encode([key, key], PARTITIONS)
    if encoded is not None:
        assert encoded == one_by_one(codec, [key, key])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (StringType(), ["a", None]),
        (StringType(), ["a", 1]),
        (StringType(), ["\ud800"]),
        (LongType(), [1, True]),
        (LongType(), [1, 1.0]),
        (LongType(), [1, "1"]),
        (ByteType(), [127, 128]),
        (ByteType(), [-128, -129]),
        (BooleanType(), [True, 1]),
        (DoubleType(), [1.0]),
    ],
    ids=repr,
)
def test_a_column_with_anything_unusual_in_it_is_left_to_the_codec(kind: SparkType, values: list[object]) -> None:
    codec = KeyCodec(struct_of(kind))
    assert codec.key_columns.encode([[value] for value in values], PARTITIONS) is None
