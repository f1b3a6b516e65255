"""A key of a map is a grouping key alone, or with a user key; both are placed by the grouping key, and told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.errors import BadKeyError
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.store_keys import MapKeyCodec, is_of_whole_map
from understudy_shared.spark.types import DoubleType, Field, LongType, StringType, StructType

GROUPING = (Field("word", StringType()), Field("d", DoubleType()))
KEY = StructType((*GROUPING, Field("day", LongType())))
NAMES = ("word", "d", "day")
codec = MapKeyCodec(KEY, names=NAMES, num_hash_columns=2, is_normalised=False)
plain = KeyCodec(StructType(GROUPING), names=NAMES[:2], is_normalised=False)
TEXTS, DOUBLES = st.none() | st.text(max_size=12), st.none() | st.sampled_from([0.0, -0.0, 1.5, "NaN"])
DAYS = st.none() | st.integers(-(2**63), 2**63 - 1)


@given(word=TEXTS, d=DOUBLES, day=DAYS, partitions=st.integers(1, 9))
def test_both_forms_are_in_the_partition_of_the_grouping_key(
    word: str | None, d: object, day: int | None, partitions: int
) -> None:
    grouping = plain.parse_json([word, d])
    for key in ([word, d], [word, d, day], {"d": d, "word": word}, {"day": day, "word": word, "d": d}):
        row = codec.parse_json(key)
        encoded = codec.encode(row)
        assert codec.partition(row, partitions) == plain.partition(grouping, partitions)
        assert codec.place(encoded, partitions) == plain.partition(grouping, partitions)
        assert is_of_whole_map(encoded) == (len(key) == 2)
        shown = {"word": word, "d": d} if len(key) == 2 else {"word": word, "d": d, "day": day}
        assert codec.to_json(encoded) == shown


@given(word=TEXTS, d=DOUBLES, day=DAYS)
def test_no_two_keys_have_the_same_bytes(word: str | None, d: object, day: int | None) -> None:
    assert codec.encode(codec.parse_json([word, d])) != codec.encode(codec.parse_json([word, d, day]))


def test_a_path_has_a_segment_for_each_column_of_either_form() -> None:
    assert codec.parse_segments(["a", "1.5"]) == ("a", 1.5)
    assert codec.parse_segments(["a", "1.5", "7"]) == ("a", 1.5, 7)
    with pytest.raises(BadKeyError, match="takes 3"):
        codec.parse_segments(["a"])
    with pytest.raises(BadKeyError, match="4 path segments"):
        codec.parse_segments(["a", "1.5", "7", "8"])


@given(st.binary(max_size=80))
def test_no_bytes_of_a_hop_are_a_failure(encoded: bytes) -> None:
    codec.place(encoded, 3)
