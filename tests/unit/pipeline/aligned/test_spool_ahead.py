"""The next batch in the spool while Spark runs the current one: the same batches, and a file holds just its batch."""

from __future__ import annotations

import errno
import logging
import tempfile
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
from tests.support.spark.scripted_input import ScriptedServer

from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner import PlannedBatch
from understudy_aligned.shared_read_ahead import COUNT_INTERVAL_MS
from understudy_aligned.spool import RecordsForm, RowsForm, Spool, SpoolFile, SpoolForm, read_spool
from understudy_aligned.stream import SpoolAhead

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
        form: SpoolForm = RowsForm(self.query.options) if has_rows else RecordsForm()
        self.ahead = SpoolAhead(Spool(folder, form.schema), self.query.planner, is_ahead=is_ahead, form=form)
        for log in server.logs:
            server.withhold(*log)
        self.query.begin()
        for log, records in server.logs.items():
            server.release(*log, len(records))
        self.query.wait_for_records(sum(map(len, server.logs.values())))

    def next(self) -> tuple[PlannedBatch, SpoolFile] | None:
        """The next batch, if there is one, with its file."""
        with self.ahead.hold():
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
            expected = form.form(batch.ranges, batch.end).parts
            assert in_file(file) == rows(expected)
            query.ahead.write_next()
        assert query.count() == 3
