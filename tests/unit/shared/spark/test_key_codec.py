"""Keys of a store: every way to send one, alone or in a batch, leads to the same bytes and the same partition.

Codecs are compiled from source that is made per schema: no name of a column becomes a part of it. Schemas come from
checkpoints, and at routers from catalogues on the bus, which others may be able to write.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support.spark.values import same, schemas_and_rows, struct_of

from understudy_shared.base.errors import BadKeyError
from understudy_shared.base.words import KeyPlacement
from understudy_shared.spark.key_codec import ANY_PARTITION, EncodedKeys, KeyCodec
from understudy_shared.spark.store_keys import MapKeyCodec, is_of_whole_map, key_codec
from understudy_shared.spark.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DoubleType,
    Field,
    IntType,
    LongType,
    MapType,
    ShortType,
    SparkType,
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


GROUPING = (Field("word", StringType()), Field("d", DoubleType()))
KEY = StructType((*GROUPING, Field("day", LongType())))
COLUMN_NAMES = ("word", "d", "day")
map_codec = MapKeyCodec(KEY, names=COLUMN_NAMES, num_hash_columns=2, is_normalised=False)
grouping_codec = KeyCodec(StructType(GROUPING), names=COLUMN_NAMES[:2], is_normalised=False)
TEXTS, DOUBLES = st.none() | st.text(max_size=12), st.none() | st.sampled_from([0.0, -0.0, 1.5, "NaN"])
DAYS = st.none() | st.integers(-(2**63), 2**63 - 1)


@given(word=TEXTS, d=DOUBLES, day=DAYS, partitions=st.integers(1, 9))
def test_both_forms_are_in_the_partition_of_the_grouping_key(
    word: str | None, d: object, day: int | None, partitions: int
) -> None:
    grouping = grouping_codec.parse_json([word, d])
    for key in ([word, d], [word, d, day], {"d": d, "word": word}, {"day": day, "word": word, "d": d}):
        row = map_codec.parse_json(key)
        encoded = map_codec.encode(row)
        assert map_codec.partition(row, partitions) == grouping_codec.partition(grouping, partitions)
        assert map_codec.place(encoded, partitions) == grouping_codec.partition(grouping, partitions)
        assert is_of_whole_map(encoded) == (len(key) == 2)
        shown = {"word": word, "d": d} if len(key) == 2 else {"word": word, "d": d, "day": day}
        assert map_codec.to_json(encoded) == shown


def test_a_path_has_a_segment_for_each_column_of_either_form() -> None:
    assert map_codec.parse_segments(["a", "1.5"]) == ("a", 1.5)
    assert map_codec.parse_segments(["a", "1.5", "7"]) == ("a", 1.5, 7)
    with pytest.raises(BadKeyError, match="takes 3"):
        map_codec.parse_segments(["a"])
    with pytest.raises(BadKeyError, match="4 path segments"):
        map_codec.parse_segments(["a", "1.5", "7", "8"])


@given(st.binary(max_size=80))
def test_no_bytes_of_a_hop_are_a_failure(encoded: bytes) -> None:
    map_codec.place(encoded, 3)


HOSTILE = (
    "'); builtins.exploded = 1 #",
    '"): __import__("builtins").exploded',
    "\n    import builtins; builtins.exploded = 1\n",
    "{f.__globals__}",
    "{x!r:>9999999}",
    "\\",
    "'\\'",
    "\u2028\x00\x85",
    "c0",
    "_0",
)
NAMES = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=30), min_size=1, max_size=4, unique=True)


@given(NAMES)
def test_whatever_columns_are_called_their_names_stay_names(names: list[str]) -> None:
    codec = KeyCodec(struct_of(*[StringType()] * len(names)), names=names)
    key = {name: f"v{number}" for number, name in enumerate(names)}
    row = codec.parse_json(key)
    assert codec.to_json(codec.encode(row)) == key
    columns = codec.key_columns.encode([key], 7)
    assert columns is None or [orjson.loads(each) for each in columns[2]] == [key]
    assert not hasattr(builtins, "exploded")


@given(NAMES)
def test_nor_do_those_of_nested_columns(names: list[str]) -> None:
    inner = StructType(tuple(Field(name, DoubleType()) for name in names))
    codec = KeyCodec(StructType((Field(names[0], inner),)))
    key = dict.fromkeys(names, 0.5)
    row = codec.parse_json([key])
    (printed,) = codec.to_json(codec.encode(row)).values()
    assert isinstance(printed, dict)
    assert list(printed.values()) == [0.5] * len(names)
    assert not hasattr(builtins, "exploded")
