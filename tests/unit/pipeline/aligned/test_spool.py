"""The spool: a batch in a file, the next one while Spark runs the current one, and the lock of a checkpoint."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.spark.planned_query import NO_OPTIONS, PlannedQuery, ordinals
from tests.support.spark.queries import wait_until
from tests.support.spark.scripted_input import ScriptedRecord, ScriptedServer, rows_of

from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner import PlannedBatch
from understudy_aligned.shared_read_ahead import COUNT_INTERVAL_MS
from understudy_aligned.spool import RecordsForm, RowsForm, Spool, SpoolFile, SpoolPlace, read_spool
from understudy_aligned.stream import CheckpointInUseError, CheckpointLock, SpoolAhead

FIRST = rows_of([ScriptedRecord(1, b"a"), ScriptedRecord(None, b"b")], 0)
SECOND = rows_of([ScriptedRecord(3, b"c")], 2)
OTHER = rows_of([ScriptedRecord(2, b"x")], 0)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(tmp_path / "spool")
    yield made
    made.close()


def records_in(path: str, parts: Sequence[Sequence[SpoolPlace]]) -> list[list[pa.RecordBatch]]:
    return [[piece.records for piece in part] for part in read_spool(path, parts)]


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.arrow"))


def test_small_record_batches_share_one_and_large_ones_do_not(tmp_path: Path) -> None:
    large = rows_of([ScriptedRecord(1, bytes(2 << 20))], 5)
    spool = Spool(tmp_path / "spool", joins=True)
    parts = [[FIRST, SECOND], [], [large], [OTHER], [FIRST]]
    written = spool.write(parts)
    assert written is not None
    assert [[place.batch for place in places] for places in written.parts] == [[0, 0], [], [1], [2], [2]]
    assert records_in(written.path, written.parts) == parts
    assert records_in(written.path, written.parts[3:]) == parts[3:]
    spool.close()


def test_there_is_one_batch_at_a_time_and_no_two_have_one_name(spool: Spool, tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        written = spool.write([[FIRST]])
        assert written is not None
        assert files(tmp_path) == [Path(written.path)]
        names.add(written.path)
    assert len(names) == 3


def test_a_batch_is_written_over_a_file_that_is_not_read_any_more(spool: Spool, tmp_path: Path) -> None:
    before = spool.write([[FIRST, SECOND]])
    assert before is not None
    inode = Path(before.path).stat().st_ino
    spool.reuse(before.path)
    with pytest.raises(OSError, match="No such file"):
        records_in(before.path, before.parts)[0]
    after = spool.write([[OTHER]])
    assert after is not None
    assert Path(after.path).stat().st_ino == inode
    assert records_in(after.path, after.parts)[0] == [OTHER]
    assert files(tmp_path) == [Path(after.path)]


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_a_file_that_is_not_whole_is_not_taken_for_one(spool: Spool, kept: int) -> None:
    written = spool.write([[FIRST]])
    assert written is not None
    content = Path(written.path).read_bytes()
    Path(written.path).write_bytes(content[:kept])
    with pytest.raises((OSError, pa.ArrowException)):
        records_in(written.path, written.parts)[0]


def test_a_planner_that_starts_removes_what_dead_ones_left_and_nothing_of_the_living(tmp_path: Path) -> None:
    living, dead = Spool(tmp_path), tmp_path / "planner-dead"
    assert living.write([[FIRST]]) is not None
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "7.arrow").write_bytes(b"x")
    third = Spool(tmp_path)
    assert third.write([[SECOND]]) is not None
    assert not dead.exists()
    assert len(files(tmp_path)) == 2
    living.close()
    third.close()
    assert list(tmp_path.iterdir()) == []


def test_a_failing_disk_is_reported_once_and_the_batch_goes_on_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "spool"
    in_the_way.touch()
    spool = Spool(in_the_way)
    with caplog.at_level(logging.WARNING):
        assert [spool.write([[FIRST]]) for _ in range(3)] == [None] * 3
    assert [record.message for record in caplog.records if "read twice" in record.message] == [caplog.messages[0]]
    in_the_way.unlink()
    assert spool.write([[FIRST]]) is not None
    spool.close()


def test_a_folder_of_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "spool"
    root.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    spool = Spool(root)
    if root.stat().st_uid == 0:
        os.chown(root, 4_000_001, -1)
    assert spool.write([[FIRST]]) is None


def test_a_batch_that_is_written_beside_another_leaves_that_one_alone(spool: Spool, tmp_path: Path) -> None:
    first = spool.write([[FIRST]])
    assert first is not None
    second = spool.write_beside(first, [[SECOND]])
    assert files(tmp_path) == [Path(first.path), Path(second.path)]
    third = spool.write_beside(second, [[OTHER]])
    assert files(tmp_path) == [Path(second.path), Path(third.path)]
    assert records_in(second.path, second.parts)[0] == [SECOND]


def test_a_batch_that_cannot_be_written_beside_another_leaves_no_part_of_it(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = spool.write([[FIRST]])
    assert kept is not None

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(pa.ipc, "new_file", fail)
    with pytest.raises(OSError, match="No space left"):
        spool.write_beside(kept, [[SECOND]])
    assert files(tmp_path) == [Path(kept.path)]


A, B = TopicPartition("a", 0), TopicPartition("b", 0)
Logs = tuple[Sequence[int], Sequence[int]]


class SpooledQuery:
    """A query whose planner has fetched everything, and the spool that it writes."""

    def __init__(
        self,
        server: ScriptedServer,
        folder: Path,
        options: AlignedOptions,
        *,
        is_ahead: bool = True,
        has_rows: bool = False,
    ) -> None:
        self.query = PlannedQuery(server, options=options)
        self.folder = folder
        form = RowsForm(self.query.options) if has_rows else RecordsForm()
        self.ahead = SpoolAhead(Spool(folder, form.schema), self.query.planner, is_ahead=is_ahead, form=form)
        for log in server.logs:
            server.withhold(*log)
        self.query.begin()
        for log, records in server.logs.items():
            server.release(*log, len(records))
        self.query.wait_for_records(sum(map(len, server.logs.values())))

    def next(self) -> tuple[PlannedBatch, SpoolFile] | None:
        """The next batch, if there is one, with its file."""
        with self.ahead.writing:
            batch = self.query.at_once()
            if batch is None:
                return None
            file = self.ahead.file_of(batch)
        assert file is not None
        return batch, file

    def files(self) -> list[str]:
        return [str(path) for path in self.folder.rglob("*.arrow")]

    def count(self) -> int:
        """Batches that were there when they were asked for."""
        return self.query.planner.counts.spooled_ahead

    def stop(self) -> None:
        self.ahead.stop()
        self.query.planner.stop()


@contextmanager
def spooled(
    server: ScriptedServer, options: AlignedOptions, *, is_ahead: bool = True, has_rows: bool = False
) -> Iterator[SpooledQuery]:
    with tempfile.TemporaryDirectory() as folder:
        made = SpooledQuery(server, Path(folder), options, is_ahead=is_ahead, has_rows=has_rows)
        try:
            yield made
        finally:
            made.stop()


def server_of(logs: Logs) -> ScriptedServer:
    made = ScriptedServer({"a": 1, "b": 1})
    made.put("a", 0, *logs[0])
    made.put("b", 0, *logs[1], size=1)
    return made


def options(records: int, **changed: Any) -> AlignedOptions:
    return replace(NO_OPTIONS, max_poll_records=records, **changed)


def rows(parts: Sequence[Sequence[pa.RecordBatch]]) -> list[list[dict[str, Any]]]:
    return [[row for batch in part for row in batch.to_pylist()] for part in parts]


def in_file(file: SpoolFile) -> list[list[dict[str, Any]]]:
    return rows([[piece.records for piece in part] for part in read_spool(file.path, file.parts)])


BACKLOG: Logs = (range(0, 40, 2), range(1, 40, 2))


@settings(max_examples=15, deadline=None)
@given(
    logs=st.tuples(*(st.lists(st.integers(0, 30), max_size=12) for _ in range(2))),
    records=st.sampled_from([-1, 1, 3, 5]),
    idle_ms=st.sampled_from([-1, 0, 1_000]),
)
def test_batches_are_the_same_with_it_and_without_it_and_a_file_holds_just_its_batch(
    logs: tuple[list[int], list[int]], records: int, idle_ms: int
) -> None:
    def offsets(*, is_ahead: bool) -> list[object]:
        with spooled(server_of(logs), options(records, max_task_idle_ms=idle_ms), is_ahead=is_ahead) as query:
            found: list[object] = []
            while (planned := query.next()) is not None:
                batch, file = planned
                found.append(batch.end.to_json())
                assert in_file(file) == rows([part for _, part in batch.ranges])
                query.ahead.write_next()
                assert len(query.files()) <= 2
                assert file.path in query.files(), "Spark runs it"
            return found

    assert offsets(is_ahead=True) == offsets(is_ahead=False)


@pytest.mark.parametrize(
    ("logs", "records"),
    [
        pytest.param(BACKLOG, -1, id="without a bound a batch takes all that has come by then"),
        pytest.param(((0, 2, 4), (1, 3)), 2, id="it would not be full"),
    ],
)
def test_what_would_be_smaller_than_a_batch_of_its_time_is_not_written_ahead(logs: Logs, records: int) -> None:
    with spooled(server_of(logs), options(records)) as query:
        planned = query.next()
        assert planned is not None
        query.ahead.write_next()
        assert query.files() == [planned[1].path]


def test_a_file_that_was_written_ahead_is_not_taken_for_another_batch() -> None:
    server = server_of(BACKLOG)
    with spooled(server, options(4)) as query:
        first = query.query.offset
        before = query.next()
        query.ahead.write_next()
        assert len(query.files()) == 2
        query.query.offset = first
        query.query.begin()
        server.withheld.clear()
        query.query.wait_for_records(40)
        again = query.next()
        assert before is not None
        assert again is not None
        assert again[0].end == before[0].end
        assert in_file(again[1]) == rows([part for _, part in before[0].ranges])
        assert query.count() == 0


def test_records_of_a_topic_that_was_made_anew_meanwhile_are_not_taken_for_those_before() -> None:
    """They have the same offsets, and the batch the same ranges."""
    server = server_of(((10, 11, 12, 13), (1, 2, 20, 30)))
    server.ids = {"a": "first"}
    with spooled(server, options(2, fail_on_data_loss=False)) as query:
        planned = query.next()
        assert planned is not None
        assert ordinals(planned[0]) == {B: [0, 1]}
        query.ahead.write_next()
        assert len(query.files()) == 2
        server.withheld.clear()
        server.make_anew("a", "second")
        server.put("a", 0, 10, 11, 12, 13, size=7)
        query.query.clock.advance(COUNT_INTERVAL_MS)
        wait_until(
            lambda: (
                query.query.planner._shared.ahead.topic_ids == {"a": "second"}
                and query.query.planner.snapshot().input_buffer_records == 6
            ),
            what="the new topic",
        )
        again = query.next()
        assert again is not None
        assert ordinals(again[0]) == {A: [0, 1]}
        assert [len(row["value"]) for row in in_file(again[1])[0]] == [7, 7]
        assert query.count() == 0


def test_a_disk_without_room_for_two_files_is_reported_once_and_batches_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = Spool.write_beside

    def full(self: Spool, kept: SpoolFile | None, parts: Sequence[Sequence[pa.RecordBatch]]) -> SpoolFile:
        if kept is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, kept, parts)

    monkeypatch.setattr(Spool, "write_beside", full)
    caplog.set_level(logging.INFO)
    with spooled(server_of(BACKLOG), options(4)) as query:
        for _ in range(4):
            planned = query.next()
            assert planned is not None
            query.ahead.write_next()
            assert query.files() == [planned[1].path]
        assert query.count() == 0
    said = [record.getMessage() for record in caplog.records if record.__dict__.get("action") == "spool-ahead"]
    assert said == ["the next batch is not written ahead: [Errno 28] No space left on device"]


def test_rows_that_are_written_ahead_are_those_of_the_batch_with_its_number_and_stream_time() -> None:
    of_rows = options(4, include_stream_time=True)
    with spooled(server_of(BACKLOG), of_rows, has_rows=True) as query:
        form = RowsForm(query.query.options)
        for _ in range(4):
            planned = query.next()
            assert planned is not None
            batch, file = planned
            expected, _ = form.form(batch.ranges, batch.end)
            assert in_file(file) == rows(expected)
            query.ahead.write_next()
        assert query.count() == 3


HOLDER = """
import sys
from pathlib import Path
from understudy_aligned.stream import CheckpointLock
lock = CheckpointLock(Path(sys.argv[1]))
sys.stdout.write("held\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def test_a_killed_planner_holds_nothing(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CheckpointInUseError, match=f"process {holder.pid}"):
            CheckpointLock(tmp_path, wait_s=0)
        holder.send_signal(signal.SIGKILL)
    CheckpointLock(tmp_path, wait_s=0).release()


def test_a_query_that_is_started_again_at_once_waits_for_its_old_planner_to_go(tmp_path: Path) -> None:
    old = CheckpointLock(tmp_path)
    leaving = threading.Timer(0.1, old.release)
    leaving.start()
    CheckpointLock(tmp_path, wait_s=60).release()
    leaving.join()
