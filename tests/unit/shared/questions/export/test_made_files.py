"""Files that are made once for all readers: what is held, and what a crowd of readers can take."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from understudy_shared.http.problems import ProblemError, ProblemType
from understudy_shared.questions.export import store_files
from understudy_shared.questions.export.store_files import (
    MAX_FILE_BYTES,
    MAX_HELD_BYTES,
    MAX_HELD_FILES,
    MAX_LIVING_BYTES,
    BytesFile,
    MadeFile,
    MadeFiles,
    TableFile,
)


async def small() -> MadeFile:
    made = MadeFile("small")
    made.size_bytes = 10
    return made


async def large() -> MadeFile:
    made = MadeFile("large")
    made.size_bytes = MAX_FILE_BYTES
    return made


def descriptors() -> int:
    """The open files of this process, without those that nothing refers to."""
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


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


async def test_however_many_questions_a_reader_has_few_files_and_one_timer_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, before = asyncio.get_running_loop(), descriptors()
    timers, call_later = list[float](), loop.call_later

    def counted(delay: float, *rest: object) -> asyncio.TimerHandle:
        timers.append(delay)
        return call_later(delay, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_later", counted)
    files = MadeFiles()
    for number in range(4 * MAX_HELD_FILES):
        await files.get(number, small)
    assert descriptors() - before <= MAX_HELD_FILES
    assert len(timers) == 1
    for number in range(10):
        await files.get(("large", number), large)
    assert sum(made.size_bytes for made, _ in files._held.values()) <= MAX_HELD_BYTES


async def test_files_that_were_not_used_for_long_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files, "MAX_HELD_S", -1.0)
    files = MadeFiles()
    first, second = await files.get("a", small), await files.get("a", small)
    assert first is not second
    monkeypatch.setattr(store_files, "MAX_HELD_S", 300.0)
    assert await files.get("a", small) is await files.get("a", small)


async def test_readers_that_do_not_end_are_refused_before_memory_is_full() -> None:
    files, most = MadeFiles(), MAX_LIVING_BYTES // MAX_FILE_BYTES
    taken = [await files.get(number, large) for number in range(most)]
    with pytest.raises(ProblemError) as refused:
        await files.get(most, large)
    assert refused.value.problem.type is ProblemType.OVERLOADED
    taken.clear()
    gc.collect()
    assert await files.get("later", large), "there is room again once they have left"


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
