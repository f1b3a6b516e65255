"""Models: dataclasses, pydantic models and TypedDicts of a store's columns; one that does not fit is named at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NewType, NotRequired, TypedDict
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, PositiveInt
from tests.support.services.canned_server import Canned
from tests.support.services.reading_commands import run
from tests.support.spark.values import SCALAR_TYPES, struct_of
from tests.support.typed.entries import columns_of, entry_of, module_of, struct

from understudy.typed import ModelError, UnfitValueError, YearMonthInterval, bind
from understudy_shared.spark import types as spark
from understudy_shared.spark.types import StructType

SCHEMA = StructType(
    (
        spark.Field("flights", spark.LongType(), nullable=False),
        spark.Field("sum(delay)", spark.DoubleType()),
        spark.Field("window", struct(start=spark.TimestampType(), end=spark.TimestampType())),
        spark.Field("tags", spark.ArrayType(spark.StringType())),
        spark.Field("by_day", spark.MapType(spark.DateType(), spark.DecimalType(10, 2))),
    )
)
PRINTED = {
    "flights": 3,
    "sum(delay)": 1.5,
    "window": {"start": "2024-01-01T00:00:00.000000Z", "end": "2024-01-01T01:00:00.000000Z"},
    "tags": ["a", None],
    "by_day": [["2024-01-01", "1.50"]],
}
START, END = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 1, tzinfo=UTC)
DAYS = {date(2024, 1, 1): Decimal("1.50")}
Flights = NewType("Flights", int)


@dataclass(frozen=True)
class Window:
    start: datetime
    end: datetime


@dataclass(frozen=True)
class Aircraft:
    flights: Flights
    window: Window | None
    tags: Sequence[str | None] | None
    by_day: Mapping[date, Decimal] | None
    delay: float | None = field(metadata={"column": "sum(delay)"})
    total: int = field(init=False, default=0)


class PydanticWindow(BaseModel):
    start: datetime
    end: datetime


class PydanticAircraft(BaseModel):
    flights: PositiveInt
    delay: float | None = Field(alias="sum(delay)")
    window: PydanticWindow | None


class AircraftDict(TypedDict):
    flights: int
    tags: tuple[str | None, ...] | None
    by_day: list[tuple[date, Decimal]] | None
    window: NotRequired[dict[str, Any] | None]


class Kind(Enum):
    JET = "jet"


def test_a_dataclass_takes_the_columns_that_it_names() -> None:
    found = bind(entry_of(SCHEMA), value=Aircraft).value(PRINTED)
    assert found == Aircraft(Flights(3), Window(START, END), ["a", None], DAYS, 1.5)


def test_a_pydantic_model_takes_columns_by_alias_and_checks_them() -> None:
    binding = bind(entry_of(SCHEMA), value=PydanticAircraft)
    found = binding.value(PRINTED)
    assert found == PydanticAircraft.model_validate({**PRINTED, "sum(delay)": 1.5})
    assert found.window == PydanticWindow(start=START, end=END)
    with pytest.raises(UnfitValueError, match="greater than 0"):
        binding.value({**PRINTED, "flights": -1})


def test_a_typed_dict_leaves_out_what_is_not_required_and_not_there() -> None:
    binding = bind(entry_of(SCHEMA), value=AircraftDict)
    expected = {"flights": 3, "tags": ("a", None), "by_day": list(DAYS.items())}
    assert binding.value({**PRINTED, "a_new_column": 1}) == {**expected, "window": {"start": START, "end": END}}
    assert binding.value({name: value for name, value in PRINTED.items() if name != "window"}) == expected
    with pytest.raises(UnfitValueError, match="does not have flights"):
        binding.value({"tags": None, "by_day": None})


def test_models_are_keys_with_models_inside() -> None:
    binding = bind(entry_of(SCHEMA, struct(window=SCHEMA.fields[2].type)), key=PydanticKey)
    sent = {"window": {name: PRINTED["window"][name] for name in ("start", "end")}}  # type: ignore[index]
    assert binding.key_columns(binding.key(sent)) == binding.key_columns(Window(START, END)) == sent


class PydanticKey(BaseModel):
    window: PydanticWindow


@dataclass
class OnlyFlights:
    flights: int


@pytest.mark.parametrize(
    ("annotation", "spark_type", "printed", "expected"),
    [
        (Kind, spark.StringType(), "jet", Kind.JET),
        (Literal["jet"], spark.StringType(), "jet", "jet"),
        (UUID, spark.StringType(), str(UUID(int=1)), UUID(int=1)),
        (str, spark.TimestampType(), "2024-01-01T00:00:00.000000Z", "2024-01-01T00:00:00.000000Z"),
        (date | str, spark.DateType(), "+10000-01-01", "+10000-01-01"),
        (int, spark.YearMonthIntervalType(), "P1Y", 12),
        (YearMonthInterval, spark.YearMonthIntervalType(), "P1Y", YearMonthInterval(12)),
        (Any, spark.DateType(), "2024-01-01", date(2024, 1, 1)),
        (list[int] | list[str], spark.ArrayType(spark.StringType()), ["a"], ["a"]),
        (list, spark.ArrayType(spark.DateType()), ["2024-01-01"], [date(2024, 1, 1)]),
    ],
)
def test_an_annotation_decides_what_a_value_becomes(
    annotation: Any, spark_type: spark.SparkType, printed: object, expected: object
) -> None:
    assert bind(entry_of(StructType(), struct(c=spark_type)), key=annotation).key({"c": printed}) == expected


def not_null(spark_type: spark.SparkType) -> StructType:
    return StructType((spark.Field("c", spark_type, nullable=False),))


@pytest.mark.parametrize(
    ("annotation", "spark_type", "fix"),
    [
        (str, spark.LongType(), "int would fit"),
        (bool, spark.LongType(), "int would fit"),
        (float, spark.DecimalType(10, 2), "Decimal or str would fit"),
        (datetime, spark.DateType(), "date or str would fit"),
        (str, spark.BinaryType(), "bytes would fit"),
        (Literal[1], spark.StringType(), "str or UUID would fit"),
        (list[int], spark.ArrayType(spark.StringType()), "str or UUID would fit"),
        (set[str], spark.ArrayType(spark.StringType()), r"list\[str \| None\] would fit"),
        (dict[str, int], spark.MapType(spark.LongType(), spark.LongType()), "int would fit"),
        (Window, struct(start=spark.LongType()), "There are: c"),
        (list[int], struct(a=spark.LongType()), "A model with these fields"),
        (int, struct(a=spark.LongType()), r"A model with these fields, or dict\[str, Any\] would fit"),
        (dict[Window, int], spark.MapType(struct(a=spark.LongType()), spark.LongType()), "There are: a"),
        (dict[dict[str, Any], int], spark.MapType(struct(a=spark.LongType()), spark.LongType()), "list.tuple"),
    ],
)
def test_an_annotation_that_cannot_hold_a_column_is_named_at_once(
    annotation: Any, spark_type: spark.SparkType, fix: str
) -> None:
    with pytest.raises(ModelError, match=fix) as refused:
        bind(entry_of(not_null(spark_type)), value=annotation)
    assert refused.value.where.startswith(("value=", "Window"))


def test_a_model_with_a_field_too_many_or_a_column_of_the_key_too_few_is_named() -> None:
    with pytest.raises(ModelError, match=r"no column 'flights'.*Did you mean 'flight'"):
        bind(entry_of(not_null(spark.LongType()), struct(flight=spark.LongType())), key=OnlyFlights)
    key = StructType((*not_null(spark.LongType()).fields, spark.Field("other", spark.StringType())))
    with pytest.raises(ModelError, match=r"more columns: other \(string\)"):
        bind(entry_of(SCHEMA, key), key=OnlyC)
    with pytest.raises(ModelError, match="the value has 5 columns"):
        bind(entry_of(SCHEMA), value=int)
    with pytest.raises(ModelError, match="keeps no values"):
        bind(entry_of(StructType(), struct(c=spark.LongType()), "set"), value=OnlyC)


@dataclass
class OnlyC:
    c: int


def test_a_value_that_does_not_fit_is_named_by_its_column() -> None:
    binding = bind(entry_of(SCHEMA), value=Aircraft)
    wrong = {**PRINTED, "window": {"start": "+10000-01-01T00:00:00.000000Z", "end": "x"}}
    with pytest.raises(UnfitValueError, match=r"datetime cannot hold it.*column window"):
        binding.value(wrong)
    with pytest.raises(UnfitValueError, match=r"key twice.*column by_day"):
        binding.value({**PRINTED, "by_day": [["2024-01-01", "1.50"], ["2024-01-01", "1.50"]]})
    with pytest.raises(UnfitValueError, match=r"not an integer.*column flights"):
        bind(entry_of(SCHEMA)).value({"flights": 1.5})


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
