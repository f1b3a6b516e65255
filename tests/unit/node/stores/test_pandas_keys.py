"""Keys with nulls, as pandas has Spark keep them."""

from __future__ import annotations

import math

import pytest

from understudy_node.stores.lookup import as_pandas_keeps
from understudy_shared.spark.key_codec import KeyCodec, Row
from understudy_shared.spark.store_keys import MapKeyCodec
from understudy_shared.spark.types import DoubleType, Field, LongType, StringType, StructType

KEY = StructType((Field("name", StringType()), Field("level", DoubleType()), Field("n", LongType())))


def shown(row: Row) -> Row:
    return tuple("nan" if isinstance(value, float) and math.isnan(value) else value for value in row)


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (("a", 1.0, 2), []),
        (("a", 1.0, None), []),
        ((None, 1.0, 2), [("NaN", 1.0, 2)]),
        (("a", None, 2), [("a", "nan", 2)]),
        ((None, None, None), [(None, "nan", None), ("NaN", "nan", None)]),
    ],
)
def test_a_null_text_is_kept_as_nan_by_pandas_3_and_a_null_number_by_each(asked: Row, kept: list[Row]) -> None:
    codec = KeyCodec(KEY, is_normalised=False)
    found = list(as_pandas_keeps(codec, codec.encode(asked)))
    assert [shown(row) for _, row in found] == kept
    assert [shown(codec.decode(encoded)) for encoded, _ in found] == kept


def test_of_a_map_the_grouping_key_alone_comes_from_pandas() -> None:
    codec = MapKeyCodec(KEY, names=("name", "level", "n"), num_hash_columns=1, is_normalised=False)
    ((_, whole),) = as_pandas_keeps(codec, codec.encode((None,)))
    ((_, entry),) = as_pandas_keeps(codec, codec.encode((None, None, 5)))
    assert (whole, entry) == (("NaN",), ("NaN", None, 5))
