"""Keys of a store: every way to send one leads to the same bytes and the same partition."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support.spark.values import same, schemas_and_rows, struct_of

from understudy_shared.base.errors import BadKeyError
from understudy_shared.base.words import KeyPlacement
from understudy_shared.spark.key_codec import ANY_PARTITION, KeyCodec
from understudy_shared.spark.store_keys import key_codec
from understudy_shared.spark.types import (
    ArrayType,
    DoubleType,
    Field,
    IntType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

WINDOW = StructType((Field("start", TimestampType()), Field("end", TimestampType())))
WINDOWED = StructType((Field("window", WINDOW), Field("tail", StringType())))
HOUR = 3_600_000_000


@given(schemas_and_rows())
def test_a_printed_key_finds_itself(schema_and_row: tuple[StructType, tuple[object, ...]]) -> None:
    schema, row = schema_and_row
    codec = KeyCodec(schema, is_normalised=False)
    data = codec.encode(row)
    printed = orjson.loads(orjson.dumps(codec.to_json(data)))
    assert codec.encode(codec.parse_json(printed)) == data
    assert codec.partition(codec.parse_json(printed), 7) == codec.partition(row, 7)


@given(schemas_and_rows())
def test_a_normalised_key_is_stored_under_its_own_bytes(schema_and_row: tuple[StructType, tuple[object, ...]]) -> None:
    """Normalising twice changes nothing, so what Spark stored normalised is found by its printed form."""
    schema, row = schema_and_row
    codec = KeyCodec(schema)
    once = codec.parse_json(orjson.loads(orjson.dumps(codec.to_json(codec.encode(row)))))
    assert codec.encode(
        codec.parse_json(orjson.loads(orjson.dumps(codec.to_json(codec.encode(once)))))
    ) == codec.encode(once)


@given(schemas_and_rows(), st.integers(1, 9), st.sampled_from([None, 0, 1]))
def test_a_stored_key_gives_its_partition_by_its_bytes_alone(
    schema_and_row: tuple[StructType, tuple[object, ...]], partitions: int, num_hash_columns: int | None
) -> None:
    schema, row = schema_and_row
    assume(num_hash_columns is None or num_hash_columns <= len(schema.fields))
    as_sent = KeyCodec(schema, is_normalised=False, num_hash_columns=num_hash_columns)
    assert as_sent.place(as_sent.encode(row), partitions) == as_sent.partition(row, partitions)
    codec = KeyCodec(schema, num_hash_columns=num_hash_columns)
    stored = codec.parse_json(orjson.loads(orjson.dumps(codec.to_json(codec.encode(row)))))
    assert codec.place(codec.encode(stored), partitions) == codec.partition(stored, partitions)


@given(schemas_and_rows(), st.binary(max_size=80))
def test_bytes_that_are_no_stored_key_have_no_partition(
    schema_and_row: tuple[StructType, tuple[object, ...]], data: bytes
) -> None:
    codec = KeyCodec(schema_and_row[0], is_normalised=False)
    place = codec.place(data, 8)
    assert place is None or 0 <= place < 8
    assert codec.place(codec.encode(schema_and_row[1]) + b"\x00", 8) is None


def test_the_layout_names_all_that_decides_where_a_key_is_and_nothing_else() -> None:
    key = struct_of(StringType(), LongType())
    known = KeyCodec(key)
    others = [
        KeyCodec(key).layout(4),
        KeyCodec(key, num_hash_columns=1).layout(8),
        KeyCodec(key, is_normalised=False).layout(8),
        KeyCodec(struct_of(StringType(), IntType())).layout(8),
    ]
    assert len({known.layout(8), *others}) == 5
    assert KeyCodec(key, names=["a", "b"], num_hash_columns=2).layout(8) == known.layout(8)


@pytest.mark.parametrize("kind", ["value", "map"])
def test_a_key_of_a_scattered_store_may_be_in_any_partition_and_its_layout_is_another(kind: str) -> None:
    key = struct_of(StringType(), StringType())
    hashed, scattered = (
        key_codec(key, kind, names=("a", "b"), num_hash_columns=1, is_normalised=True, placement=placement)
        for placement in KeyPlacement
    )
    row = ("a", "b")
    encoded, home = hashed.encode(row), hashed.partition(row, 8)
    assert [each for each in range(8) if hashed.may_hold(each, encoded, 8)] == [home]
    assert all(scattered.may_hold(each, encoded, 8) for each in range(8))
    assert not scattered.may_hold(home, encoded + b"x", 8)
    assert scattered.partition(row, 8) == ANY_PARTITION
    assert scattered.key_columns.partitions([["a", "b"]], 8) == [ANY_PARTITION]
    assert scattered.layout(8) != hashed.layout(8)
    texts = key_codec(
        struct_of(StringType()),
        "value",
        names=("a",),
        num_hash_columns=None,
        is_normalised=True,
        placement=KeyPlacement.SCATTERED,
    )
    assert texts.key_columns.partitions([["a"], ["b"]], 8) == [ANY_PARTITION, ANY_PARTITION]


def test_an_array_an_object_and_a_path_name_the_same_key() -> None:
    codec = KeyCodec(WINDOWED)
    expected = ((0, HOUR), "N1/é")
    start, end = "1970-01-01T00:00:00Z", "1970-01-01T02:00:00+01:00"
    assert codec.parse_json([[start, end], "N1/é"]) == expected
    assert codec.parse_json({"tail": "N1/é", "window": {"start": start, "end": end}}) == expected
    assert codec.parse_segments([start, end, "N1/é"]) == expected


def test_zeros_and_nans_find_what_spark_grouped_under() -> None:
    codec = KeyCodec(struct_of(DoubleType(), ArrayType(DoubleType())))
    assert codec.encode(codec.parse_json([-0.0, [-0.0, None]])) == codec.encode((0.0, [0.0, None]))
    assert same(codec.parse_json(["NaN", None]), (float("nan"), None))
    one_column = KeyCodec(struct_of(DoubleType()))
    assert one_column.encode(one_column.parse_segments(["-0.0"])) == one_column.encode((0.0,))
    as_sent = KeyCodec(struct_of(DoubleType()), is_normalised=False)
    assert same(as_sent.parse_json([-0.0]), (-0.0,))


def test_map_keys_are_sorted_as_spark_sorts_them() -> None:
    codec = KeyCodec(struct_of(MapType(StringType(), IntType()), MapType(DoubleType(), IntType())))
    row = codec.parse_json([{"é": 1, "za": 2, "ab": 3}, [["NaN", 1], [1.0, 2], [-1.0, 3]]])
    assert row[0] == [("ab", 3), ("za", 2), ("é", 1)]
    assert same(row[1], [(-1.0, 3), (1.0, 2), (float("nan"), 1)])
    nested = KeyCodec(struct_of(MapType(ArrayType(IntType()), IntType())))
    assert nested.parse_json([[[[2], 0], [[None, 1], 1], [[], 2]]]) == ([([], 2), ([None, 1], 1), ([2], 0)],)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (["1970-01-01T00:00:00Z"], "it has 1 values for 2 columns"),
        ({"tail": "a"}, "missing window"),
        ({"tail": "a", "window": None, "tial": "b"}, "unknown tial"),
        ("N14228", "neither an array nor an object"),
        (None, "neither an array nor an object"),
    ],
)
def test_a_key_of_the_wrong_shape_is_refused_with_the_schema(key: object, reason: str) -> None:
    with pytest.raises(BadKeyError, match=reason) as caught:
        KeyCodec(WINDOWED).parse_json(key)
    assert caught.value.where == "columns (window struct<start:timestamp,end:timestamp>, tail string)"
    assert '"text"]' in caught.value.fix
