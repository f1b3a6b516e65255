"""A group's timeout is told as a moment, whatever Spark declares its column to be."""

from __future__ import annotations

import json

import pytest

from understudy_node.stores.operator_state import has_timeout, stored_state, with_timeout
from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.types import Field, IntType, LongType, StringType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

DECLARED_V1 = StructType((Field("name", StringType()), Field("timeoutTimestamp", IntType())))
STORED = StructType((Field("name", StringType()), Field("timeoutTimestamp", LongType())))
encode = compile_row_encoder(STORED)
print_value = compile_json_printer(STORED)


def printed(row: bytes) -> dict[str, object]:
    """The members of an answer."""
    said = with_timeout(STORED, lambda row: b'"value":%b,' % json.dumps(print_value(row)).encode())(row)
    members: dict[str, object] = json.loads(b"{" + said.removesuffix(b",") + b"}")
    return members


def test_the_timeout_of_format_1_is_the_long_that_spark_writes_not_the_int_that_it_declares() -> None:
    assert stored_state(DECLARED_V1) == STORED
    assert stored_state(STORED) == STORED
    other = StructType((Field("count", IntType()),))
    assert stored_state(other) == other
    assert [has_timeout(each) for each in (DECLARED_V1, STORED, other, StructType())] == [True, True, False, False]


@pytest.mark.parametrize(
    ("timeout_ms", "moment"),
    [(-1, None), (0, "1970-01-01T00:00:00.000000Z"), (1_709_251_200_000, "2024-03-01T00:00:00.000000Z")],
)
def test_a_timeout_is_a_moment_and_none_is_null(timeout_ms: int, moment: str | None) -> None:
    assert printed(encode(("a", timeout_ms))) == {
        "value": {"name": "a", "timeoutTimestamp": timeout_ms},
        "timeout_at": moment,
    }
