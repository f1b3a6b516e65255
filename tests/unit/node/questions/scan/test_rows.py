"""Rows of a scan as they are printed: what they are ordered by."""

from __future__ import annotations

from itertools import product

import pytest

from understudy_node.questions.scan.rows import _printed_parser, row_order
from understudy_shared.reads.columns import Columns
from understudy_shared.spark.types import DoubleType, Field, LongType, SparkType, StringType, StructType


@pytest.mark.parametrize(
    ("of_field", "ascending"),
    [(StringType(), [None, "", "a", "b"]), (LongType(), [None, -3, 7]), (DoubleType(), [None, -1.5, 2.0, "NaN"])],
    ids=["text", "long", "double"],
)
def test_a_struct_of_a_value_orders_by_its_fields_and_not_by_their_names(
    of_field: SparkType, ascending: list[object]
) -> None:
    pair = StructType((Field("n", of_field), Field("n", of_field)))
    columns = Columns([("k", StringType())], [("pair", pair)])
    order = row_order("pair", columns, (), _printed_parser, is_reversed=False)
    rows = [{"n": first, "n_2": second} for first, second in product(ascending, ascending)]
    backwards = rows[::-1]
    backwards.sort(key=lambda row: order.member_bytes({"value": {"pair": row}}))
    assert backwards == rows
    assert order.member_bytes({"value": {"pair": None}}) < order.member_bytes({"value": {"pair": rows[0]}})
