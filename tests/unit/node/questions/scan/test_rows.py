"""Rows of a scan as they are printed: what they are ordered by, and that pages in an order lose none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from understudy_node.questions.scan.parts import ordered_part
from understudy_node.questions.scan.rows import _printed_parser, row_maker, row_order
from understudy_shared.base.words import KeyPlacement, StoreKind
from understudy_shared.questions.scan.page import PartPage, Place, Room, read_ordered_page
from understudy_shared.questions.scan.question import ScanQuestion
from understudy_shared.reads.columns import Columns
from understudy_shared.spark.key_codec import KeyCodec
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


LATER_S = float("inf")


class Records:
    """The stored keys of a partition, each with its value."""

    def __init__(self, values: Mapping[bytes, int]) -> None:
        self._values = values

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(self._values):
            if key >= start and (end is None or key < end):
                yield key, str(self._values[key]).encode()


@pytest.mark.parametrize("order", ["key", "n"])
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 4])
async def test_pages_in_an_order_have_both_rows_of_a_key_that_two_partitions_have(
    order: str, is_reversed: bool, limit: int
) -> None:
    codec = KeyCodec(StructType((Field("k", StringType()),)), placement=KeyPlacement.SCATTERED)
    stored = [{"a": 1, "b": 2}, {"b": 2, "d": 4}, {"a": 1, "b": 2, "c": 3}]
    views = [
        SimpleNamespace(
            stores={"default": Records({codec.encode((key,)): n for key, n in rows.items()})},
            stamp=b'"partition":%d' % partition,
            seal=b'"version":7',
            committed_at_us=5,
        )
        for partition, rows in enumerate(stored)
    ]
    store = SimpleNamespace(
        codec=codec,
        kind=StoreKind.VALUE,
        store_name="default",
        value_names=("n",),
        value_schema=StructType((Field("n", LongType()),)),
        result_types=(),
        print_found=lambda value: b'"found":true,"value":{"n":%b},' % value,
    )
    reader = SimpleNamespace(store=store, row_prefix=b"", key_row=lambda kept: kept, first_bytes=lambda view: b"")
    maker = row_maker(cast(Any, reader), ScanQuestion(order=order, reverse=is_reversed))

    async def read(place: Place, room: Room) -> PartPage:
        steps = ordered_part(maker, cast(Any, SimpleNamespace(view=views[place.partition])), place, room)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(PartPage, end.value)

    found: list[tuple[str, int]] = []
    at: Place | None = Place(0)
    while at is not None:
        page = await read_ordered_page(at, range(3), read, limit=limit, until_s=LATER_S, is_reversed=is_reversed)
        rows = [orjson.loads(row) for row in page.rows]
        assert len(rows) <= limit
        found += [(row["key"]["k"], row["value"]["n"]) for row in rows]
        at = page.next
    assert found == sorted((row for rows in stored for row in rows.items()), reverse=is_reversed)
