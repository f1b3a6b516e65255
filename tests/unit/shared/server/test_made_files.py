"""Files that are made once for all readers: what is held, and what a crowd of readers can take."""

from __future__ import annotations

import asyncio
import threading

import pyarrow as pa
import pytest

from understudy_shared.reads.table_file import BytesFile, TableFile
from understudy_shared.server.made_files import (
    MadeFile,
    MadeFiles,
)


async def small() -> MadeFile:
    made = MadeFile("small")
    made.size_bytes = 10
    return made


async def test_a_file_is_made_once_for_all_who_ask_and_given_up_when_all_have_left() -> None:
    files, begun, may_end = MadeFiles(), list[str](), asyncio.Event()

    async def make() -> MadeFile:
        begun.append("begun")
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            begun.append("given up")
            raise
        return await small()

    readers = [asyncio.ensure_future(files.get("a", make)) for _ in range(3)]
    await asyncio.sleep(0)
    readers[0].cancel()
    may_end.set()
    assert await readers[1] is await readers[2]
    assert begun == ["begun"]
    may_end.clear()
    left = asyncio.ensure_future(files.get("b", make))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait({left})
    await asyncio.sleep(0)
    assert begun == ["begun", "begun", "given up"]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_file_is_closed_after_the_thread_that_writes_it(ending: str) -> None:
    made = MadeFile("written")
    file = TableFile(made.descriptor, ending) if ending == "parquet" else BytesFile(made.descriptor)
    ended = threading.Thread(target=file.close)
    with file._lock:  # a thread writes
        ended.start()
        ended.join(0.05)
        assert not file._file.closed
    ended.join(10)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("n", pa.int64())], {b"understudy": b"{}"})):
        pass
    with pytest.raises(ValueError, match="closed"):
        file.add(sink.getvalue().to_pybytes())
