"""The records of `flatMapGroupsWithState` and `applyInPandasWithState`: a group's state, and its timeout.

State format 2 has a struct `groupState`, null when only a timeout is set; format 1 has the columns of the state. Where
the query uses timeouts, `timeoutTimestamp` comes last: milliseconds, or -1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from understudy_node.checkpoint.operators import TIMEOUT
from understudy_shared.spark.layout import bitmap_words
from understudy_shared.spark.temporal import timestamp_text
from understudy_shared.spark.types import LongType, StructType


def stored_state(declared: StructType) -> StructType:
    """Return the columns as they are stored: in format 1 Spark declares the timeout an int, and writes a long."""
    if not has_timeout(declared):
        return declared
    *state, timeout = declared.fields
    return StructType((*state, replace(timeout, type=LongType())))


def has_timeout(value: StructType) -> bool:
    """Whether the query uses timeouts."""
    return bool(value.fields) and value.fields[-1].name == TIMEOUT


def with_timeout(value: StructType, print_found: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return a printer that adds a group's timeout to the members of `print_found`."""
    count = len(value.fields)
    start = 8 * (bitmap_words(count) + count - 1)

    def print_with_timeout(row: bytes) -> bytes:
        found = print_found(row)  # It refuses a damaged row.
        timeout_ms = int.from_bytes(row[start : start + 8], "little", signed=True)
        moment = "null" if timeout_ms < 0 else f'"{timestamp_text(timeout_ms * 1000)}"'
        return b'%b"timeout_at":%b,' % (found, moment.encode())

    return print_with_timeout
