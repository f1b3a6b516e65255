"""Converts between Python, NumPy and Arrow by their buffers.

pyarrow's own converters (`pa.array`, `pa.scalar`, `to_numpy`, and each compute function that is given a Python value)
import pandas at their first call: about a second of CPU in the planner and in each worker, before the first row. So the
source uses these instead. `test_the_first_rows_need_no_pandas` holds it to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Headers = list[tuple[str, bytes | None]]

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_NUMPY_TYPES: dict[pa.DataType, type[np.generic]] = {
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.uint64(): np.uint64,
    pa.timestamp("us", tz="UTC"): np.int64,
}
_ARROW_TYPES = {np.dtype(numpy): arrow for arrow, numpy in _NUMPY_TYPES.items() if pa.types.is_integer(arrow)}


def numbers(values: NDArray[Any], *, nulls: NDArray[np.bool_] | None = None, kind: pa.DataType = None) -> pa.Array:
    """Build an array of integers; null where `nulls` is set. Its type follows `values`, or is `kind` of that width."""
    validity, null_count = _validity(nulls)
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind or _ARROW_TYPES[values.dtype], len(values), buffers, null_count)


def optional_numbers(values: Sequence[int | None]) -> pa.Int64Array:
    """Build an array of 64-bit integers from Python's, `None` as null."""
    nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
    return numbers(np.fromiter((value or 0 for value in values), np.int64, len(values)), nulls=nulls)


def booleans(values: NDArray[np.bool_]) -> pa.BooleanArray:
    """Build an array of booleans without nulls, such as a mask."""
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits], 0)


def binaries(values: Sequence[bytes | None]) -> pa.BinaryArray:
    """Build an array of bytes, `None` as null. Together they are less than 2 GiB, else ValueError."""
    nulls = None
    if None in values:
        nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
        values = [value or b"" for value in values]
    data = b"".join(values)  # type: ignore[arg-type]  # no None is left
    offsets = _offsets(values)  # type: ignore[arg-type]
    validity, null_count = _validity(nulls)
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers, null_count)


def repeated_texts(texts: Sequence[str], counts: Sequence[int]) -> pa.StringArray:
    """Build an array of texts, each repeated so many times. Together they are less than 2 GiB."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum(np.repeat(np.fromiter(map(len, encoded), np.int32, len(encoded)), counts), dtype=np.int32)
    data = b"".join(text * count for text, count in zip(encoded, counts, strict=True))
    buffers = [None, pa.py_buffer(np.concatenate((np.zeros(1, np.int32), ends))), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(ends), buffers, 0)


def header_lists(found: Sequence[Headers | None]) -> pa.ListArray:
    """Build an array of headers, one list for each record; null for a record without headers."""
    pairs = [pair for headers in found for pair in headers or ()]
    keys = binaries([key.encode() for key, _ in pairs]).cast(pa.string())
    items = pa.StructArray.from_arrays(
        [keys, binaries([value for _, value in pairs])], fields=list(_HEADERS.value_type)
    )
    offsets = _offsets([headers or () for headers in found])
    validity, null_count = _validity(np.fromiter((not headers for headers in found), np.bool_, len(found)))
    return pa.Array.from_buffers(_HEADERS, len(found), [validity, pa.py_buffer(offsets)], null_count, children=[items])


def scalar(value: int | str | None, kind: pa.DataType) -> pa.Scalar:
    """Build a value of an integer or string type, for compute functions and `pa.repeat`."""
    if value is None:
        return pa.nulls(1, kind)[0]
    if isinstance(value, str):
        return binaries([value.encode()]).cast(kind)[0]
    return numbers(np.array([value], _NUMPY_TYPES[kind]), kind=kind)[0]


def to_numpy(array: pa.Array, *, null: int = 0) -> NDArray[Any]:
    """Return the values of an array of integers, `null` for null. Without nulls they share its memory."""
    validity, data = array.buffers()
    dtype = _NUMPY_TYPES[array.type]
    if data is None or not len(array):
        return np.full(len(array), null, dtype)
    values: NDArray[Any] = np.frombuffer(data, dtype)[array.offset : array.offset + len(array)]
    return np.where(_bits(validity, array), values, dtype(null)) if array.null_count else values


def lengths(array: pa.BinaryArray) -> NDArray[np.int64]:
    """Return the number of bytes of each value, 0 for null."""
    offsets = array.buffers()[1]
    if offsets is None or not len(array):
        return np.zeros(len(array), np.int64)
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    found = np.diff(ends).astype(np.int64)
    return np.where(is_null(array), 0, found) if array.null_count else found


def data_bytes(array: pa.BinaryArray) -> int:
    """Return the bytes of all values: quicker than `nbytes`, which counts in every buffer."""
    offsets = array.buffers()[1]
    if offsets is None or not len(array):
        return 0
    ends = np.frombuffer(offsets, np.int32)
    return int(ends[array.offset + len(array)] - ends[array.offset])


def is_null(array: pa.Array) -> NDArray[np.bool_]:
    """Find the positions at which an array is null."""
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    validity = array.buffers()[0]
    return np.ones(len(array), np.bool_) if validity is None else ~_bits(validity, array)


def _bits(bitmap: pa.Buffer, array: pa.Array) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=array.offset + len(array), bitorder="little")
    return bits[array.offset :].view(np.bool_)


def _validity(nulls: NDArray[np.bool_] | None) -> tuple[pa.Buffer | None, int]:
    """Return Arrow's bitmap of what is not null, with the number of nulls."""
    count = 0 if nulls is None else int(np.count_nonzero(nulls))
    return (pa.py_buffer(np.packbits(~nulls, bitorder="little")), count) if nulls is not None and count else (None, 0)


def _offsets(values: Sequence[bytes | Sequence[object]]) -> NDArray[np.int32]:
    """Return the position at which each value begins, and the end of the last one."""
    ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))
    if len(ends) and ends[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"{ends[-1]:,} bytes do not fit into one Arrow array")
    return np.concatenate((np.zeros(1, np.int32), ends.astype(np.int32)))
