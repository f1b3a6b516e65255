"""Memory for large columns that is used again: the kernel clears each page of new memory, which takes longer than to
fill it.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import deque

import pyarrow as pa

_LEAST_BYTES = 64 << 10
"""Smaller buffers come from Arrow's own pool, which uses memory of their size again."""

_MOST_FREE_BYTES = 256 << 20
"""Most bytes that are kept for later buffers. They have all been in use at the same time, so the peak stays what it
was."""

_MOST_WASTE = 2
"""A buffer gets at most so many times the memory that it needs."""


class RecycledMemory:
    """Buffers whose memory comes back when the last array that shows it is gone. One thread asks for them."""

    def __init__(self) -> None:
        self._returned: deque[mmap.mmap] = deque()
        self._free: list[mmap.mmap] = []

    def buffer(self, size: int) -> pa.Buffer:
        """Return a buffer of this size, to be filled by its address. What is in it is arbitrary."""
        if size < _LEAST_BYTES:
            return pa.allocate_buffer(size)
        block = self._take(size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        return pa.foreign_buffer(address, size, base=_Lease(block, self._returned))

    def release(self) -> None:
        """Give the memory that is free back to the system."""
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
        """Take what came back, and give back to the system what is too much, the oldest first."""
        while self._returned:
            self._free.append(self._returned.popleft())
        while sum(map(len, self._free)) > _MOST_FREE_BYTES:
            self._free.pop(0).close()


class _Lease:
    """The use of a block. It ends with the last reference, in whatever thread that is."""

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
