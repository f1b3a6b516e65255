"""docs/client-types.md: its examples run, one after the other, and give what it says of them."""

from __future__ import annotations

import json
import re
import sys
from typing import Any
from urllib import request

import pytest
from tests.support.repository import ROOT
from tests.support.typed.entries import entry_of, struct

from understudy_shared.spark import types as spark
from understudy_shared.spark.types import StructType

DOCUMENT = (ROOT / "docs" / "client-types.md").read_text()
WINDOW = struct(start=spark.TimestampType(), end=spark.TimestampType())
VALUE = StructType(
    (spark.Field("flights", spark.LongType(), nullable=False), spark.Field("late_minutes", spark.DecimalType(10, 2)))
)
SCHEMA = entry_of(VALUE, struct(origin=spark.StringType(), window=WINDOW))
BOUNDS = {"start": "2013-01-01T05:00:00.000000Z", "end": "2013-01-01T06:00:00.000000Z"}
ROWS = [{"key": {"origin": "JFK", "window": BOUNDS}, "value": {"flights": 3, "late_minutes": "12.30"}}]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the examples define."""
    monkeypatch.setattr(request, "urlopen", lambda url: url)
    monkeypatch.setattr(json, "load", lambda url: SCHEMA)
    monkeypatch.setitem(sys.modules, "client_types_document", type(sys)("client_types_document"))
    found: dict[str, Any] = sys.modules["client_types_document"].__dict__
    found["rows"] = ROWS
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL):
        exec(block, found)
    return found


def test_the_examples_run(names: dict[str, Any]) -> None:
    binding = names["binding"]
    assert binding.key_columns(binding.key(ROWS[0]["key"])) == ROWS[0]["key"]
    assert binding.value(ROWS[0]["value"]) == names["Delays"](3, names["Decimal"]("12.30"))
    assert names["table"].column_names == ["origin", "window", "flights", "late_minutes"]
