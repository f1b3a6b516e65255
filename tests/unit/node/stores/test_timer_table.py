"""Timers are found by their times in the bytes of Spark's table of them, of times before 1970, too."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint.shown import shown

from understudy_node.engine.view import StateTable
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.row_forms import Columns
from understudy_node.stores.state_variables import TimesTable
from understudy_shared.spark.types import BinaryType, Field, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

FAMILY = b"\x11\x00"
_encode = compile_row_encoder(StructType((Field("time", BinaryType()),)))

TIMES = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)


def stored(time_ms: int, key: int) -> bytes:
    """A key as Spark's `RangeKeyScanStateEncoder` writes it."""
    row = b"\0" + _encode(((b"\1" if time_ms >= 0 else b"\0") + struct.pack(">q", time_ms),))
    return FAMILY + struct.pack("<i", len(row)) + row + key.to_bytes(2)


def table() -> TimesTable:
    def grouping(rest: bytes) -> Columns:
        return (int.from_bytes(rest),)

    return TimesTable(StateTable("default", "times"), b"\0", grouping)


def view(records: dict[bytes, bytes]) -> TaskView:
    return shown(records, families={"times": 17})


@given(st.lists(st.tuples(TIMES, st.integers(0, 3)), unique=True), TIMES, TIMES)
def test_timers_come_in_the_order_of_time_within_their_range(
    timers: list[tuple[int, int]], low: int, high: int
) -> None:
    others = {b"\x10\x00" + b"\xff" * 9: b"", b"\x12\x00": b""}
    shows = view({**{stored(*timer): b"" for timer in timers}, **others})
    every = list(table().between(shows, -(2**63), None, None))
    assert [(each.time_ms, each.key[0]) for each in every] == sorted(timers)
    found = list(table().between(shows, low, high, None))
    assert found == [each for each in every if low <= each.time_ms < high]
    for at, each in enumerate(found):
        assert list(table().between(shows, low, high, each.rank)) == found[at + 1 :]
