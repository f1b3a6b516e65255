"""`understudy types`: the classes that it prints compile, are typed strictly, and bind to their store (Q56)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.services.canned_server import Canned
from tests.support.services.reading_commands import run
from tests.support.spark.values import SCALAR_TYPES, struct_of
from tests.support.typed.entries import columns_of, entry_of, module_of, struct

from understudy.typed import bind
from understudy_shared.spark import types as spark
from understudy_shared.spark.types import StructType

WINDOW = struct(start=spark.TimestampType(), end=spark.TimestampType())
VALUE = StructType(
    (
        spark.Field("count(1)", spark.LongType(), nullable=False),
        spark.Field("int", spark.ArrayType(struct(a=spark.LongType(), b=spark.MapType(WINDOW, spark.DateType())))),
        spark.Field("class", spark.MapType(spark.LongType(), struct())),
        spark.Field("schema", spark.YearMonthIntervalType()),
        spark.Field("model_name", spark.StringType()),
        spark.Field("_1", spark.CalendarIntervalType()),
        spark.Field("a b\n\"'\\", spark.StringType()),
        spark.Field("a_b", spark.DecimalType(10, 2)),
        *struct_of(*SCALAR_TYPES).fields,
    )
)


def entry(**others: Any) -> dict[str, Any]:
    """A store with every type, and names that Python has no identifiers for."""
    return entry_of(VALUE, struct(window=WINDOW, origin=spark.StringType()), **others)


def printed(entry: dict[str, Any], *flags: str) -> str:
    result, asked = run(["types", "flights", *flags], [Canned(json.dumps(entry).encode())])
    assert asked[0][0] == "GET /v1/stores/flights"
    return result.stdout


@pytest.mark.parametrize("flags", [[], ["--pydantic"]])
def test_classes_of_every_type_bind_to_their_store(flags: list[str]) -> None:
    of_a_map = {"user_key": columns_of(struct(day=spark.DateType())), "result": columns_of(struct(n=spark.LongType()))}
    with module_of(printed(entry(**of_a_map), *flags)) as models:
        bind(entry(**of_a_map), key=models.FlightsKey, value=models.FlightsValue, result=models.FlightsResult)
        binding = bind(entry(**of_a_map), key=models.FlightsEntryKey)
    sent = {"window": None, "origin": "JFK", "day": "2024-01-01"}
    assert binding.key_columns(binding.key(sent)) == sent


@pytest.mark.full
def test_mypy_finds_nothing_in_the_classes(tmp_path: Path) -> None:
    """Strictly, as users would check their own code; a wrong use of a field is found."""
    (tmp_path / "plain.py").write_text(printed(entry()))
    (tmp_path / "checked.py").write_text(printed(entry(), "--pydantic"))
    use = "import checked, plain\n\ndef days(value: plain.FlightsValue, other: checked.FlightsValue) -> int:\n"
    (tmp_path / "wrong.py").write_text(f"{use}    return value.count_1 + other.count_1 + value.c0\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "--follow-imports=silent"]
    checked = subprocess.run(
        [*command, "plain.py", "checked.py", "wrong.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert [line for line in checked.stdout.splitlines() if "error" in line and "wrong.py" not in line] == [
        "Found 1 error in 1 file (checked 3 source files)"
    ], checked.stdout + checked.stderr
    assert 'wrong.py:4: error: Unsupported operand types for + ("int" and "None")' in checked.stdout
