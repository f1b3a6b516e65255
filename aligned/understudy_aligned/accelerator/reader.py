"""A reading process for the jar: `python -m understudy_aligned.accelerator.reader <protocol>`.

It reads the batches that are not in the spool: those that run again, and those of executors on other machines.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import pyarrow as pa

from understudy_aligned.accelerator.serving import Frames, serve
from understudy_aligned.reading import ReadTask, read_task
from understudy_aligned.rows import arrow_schema

_BUFFER_BYTES = 1 << 18


class _Data(io.RawIOBase):
    """A file whose contents go to the jar."""

    def __init__(self, frames: Frames) -> None:
        super().__init__()
        self._frames = frames

    def writable(self) -> bool:
        return True

    def write(self, found: Any) -> int:
        view = memoryview(found).cast("B")
        self._frames.write_data(view)
        return len(view)


def answer(request: bytes, frames: Frames) -> bytes:
    """Read a task (pickled by the planner), and send its rows as an Arrow stream. Raises like `read_task`."""
    task: ReadTask = pickle.loads(request)  # noqa: S301  # made by the planner's process
    with (
        io.BufferedWriter(_Data(frames), _BUFFER_BYTES) as file,
        pa.ipc.new_stream(file, arrow_schema(task.options)) as stream,
    ):
        for rows in read_task(task):
            stream.write_batch(rows)
    return b""


def main() -> None:
    serve(answer, at_end=lambda: None)


if __name__ == "__main__":
    main()
