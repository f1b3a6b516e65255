"""A process of the jar: a thread takes requests and watches the pipe, the main thread answers.

The protocol is frames over the process's pipes, each with a kind, a length and bytes. The jar sends one request after
another. The process answers with data, and ends with a reply or an error. While it works it sends a beat each second,
so that the jar can tell a busy process from one that hangs.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress

from understudy_shared.base.errors import UnderstudyError

PROTOCOL = 4
"""The version of the frames and their contents. A jar with another version is refused."""

REQUEST, DATA, REPLY, ERROR, BEAT = b"Q", b"D", b"R", b"E", b"B"

MAX_BYTES = 1 << 30
"""Most bytes of a frame: a larger length means that the stream is damaged."""

_DATA_BYTES = 1 << 20
"""Most bytes of a frame of data: the jar holds a few frames of each process in memory."""

_HEAD = struct.Struct(">cI")


class Frames:
    """The two ends of the pipes in this process. Writing is thread-safe."""

    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        """The descriptor to wait on for the next request."""
        self._sink = sink
        self._writing = threading.Lock()

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
            part = os.read(self.source, size - len(found))
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


_BEAT_S = 1.0

Answer = Callable[[bytes, Frames], bytes]
"""A function that gets a request, may write data, and returns the reply."""


def serve(answer: Answer, *, at_end: Callable[[], None]) -> None:
    """Answer requests until the jar closes the pipe or dies. Then call `at_end` in another thread, and exit at once.

    Raises SystemExit if the jar speaks another version of the protocol.
    """
    if sys.argv[1:2] != [str(PROTOCOL)]:
        raise SystemExit(
            f"the jar speaks version {' '.join(sys.argv[1:2])} of the protocol, and this package version {PROTOCOL}. "
            "Take the jar that is in the installed package: python -m understudy_aligned.accelerator shows it"
        )
    # Ctrl-C in a terminal reaches the whole group of processes, but the jar decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    frames = frames_of_process()
    requests: queue.Queue[bytes] = queue.Queue(1)
    is_busy = threading.Event()
    listening = threading.Thread(target=_listen, args=(frames, requests, is_busy, at_end), daemon=True)
    listening.start()
    while True:
        request = requests.get()
        kind, payload = _answered(answer, request, frames)
        is_busy.clear()
        frames.write(kind, payload)


def _answered(answer: Answer, request: bytes, frames: Frames) -> tuple[bytes, bytes]:
    try:
        return REPLY, answer(request, frames)
    except UnderstudyError as error:
        return ERROR, f"{type(error).__name__}: {error}".encode()
    except BrokenPipeError:
        raise
    except Exception:  # any error: the jar shows it to the user
        return ERROR, traceback.format_exc().encode()


def _listen(frames: Frames, requests: queue.Queue[bytes], is_busy: threading.Event, at_end: Callable[[], None]) -> None:
    code = 0
    try:
        while True:
            readable, _, _ = select.select([frames.source], [], [], _BEAT_S if is_busy.is_set() else None)
            if readable:
                request = frames.read_request()
                if request is None:
                    break
                is_busy.set()
                requests.put(request)
            else:
                frames.beat()
    except BrokenPipeError:
        pass
    except BaseException:  # without this thread the process would never end
        traceback.print_exc()
        code = 1
    finally:
        try:
            at_end()
        finally:
            # Nothing waits for this process, so Python's orderly exit is skipped.
            os._exit(code)


def to_json(found: object) -> bytes:
    """Write a reply as JSON, in the form in which PySpark writes offsets."""
    return json.dumps(found).encode()
