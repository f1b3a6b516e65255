"""The protocol between the jar and a Python process: frames of a kind, a length and bytes, by the process's pipes.

The jar asks, one request after another. The process answers with data, and ends with a reply or an error. While it
works it sends a beat each second, so that the jar can tell a process that is busy from one that hangs.
"""

from __future__ import annotations

import os
import struct
import threading
from contextlib import suppress

PROTOCOL = 4
"""The version of the frames and of what is in them. A jar of another one is refused."""

REQUEST, DATA, REPLY, ERROR, BEAT = b"Q", b"D", b"R", b"E", b"B"

MAX_BYTES = 1 << 30
"""Most bytes of a frame: more are damage."""

_DATA_BYTES = 1 << 20
"""Most bytes of a frame of data: the jar holds a few frames of each process in memory."""

_HEAD = struct.Struct(">cI")


class Frames:
    """The two ends of the pipes in this process. Writing is thread-safe."""

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink
        self._writing = threading.Lock()

    @property
    def source(self) -> int:
        """The descriptor to wait on for the next request."""
        return self._source

    def read_request(self) -> bytes | None:
        """Read the next request; None at the end of the pipe. Raises ValueError for anything else."""
        head = self._read(_HEAD.size)
        if head is None:
            return None
        kind, size = _HEAD.unpack(head)
        if kind != REQUEST or size > MAX_BYTES:
            raise ValueError(f"no request begins with {head!r}")
        return self._read(size)

    def write(self, kind: bytes, payload: bytes = b"") -> None:
        """Write one frame. Waits while the pipe is full; raises BrokenPipeError once the jar is gone."""
        with self._writing:
            self._write(_HEAD.pack(kind, len(payload)))
            self._write(payload)

    def write_data(self, payload: memoryview) -> None:
        """Write data, in as many frames as it takes."""
        for start in range(0, len(payload), _DATA_BYTES):
            self.write(DATA, bytes(payload[start : start + _DATA_BYTES]))

    def beat(self) -> None:
        """Write a beat, unless another thread is writing: that is a sign of life itself."""
        if self._writing.acquire(blocking=False):
            try:
                self._write(_HEAD.pack(BEAT, 0))
            finally:
                self._writing.release()

    def _read(self, size: int) -> bytes | None:
        found = bytearray()
        while len(found) < size:
            part = os.read(self._source, size - len(found))
            if not part:
                return None
            found += part
        return bytes(found)

    def _write(self, payload: bytes) -> None:
        left = memoryview(payload)
        while left:
            left = left[os.write(self._sink, left) :]


def frames_of_process() -> Frames:
    """Take the pipes of this process. What it prints from now on goes to its stderr, which is the jar's log."""
    source, sink = os.dup(0), os.dup(1)
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return Frames(source, sink)
