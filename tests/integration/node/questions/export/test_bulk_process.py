"""The process for bulk parts makes the rows that the node has; when it dies, no reader loses a part."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.oracle.exported import export
from tests.support.oracle.scanned import scanned
from tests.support.spark.queries import wait_until

from understudy_node.questions.export.bulk import process as bulk_process
from understudy_node.questions.export.bulk.process import BulkProcess
from understudy_node.questions.export.parts import BulkQuestion, MadePart, export_columns
from understudy_node.questions.scan.rows import keys_after, row_maker
from understudy_node.replica.read_views import Reading
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.words import StoreName
from understudy_shared.questions.scan.page import Place, Room
from understudy_shared.questions.scan.question import ScanQuestion
from understudy_shared.reads.bounds import NO_BOUND
from understudy_shared.reads.export_format import ExportFormat

LAST = 5


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedNode]:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", provider=spark.ROCKSDB, partitions=1).create()
    checkpoint.add(*range(1, LAST + 1))
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(LAST)
        yield node


@asynccontextmanager
async def running(served: ServedNode) -> AsyncIterator[BulkProcess]:
    bulk = BulkProcess(lambda: served.node.generation)
    try:
        yield bulk
    finally:
        await bulk.close()


def reader_of(served: ServedNode) -> StoreReader:
    assert served.node.generation is not None
    return served.node.generation.readers[StoreName("op0")]


def reading_of(reader: StoreReader) -> Reading:
    reading = reader.read_from(0, NO_BOUND)
    assert isinstance(reading, Reading)
    return reading


def asked_of(reader: StoreReader) -> BulkQuestion:
    question = ScanQuestion()
    maker = row_maker(reader, question)
    return BulkQuestion(maker, question, ExportFormat.NDJSON, export_columns(reader.store))


async def part_of(
    bulk: BulkProcess, reader: StoreReader, after: bytes | None = None, rows: int = 65_536, limit_s: float = 30.0
) -> MadePart | None:
    room = Room(rows, 1 << 22, monotonic() + limit_s)
    return await bulk.part(asked_of(reader), reading_of(reader), Place(0, after), room)


def payload_of(part: MadePart) -> bytes:
    return b"".join(part.pieces)


def plain(reader: StoreReader) -> bytes:
    maker, reading = row_maker(reader, ScanQuestion()), reading_of(reader)
    return b"".join(
        b'{"row":%b}\n' % (maker.row(key, reading, 0) or b"") for key in keys_after(reader, reading.view, None)
    )


async def test_parts_have_the_rows_of_the_version_on_show(served: ServedNode) -> None:
    reader = reader_of(served)
    async with running(served) as bulk:
        lines, after = b"", None
        while (part := await part_of(bulk, reader, after, rows=2)) is not None:
            lines, after = lines + payload_of(part), part.after
            if part.is_end:
                break
        assert lines == plain(reader)
        assert (bulk.started, bulk.declined) == (1, 0)


async def test_the_death_of_the_process_declines_a_part_and_the_next_starts_a_new_one(served: ServedNode) -> None:
    reader = reader_of(served)
    async with running(served) as bulk:
        assert await part_of(bulk, reader) is not None
        os.kill(pid_of(bulk), signal.SIGSTOP)
        making = asyncio.ensure_future(part_of(bulk, reader))
        await asyncio.sleep(0)
        os.kill(pid_of(bulk), signal.SIGKILL)
        assert await making is None
        part = await part_of(bulk, reader)
        assert part is not None
        assert payload_of(part) == plain(reader)
        assert (bulk.started, bulk.made, bulk.declined) == (2, 2, 1)


async def test_a_process_that_hangs_is_killed(served: ServedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(served)
    async with running(served) as bulk:
        assert await part_of(bulk, reader) is not None
        stopped = pid_of(bulk)
        os.kill(stopped, signal.SIGSTOP)
        monkeypatch.setattr(bulk_process, "LIMIT_S", 0.0)
        assert await part_of(bulk, reader, limit_s=0.05) is None
        monkeypatch.undo()
        await gone(stopped)
        assert await part_of(bulk, reader) is not None


async def test_a_part_whose_reader_leaves_is_dropped_and_cuts_off_no_answer(served: ServedNode) -> None:
    reader = reader_of(served)
    async with running(served) as bulk:
        assert await part_of(bulk, reader) is not None
        os.kill(pid_of(bulk), signal.SIGSTOP)
        making = asyncio.ensure_future(part_of(bulk, reader))
        waiting = asyncio.ensure_future(part_of(bulk, reader))
        await asyncio.sleep(0.01)
        making.cancel()
        waiting.cancel()
        await asyncio.wait([making, waiting])  # only then has the process been told
        os.kill(pid_of(bulk), signal.SIGCONT)
        part = await part_of(bulk, reader, rows=1)
        assert part is not None
        assert part.found == 1
        assert (bulk.started, bulk.dropped, bulk.declined) == (1, 1, 0)


async def test_an_idle_process_ends_and_leaves_nothing(served: ServedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(served)
    async with running(served) as bulk:
        before = open_files()
        monkeypatch.setattr(bulk_process, "IDLE_S", 0.01)
        assert await part_of(bulk, reader) is not None
        idle = pid_of(bulk)
        await gone(idle)
        await asyncio.to_thread(wait_until, lambda: open_files() <= before, what="its files are closed")
        monkeypatch.undo()
        assert await part_of(bulk, reader) is not None
        assert bulk.started == 2


def test_an_export_is_whole_though_its_process_is_killed(served: ServedNode) -> None:
    rows = scanned(served, "op0")
    assert export(served).rows == rows
    (process,) = workers()
    os.kill(process, signal.SIGKILL)
    assert export(served).rows == rows
    assert export(served).rows == rows
    (other,) = workers()
    assert other != process


def pid_of(bulk: BulkProcess) -> int:
    assert bulk.pid is not None
    return bulk.pid


def workers() -> list[int]:
    """The processes for exports of this one."""
    children = [each.read_text().split() for each in Path("/proc/self/task").glob("*/children")]
    found = [int(pid) for pids in children for pid in pids]
    return [
        pid
        for pid in found
        if b"understudy_node.questions.export.bulk.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def gone(pid: int) -> None:
    await asyncio.to_thread(wait_until, lambda: not Path(f"/proc/{pid}").exists(), what="the end of the process")
