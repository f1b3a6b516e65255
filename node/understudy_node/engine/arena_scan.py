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

Record = tuple[bytes, bytes]


def pages_of_records(records: mmap, order: memoryview) -> Iterator[Iterable[Record]]:
    """Yield key and value of the records at the offsets in `order`, some at a time."""
    data = np.frombuffer(records, np.uint8)
    begin, count = 0, _FIRST_RECORDS
    while begin < len(order):
        offsets = np.asarray(order[begin : begin + count]).astype(np.int64)
        yield _equal_records(data, offsets) or _unequal_records(records, data, offsets)
        begin += count
        # A reader of few records touches few pages of the file.
        count = min(4 * count, _MOST_RECORDS)


def _equal_records(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Iterator[Record] | None:
    """Return the records if they all have the lengths of the first one."""
    key_bytes = int(_lengths(data, offsets[:1])[0])
    value_bytes = int(_lengths(data, offsets[:1] + 4 + key_bytes)[0])
    size = 8 + key_bytes + value_bytes
    if int(offsets.max()) + size > len(data):
        return None
    found = np.ndarray((len(data) - size + 1,), f"V{size}", data.data, strides=(1,))[offsets]
    lengths = found.view([("key", ">i4"), ("", f"V{key_bytes}"), ("value", ">i4"), ("", f"V{value_bytes}")])
    if (lengths["key"] != key_bytes).any() or (lengths["value"] != value_bytes).any():
        return None
    return Struct(f"4x{key_bytes}s4x{value_bytes}s").iter_unpack(found.tobytes())


def _unequal_records(records: mmap, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Iterator[Record]:
    keys = offsets + 4
    key_ends = keys + _lengths(data, offsets)
    values = key_ends + 4
    value_ends = values + _lengths(data, key_ends)
    for key, key_end, value, value_end in zip(
        keys.tolist(), key_ends.tolist(), values.tolist(), value_ends.tolist(), strict=True
    ):
        yield records[key:key_end], records[value:value_end]


def _lengths(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    return np.ndarray((len(data) - 3,), ">i4", data.data, strides=(1,))[offsets].astype(np.int64)
