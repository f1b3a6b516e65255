"""A key with a null that pandas had Spark keep under NaN is found in the partition of the null, or not told apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from understudy_node.stores.finder import Found
from understudy_node.stores.lookup import FindingReader
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.reads.bounds import EVERYTHING
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import Field, StringType, StructType

CODEC = KeyCodec(StructType((Field("name", StringType()),)), is_normalised=False)
FOUND, PREFIX = Found(b'"found":true,'), b"\x00"


class Kept:
    """A finder of the keys that are kept."""

    def __init__(self, *names: str | None) -> None:
        self._kept = {PREFIX + CODEC.encode((name,)) for name in names}

    def find(self, view: object, stored: bytes, selection: object) -> Found | None:
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
