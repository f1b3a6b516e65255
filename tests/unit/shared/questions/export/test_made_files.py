"""Files that are made once for all readers: what is held, and what a crowd of readers can take."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from understudy_shared.http.problems import ProblemError, ProblemType
from understudy_shared.questions.export.store_files import BytesFile, TableFile
from understudy_shared.server import made_files
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.connection_limits import ConnectionLimits, Pressure
from understudy_shared.server.made_files import (
    MAX_FILE_BYTES,
    MAX_HELD_BYTES,
    MAX_HELD_FILES,
    MAX_LIVING_BYTES,
    MadeFile,
    MadeFiles,
)

MIB = 1024 * 1024


async def small(made: MadeFile) -> None:
    made.size_bytes = 10


async def large(made: MadeFile) -> None:
    made.size_bytes = MAX_FILE_BYTES


def descriptors() -> int:
    """The open files of this process, without those that nothing refers to."""
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_a_file_is_made_once_for_all_who_ask_and_given_up_when_all_have_left() -> None:
    files, begun, may_end = MadeFiles(), list[str](), asyncio.Event()

    async def make(made: MadeFile) -> None:
        begun.append("begun")
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            begun.append("given up")
            raise
        await small(made)

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
    monkeypatch.setattr(made_files, "MAX_HELD_S", -1.0)
    files = MadeFiles()
    first, second = await files.get("a", small), await files.get("a", small)
    assert first is not second
    monkeypatch.setattr(made_files, "MAX_HELD_S", 300.0)
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


async def test_a_process_with_little_memory_keeps_less_and_refuses_sooner_but_makes_one_file_beside_another() -> None:
    files = MadeFiles(512 * MIB)
    taken = [await files.get(number, large) for number in range(2)]
    assert [made.size_bytes for made, _ in files._held.values()] == [64 * MIB]
    with pytest.raises(ProblemError):
        await files.get("third", large)
    taken.pop(0)
    assert await files.get("third", large)
    tiny = MadeFiles(MIB)
    assert await tiny.get("a", large)
    assert not tiny._held


@pytest.fixture
async def guard() -> AsyncIterator[ConnectionGuard]:
    found = ConnectionGuard(ConnectionLimits(memory_limit_bytes=1 << 40))
    found.start()
    yield found
    found.stop()


async def test_the_bytes_of_files_count_as_memory_while_they_are_written_and_until_their_last_reader_has_left(
    guard: ConnectionGuard,
) -> None:
    seen = list[int]()

    def look() -> None:
        guard.look(0)
        seen.append(guard.used_bytes)

    async def make(made: MadeFile) -> None:
        for _ in range(2):
            for _ in range(32):
                os.write(made.descriptor, bytes(MIB))
            look()
        made.size_bytes = 64 * MIB

    look()
    made = await guard.files.get("a", make)
    guard.files.give_back()
    look()
    del made
    await asyncio.sleep(0)
    look()
    assert [round((used - seen[0]) / (32 * MIB)) for used in seen] == [0, 1, 2, 2, 0]


async def test_cached_files_go_first_when_memory_is_short(guard: ConnectionGuard) -> None:
    await guard.files.get("a", small)
    guard.limits = ConnectionLimits(memory_limit_bytes=1)
    guard.look(1000)
    assert guard.pressure is Pressure.REFUSE
    assert not guard.files._held


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_file_is_closed_after_the_thread_that_writes_it(ending: str) -> None:
    made = MadeFile()
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
