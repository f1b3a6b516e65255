"""Reads an arena's records in the order of their keys, a page at a time (pure).

Neighbours in that order lie anywhere in the file. Those of equal size, which most stores have next to each other, are
copied by one call of NumPy, and cut into keys and values by one of `struct`: a sixth of the time of one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from mmap import mmap
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_FIRST_RECORDS: Final = 16
_MOST_RECORDS: Final = 1_024
_MOST_BYTES: Final = 256 * 1024
"""Limit on what is copied at once: longer records come in shorter pages, or by themselves."""

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Record = tuple[bytes, bytes]


def pages_of_records(records: mmap, order: memoryview) -> Iterator[Iterable[Record]]:
    """Yield key and value of the records at the offsets in `order`, some at a time."""
    data = np.frombuffer(records, np.uint8)
    begin, most = 0, _FIRST_RECORDS
    while begin < len(order):
        key_bytes, value_bytes = _sizes_at(records, order[begin])
        count = max(1, min(most, _MOST_BYTES // (8 + key_bytes + value_bytes)))
        offsets = np.asarray(order[begin : begin + count]).astype(np.int64)
        equal = _equal_records(data, offsets, key_bytes, value_bytes) if count > 1 else None
        yield equal or _unequal_records(records, data, offsets)
        begin += count
        # A reader of few records touches few pages of the file.
        most = min(4 * most, _MOST_RECORDS)


def lengths_at(data: U8, offsets: npt.NDArray[Any]) -> I64:
    """Return the lengths that stand at these offsets, before keys and before values."""
    lengths: I64 = np.ndarray((len(data) - 3,), ">i4", data.data, strides=(1,))[offsets].astype(np.int64)
    return lengths


def _sizes_at(records: mmap, offset: int) -> tuple[int, int]:
    """Return the sizes of key and value of one record."""
    key_bytes = int.from_bytes(records[offset : offset + 4], "big")
    at = offset + 4 + key_bytes
    return key_bytes, int.from_bytes(records[at : at + 4], "big")


def _equal_records(data: U8, offsets: I64, key_bytes: int, value_bytes: int) -> Iterator[Record] | None:
    """Return the records if all have keys and values of these sizes."""
    size = 8 + key_bytes + value_bytes
    if int(offsets.max()) + size > len(data):
        return None
    found = np.ndarray((len(data) - size + 1,), f"V{size}", data.data, strides=(1,))[offsets]
    lengths = found.view([("key", ">i4"), ("", f"V{key_bytes}"), ("value", ">i4"), ("", f"V{value_bytes}")])
    if (lengths["key"] != key_bytes).any() or (lengths["value"] != value_bytes).any():
        return None
    return Struct(f"4x{key_bytes}s4x{value_bytes}s").iter_unpack(found.tobytes())


def _unequal_records(records: mmap, data: U8, offsets: I64) -> Iterator[Record]:
    keys = offsets + 4
    key_ends = keys + lengths_at(data, offsets)
    values = key_ends + 4
    value_ends = values + lengths_at(data, key_ends)
    for key, key_end, value, value_end in zip(
        keys.tolist(), key_ends.tolist(), values.tolist(), value_ends.tolist(), strict=True
    ):
        yield records[key:key_end], records[value:value_end]
