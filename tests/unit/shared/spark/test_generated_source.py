"""Readers and printers are compiled from source that is made per schema: no name of a column becomes a part of it.

Schemas come from checkpoints, and at routers from catalogues on the bus, which others may be able to write.
"""

from __future__ import annotations

import builtins

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.values import struct_of

from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import DoubleType, Field, StringType, StructType

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


@pytest.fixture(autouse=True)
def nothing_explodes() -> None:
    assert not hasattr(builtins, "exploded")


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
