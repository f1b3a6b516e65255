"""Takes records out of librdkafka straight into Arrow columns, by a library of ours (`aligned/native`).

The library is optional: where it is missing, or does not fit librdkafka, records come as Python objects, and a fetch
costs three times the CPU. `make native` builds it. It is loaded as a plugin of librdkafka, so the consumer, its
configuration, its callbacks and its positions stay confluent-kafka's.

Memory of large columns is reused, because the kernel clears each page of new memory, which takes longer than filling
it.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import sysconfig
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError
from numpy.typing import NDArray

from understudy_aligned.inputs.kafka_rows import MOST_COLUMN_BYTES, Event, RecordColumns
from understudy_aligned.inputs.records import TopicPartition

log = logging.getLogger(__name__)

LIBRARY = Path(__file__).parent / f"kafka_records.{sysconfig.get_config_var('MULTIARCH')}.so"

_LEAST_BYTES = 512 << 10
"""Smaller buffers come from Arrow's own pool, which reuses memory of their size."""

_MOST_FREE_BYTES = 256 << 20
"""Most bytes that are kept for later buffers. All of them were in use at the same time before, so keeping them does not
raise the peak."""

_MOST_WASTE = 2
"""A buffer gets at most this many times the memory that it needs."""


class RecycledMemory:
    """Buffers whose memory is reused once the last array over it is gone. Only one thread may ask for buffers."""

    def __init__(self) -> None:
        self._returned: deque[mmap.mmap] = deque()
        self._free: list[mmap.mmap] = []

    def buffer(self, size: int) -> pa.Buffer:
        """Return a buffer of this size, to be filled by its address. Its contents are arbitrary."""
        if size < _LEAST_BYTES:
            return pa.allocate_buffer(size)
        block = self._take(size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        return pa.foreign_buffer(address, size, base=_Lease(block, self._returned))

    def release(self) -> None:
        """Return all free memory to the system."""
        self._collect()
        while self._free:
            self._free.pop().close()

    def _take(self, size: int) -> mmap.mmap:
        self._collect()
        fitting = [block for block in self._free if size <= len(block) <= _MOST_WASTE * size]
        if fitting:
            block = min(fitting, key=len)
            self._free.remove(block)
            return block
        return mmap.mmap(-1, _rounded(size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def _collect(self) -> None:
        """Collect unused blocks. If they exceed the limit, free the oldest first."""
        while self._returned:
            self._free.append(self._returned.popleft())
        while sum(map(len, self._free)) > _MOST_FREE_BYTES:
            self._free.pop(0).close()


class _Lease:
    """The use of a block. It ends with the last reference, in any thread."""

    __slots__ = ("_block", "_returned")

    def __init__(self, block: mmap.mmap, returned: deque[mmap.mmap]) -> None:
        self._block = block
        self._returned = returned

    def __del__(self) -> None:
        self._returned.append(self._block)


def _rounded(size: int) -> int:
    """Round up by a quarter at most: then buffers of about the same size fit into each other's memory."""
    step = 1 << max(0, size.bit_length() - 3)
    return -(-size // step) * step


Taken = tuple[Sequence[RecordColumns], Sequence[Event], int]
"""The result of one call: records, events, and the number of both."""


class _Group(ctypes.Structure):
    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("key_bytes", ctypes.c_int64),
        ("value_bytes", ctypes.c_int64),
        ("partition", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("null_keys", ctypes.c_int32),
        ("null_values", ctypes.c_int32),
        ("has_headers", ctypes.c_int32),
        ("first", ctypes.c_int32),
        ("last", ctypes.c_int32),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("text", ctypes.c_void_p),
        ("text_length", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("partition", ctypes.c_int32),
        ("error", ctypes.c_int32),
    )


class _NativeColumns(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in (
            "offsets",
            "timestamps",
            "header_bytes",
            "timestamp_types",
            "key_offsets",
            "value_offsets",
            "keys",
            "values",
            "key_validity",
            "value_validity",
        )
    )


@cache
def native_library() -> ctypes.CDLL | None:
    """Load the library; None without one for this machine."""
    if not LIBRARY.is_file() or ";" in str(LIBRARY):
        return None
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        log.warning("records are taken as Python objects, which is slower: %s", error)
        return None
    reader, number = ctypes.c_void_p, ctypes.c_int32
    signatures: dict[str, tuple[Any, Sequence[Any]]] = {
        "open": (reader, [number]),
        "close": (None, [reader]),
        "forget": (None, [reader]),
        "forward": (ctypes.c_int, [reader, ctypes.c_char_p, number]),
        "take": (number, [reader, number, number, ctypes.c_int64]),
        "groups": (number, [reader, ctypes.POINTER(ctypes.POINTER(_Group))]),
        "events": (number, [reader, ctypes.POINTER(ctypes.POINTER(_Event))]),
        "fill": (number, [reader, number, number, ctypes.POINTER(_NativeColumns)]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"understudy_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def open_native(library: ctypes.CDLL, *, most: int) -> NativeRecords | None:
    """Open a reader of the last consumer that this thread created with the library as its plugin. It takes up to `most`
    records at a time. None: the consumer's librdkafka lacks a function.
    """
    reader = library.understudy_open(most)
    return None if reader is None else NativeRecords(library, reader)


class NativeRecords:
    """A reader of the partitions of one consumer. Not thread-safe. Close it before the consumer."""

    def __init__(self, library: ctypes.CDLL, reader: int) -> None:
        self._library = library
        self._reader = reader
        self._memory = RecycledMemory()

    def forward(self, partitions: Collection[TopicPartition]) -> None:
        """Take the records and events of exactly these partitions from now on. They are about to be assigned.

        If a partition cannot be forwarded, the consumer still gets its records and events.
        """
        self._library.understudy_forget(self._reader)
        for topic, partition in partitions:
            self._library.understudy_forward(self._reader, topic.encode(), partition)

    def take(self, count: int, *, wait_s: float) -> Taken:
        """Take up to `count` records and events; wait for the first only."""
        taken = self._library.understudy_take(self._reader, count, max(0, round(wait_s * 1000)), MOST_COLUMN_BYTES)
        if taken < 0:
            raise RuntimeError("librdkafka gives no records")
        if not taken:
            return (), (), 0
        groups = ctypes.POINTER(_Group)()
        found = self._library.understudy_groups(self._reader, ctypes.byref(groups))
        events = list(self._events())
        return list(self._columns(groups[:found])), events, taken

    def drop(self) -> None:
        """Drop the records and events that were not taken, and release the free memory."""
        while self._library.understudy_take(self._reader, 1_000, 0, MOST_COLUMN_BYTES) > 0:
            pass
        self._memory.release()

    def close(self) -> None:
        self._library.understudy_close(self._reader)

    def _events(self) -> Iterator[Event]:
        events = ctypes.POINTER(_Event)()
        for each in events[: self._library.understudy_events(self._reader, ctypes.byref(events))]:
            text = ctypes.string_at(each.text, each.text_length).decode(errors="replace") if each.text else ""
            partition = TopicPartition((each.topic or b"").decode(), max(0, each.partition))
            yield Event(partition, KafkaError(each.error, text), each.offset if each.offset >= 0 else None)

    def _columns(self, groups: Sequence[_Group]) -> Iterator[RecordColumns]:
        """Copy all groups into the same columns, unless they are too large for that."""
        first, size = 0, 0
        for number, group in enumerate(groups):
            more = max(group.key_bytes, group.value_bytes)
            if number > first and size + more > MOST_COLUMN_BYTES:
                yield self._joined(groups[first:number], first)
                first, size = number, 0
            size += more
        if groups:
            yield self._joined(groups[first:], first)

    def _joined(self, groups: Sequence[_Group], first: int) -> RecordColumns:
        parts = [(TopicPartition(group.topic.decode(), group.partition), group.count) for group in groups]
        count = sum(group.count for group in groups)
        offsets, timestamps = np.empty((2, count), np.int64)
        types = np.empty(count, np.int32)
        headers_bytes = np.empty(count, np.int64) if any(group.has_headers for group in groups) else None
        keys, values = (
            _Binaries(count, sum(nulls), self._memory.buffer(sum(sizes)))
            for nulls, sizes in (
                ([group.null_keys for group in groups], [group.key_bytes for group in groups]),
                ([group.null_values for group in groups], [group.value_bytes for group in groups]),
            )
        )
        target = _NativeColumns(
            offsets.ctypes.data,
            timestamps.ctypes.data,
            None if headers_bytes is None else headers_bytes.ctypes.data,
            types.ctypes.data,
            keys.offsets.ctypes.data,
            values.offsets.ctypes.data,
            keys.data.address,
            values.data.address,
            keys.validity_address,
            values.validity_address,
        )
        filled = self._library.understudy_fill(self._reader, first, first + len(groups), ctypes.byref(target))
        if filled != count:
            raise RuntimeError(f"{filled} of {count} records were copied")
        return RecordColumns(parts, offsets, timestamps, types, keys.array(), values.array(), headers_bytes)


class _Binaries:
    """A column of bytes that the library fills."""

    def __init__(self, count: int, nulls: int, data: pa.Buffer) -> None:
        self._count = count
        self._nulls = nulls
        self.data = data
        self.offsets: NDArray[np.int32] = np.empty(count + 1, np.int32)
        self._validity = np.zeros(-(-count // 8), np.uint8) if nulls else None

    @property
    def validity_address(self) -> int | None:
        return None if self._validity is None else self._validity.ctypes.data

    def array(self) -> pa.BinaryArray:
        validity = None if self._validity is None else pa.py_buffer(self._validity)
        buffers = [validity, pa.py_buffer(self.offsets), self.data]
        return pa.Array.from_buffers(pa.binary(), self._count, buffers, self._nulls)
