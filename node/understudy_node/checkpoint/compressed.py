"""Sources of compressed bytes: memory, or a file of which only the current part is in memory."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from understudy_node.checkpoint.files import storage_error


class Compressed(Protocol):
    """Compressed bytes, `size` of them."""

    @property
    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes | memoryview:
        """Read up to `size` bytes from `position` on; fewer only at the end."""


class CompressedBytes:
    """All bytes in memory; reading does not copy them."""

    def __init__(self, data: bytes) -> None:
        self._view = memoryview(data)
        self.size = len(data)

    def read(self, position: int, size: int) -> memoryview:
        return self._view[position : position + size]


class CompressedFile:
    """A local file. It is read, not mapped: one that is cut short meanwhile is an error, and does not kill the process.

    `name` stands for the file in messages.
    """

    def __init__(self, path: Path, *, name: str) -> None:
        self._name = name
        self._file = path.open("rb", buffering=0)
        self.size = os.fstat(self._file.fileno()).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def read(self, position: int, size: int) -> bytes:
        try:
            return os.pread(self._file.fileno(), size, position)
        except OSError as error:
            raise storage_error("Cannot read", self._name, error) from error
