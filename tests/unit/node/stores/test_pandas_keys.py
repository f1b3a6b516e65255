"""A key with nulls is found where pandas had Spark keep it, in the partition of the null, or is not told apart."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from understudy_node.stores.finder import FoundMembers
from understudy_node.stores.lookup import FindingReader, as_pandas_keeps
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.reads.bounds import EVERYTHING
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


CODEC = KeyCodec(StructType((Field("name", StringType()),)), is_normalised=False)
FOUND, PREFIX = FoundMembers(b'"found":true,'), b"\x00"


class Kept:
    """A finder of the keys that are kept."""

    def __init__(self, *names: str | None) -> None:
        self._kept = {PREFIX + CODEC.encode((name,)) for name in names}

    def find(self, view: object, stored: bytes, selection: object) -> FoundMembers | None:
        return FOUND if stored in self._kept else None


def find(name: str | None, kept: Kept, *, partitions: int, operator: str = "transformWithStateInPySparkExec") -> object:
    store = SimpleNamespace(codec=CODEC, name="seen", operator_name=operator)
    reader = cast(Any, SimpleNamespace(store=store, row_prefix=PREFIX, finder=kept, partitions=partitions, replicas={}))
    reader._find_null = lambda *given: FindingReader._find_null(reader, *given)
    stored, partition = PREFIX + CODEC.encode((name,)), CODEC.partition((name,), partitions)
    return FindingReader._find(reader, stored, cast(Any, None), partition, EVERYTHING)


APART = next(count for count in range(2, 50) if CODEC.partition((None,), count) != CODEC.partition(("NaN",), count))


def test_a_null_that_is_kept_as_nan_is_found() -> None:
    assert find(None, Kept("NaN"), partitions=APART) is FOUND


def test_the_text_nan_in_the_partition_of_the_null_may_be_either_and_that_is_said() -> None:
    with pytest.raises(UnderstudyError, match="cannot be told"):
        find(None, Kept("NaN"), partitions=1)
    assert find("NaN", Kept("NaN"), partitions=1) is FOUND
