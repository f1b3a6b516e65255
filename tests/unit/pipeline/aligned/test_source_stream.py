"""One run of a query, without Spark: offsets in JSON, what is read between two, and what must not be continued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest
from tests.support.spark.planned_query import logged, merge_order, rows_between
from tests.support.spark.queries import wait_until
from tests.support.spark.scripted_input import ScriptedServer

from understudy_aligned.offset import OffsetError
from understudy_aligned.open_inputs import OpenInputs, check_opened
from understudy_aligned.options import AlignedOptions
from understudy_aligned.spool import Spool
from understudy_aligned.stream import AlignedStream, CheckpointInUseError, CheckpointLock, Json
from understudy_shared.base.errors import UnderstudyError


@pytest.fixture
def server() -> ScriptedServer:
    made = ScriptedServer({"weather": 1, "flights": 1})
    made.put("weather", 0, 10, 30, 50)
    made.put("flights", 0, 20, 40)
    return made


@pytest.fixture
def options(server: ScriptedServer, tmp_path: Path) -> AlignedOptions:
    return AlignedOptions(
        inputs=(server.config,), topics=("weather", "flights"), spool=tmp_path / "spool", max_task_idle_ms=-1
    )


@pytest.fixture
def stream(options: AlignedOptions) -> Iterator[AlignedStream]:
    made = AlignedStream(options)
    yield made
    made.stop()


def advance(stream: AlignedStream, start: Json, *, records: int) -> list[Json]:
    """Offsets of the batches until so many records are in them; the first is `start`."""
    found, count = [start], 0
    while count < records:
        end = logged(stream.latest_offset(found[-1]))
        if end != found[-1]:
            found.append(end)
            count += int(str(end["records"]))
    return found


def plan_all(options: AlignedOptions) -> tuple[Json, Json]:
    """The offsets of one batch of everything. Its query has ended."""
    stream = AlignedStream(options)
    start = logged(stream.initial_offset())
    end = logged(stream.latest_offset_of_all(start))
    stream.stop()
    return start, end


def values(stream: AlignedStream, start: Json, end: Json) -> list[tuple[str, str, int]]:
    rows = rows_between(stream, start, end)
    return [(row["topic"], row["offset"], row["merge_order"]["effective_ms"]) for row in rows]


ALL = [("weather", "0", 10), ("flights", "0", 20), ("weather", "1", 30), ("flights", "1", 40), ("weather", "2", 50)]


def test_a_logged_batch_is_the_same_for_a_planner_that_never_planned_it(
    stream: AlignedStream, options: AlignedOptions
) -> None:
    *_, start, end = advance(stream, logged(stream.initial_offset()), records=5)
    planned = rows_between(stream, start, end)
    stream.stop()
    again = AlignedStream(options)
    assert rows_between(again, start, end) == planned
    assert {row["merge_order"]["batch"] for row in planned} == {end["batches"]}
    assert not list((options.spool or Path()).rglob("*.arrow"))


def test_a_logged_batch_that_compaction_made_smaller_is_counted_with_the_spool_and_named_in_the_log_without_it(
    server: ScriptedServer, options: AlignedOptions, caplog: pytest.LogCaptureFixture
) -> None:
    start, end = plan_all(options)
    assert end["records"] == 5
    server.compact("weather", 0, 0, 1)
    server.put("weather", 0, 60)
    for spool, counted in ((options.spool, 2), (None, None)):
        again = AlignedStream(replace(options, spool=spool))
        assert len(rows_between(again, start, end)) == 3
        advance(again, end, records=1)
        assert (again.metrics() or {}).get("compacted-records-total") == counted
        again.stop()
    named = [vars(record) for record in caplog.records if vars(record).get("action") == "compacted"]
    assert [(each["topic"], each["partition"], each["records"]) for each in named] == [("weather", 0, 2)] * 2


def test_one_sort_by_merge_order_gives_the_delivery_of_the_querys_whole_life(
    server: ScriptedServer, options: AlignedOptions, stream: AlignedStream
) -> None:
    """Through a restart, and where records come that are older than what was delivered before them."""
    offsets = advance(stream, logged(stream.initial_offset()), records=5)
    server.put("flights", 0, 5, 60)
    server.put("weather", 0, 7)
    stream.stop()
    again = AlignedStream(options)
    offsets += advance(again, offsets[-1], records=3)[1:]
    delivered = [row for start, end in pairwise(offsets) for row in rows_between(again, start, end)]
    again.stop()
    assert len(offsets) > 2
    keys = [merge_order(row) for row in delivered]
    assert keys == sorted(set(keys))
    assert len(keys) == 8


def test_nothing_new_is_said_only_when_every_input_has_answered(server: ScriptedServer, stream: AlignedStream) -> None:
    """`processAllAvailable` believes it: all 5 records are there, and their server is slow."""
    start = logged(stream.initial_offset())
    server.hang()
    found: list[Json] = []
    asking = Thread(target=lambda: found.append(stream.latest_offset(start)))
    asking.start()
    wait_until(lambda: server.has_caught, what="a call that hangs")
    wait_until(lambda: (stream.metrics() or {}).get("starting") == ["scripted"], what="whom the query waits for")
    assert found == []
    server.resume()
    asking.join(30)
    assert found[0] != start
    advance(stream, start, records=5)
    assert (stream.metrics() or {})["starting"] == []


def test_once_plans_one_batch_to_the_ends_of_now_whatever_bounds_a_batch(
    server: ScriptedServer, options: AlignedOptions
) -> None:
    stream = AlignedStream(replace(options, max_poll_records=1))
    start = logged(stream.initial_offset())
    end = logged(stream.latest_offset_of_all(start))
    server.put("weather", 0, 60)
    assert (end["batches"], end["records"]) == (1, 5)
    assert sorted(values(stream, start, end)) == sorted(ALL)
    stream.stop()
    again = AlignedStream(options)
    assert again.latest_offset_of_all(end)["records"] == 1
    again.stop()


def test_where_a_new_checkpoint_begins_is_decided_once(server: ScriptedServer, options: AlignedOptions) -> None:
    stream = AlignedStream(replace(options, starting="latest"))
    first = stream.initial_offset()
    server.put("weather", 0, 60)
    assert stream.initial_offset() == first
    *_, end = advance(stream, logged(first), records=1)
    assert values(stream, logged(first), end) == [("weather", "3", 60)]
    stream.stop()


@pytest.mark.parametrize("plan", [AlignedStream.latest_offset, AlignedStream.latest_offset_of_all])
@pytest.mark.parametrize("later", [(), (80, 90, 95)])
def test_a_first_batch_that_was_logged_is_the_same_wherever_a_new_checkpoint_would_begin_by_now(
    server: ScriptedServer,
    options: AlignedOptions,
    plan: Callable[[AlignedStream, Json], Json],
    later: tuple[int, ...],
) -> None:
    """Spark asks again for the beginning: it logs that with the commit of the first batch only."""
    options = replace(options, starting="latest")
    stream = AlignedStream(options)
    start = logged(stream.initial_offset())
    server.put("weather", 0, 60, 70)
    end = logged(plan(stream, start))
    stream.stop()
    server.put("weather", 0, *later)
    again = AlignedStream(options)
    beginning = logged(again.initial_offset())
    assert beginning != start
    assert values(again, beginning, end) == [("weather", "3", 60), ("weather", "4", 70)]
    assert again.tasks(beginning, start) == [], "a first batch without records"
    assert not later or "begins" not in plan(again, end), "a later batch needs no other beginning"
    again.stop()


@pytest.mark.parametrize("place", ["latest", "start", "end"])
def test_a_checkpoint_of_other_options_is_refused_wherever_it_shows(
    stream: AlignedStream, options: AlignedOptions, place: str
) -> None:
    other = logged(AlignedStream(replace(options, topics=("flights", "weather"))).initial_offset())
    mine = logged(stream.initial_offset())
    asked: dict[str, Callable[[], object]] = {
        "latest": lambda: stream.latest_offset(other),
        "start": lambda: stream.tasks(other, mine),
        "end": lambda: stream.tasks(mine, other),
    }
    with pytest.raises(OffsetError, match="topics"):
        asked[place]()


def test_a_batch_with_poison_that_was_under_way_is_not_given_other_rows(
    server: ScriptedServer, options: AlignedOptions
) -> None:
    server.put("flights", 0, None)
    keeping = AlignedStream(replace(options, undecodable="keep"))
    *_, start, end = advance(keeping, logged(keeping.initial_offset()), records=6)
    assert ("flights", "2", 40) in values(keeping, start, end)
    keeping.stop()
    skipping = AlignedStream(replace(options, undecodable="skip"))
    with pytest.raises(OffsetError, match="undecodable was 'keep' when it was planned and is 'skip' now"):
        skipping.tasks(start, end)


@pytest.mark.parametrize("is_said_by", ["the option", "Spark"])
def test_the_second_query_on_a_checkpoint_is_refused_until_the_first_stopped(
    options: AlignedOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_said_by: str
) -> None:
    monkeypatch.setattr("understudy_aligned.stream.CheckpointLock", _impatient)
    if is_said_by == "Spark":
        folder = tmp_path / "checkpoint" / "sources" / "0"
        first, second = AlignedStream(options, folder=folder), AlignedStream(options, folder=folder)
    else:
        locked = replace(options, checkpoint=tmp_path / "checkpoint")
        first, second = AlignedStream(locked), AlignedStream(locked)
    start = first.initial_offset()
    with pytest.raises(CheckpointInUseError):
        second.initial_offset()
    with pytest.raises(CheckpointInUseError):
        second.tasks(start, start)
    second.finish_at_current_ends()
    first.stop()
    assert second.initial_offset() == start
    second.stop()


def _impatient(checkpoint: Path, *, source: str = "0") -> CheckpointLock:
    return CheckpointLock(checkpoint, source=source, wait_s=0)


def test_two_sources_of_one_query_do_not_refuse_each_other(options: AlignedOptions, tmp_path: Path) -> None:
    streams = [AlignedStream(options, folder=tmp_path / "sources" / number) for number in ("0", "1")]
    for stream in streams:
        stream.initial_offset()
    for stream in streams:
        stream.stop()


def test_a_checkpoint_that_cannot_be_locked_stops_a_query_only_if_the_option_names_it(
    options: AlignedOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_text("a file")
    stream = AlignedStream(options, folder=checkpoint / "sources" / "0")
    stream.initial_offset()
    stream.stop()
    (record,) = caplog.records
    assert "a second query on this checkpoint is not noticed" in record.getMessage()
    with pytest.raises(UnderstudyError, match="the checkpoint cannot be locked"):
        AlignedStream(replace(options, checkpoint=checkpoint)).initial_offset()


def test_a_query_reads_by_the_connections_by_which_its_options_were_checked(
    server: ScriptedServer, options: AlignedOptions
) -> None:
    inputs = OpenInputs(options.inputs)
    assert check_opened(options, inputs) == {"weather": 1, "flights": 1}
    stream = AlignedStream(options, inputs)
    advance(stream, logged(stream.initial_offset()), records=5)
    assert (server.opened, server.open_inputs) == (1, 1)
    stream.stop()
    wait_until(lambda: server.open_inputs == 0, what="the input's end")
    check_opened(options, inputs)
    AlignedStream(options, inputs).stop()
    assert server.open_inputs == 0, "no planner took it"


def test_while_a_batch_is_written_nothing_is_read_ahead(stream: AlignedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    free = []

    def write(*_: object) -> None:
        assert stream._planner is not None
        lock = stream._planner._shared.changed

        def ask() -> None:
            free.append(lock.acquire(blocking=False))
            if free[-1]:
                lock.release()

        asking = Thread(target=ask)
        asking.start()
        asking.join()

    monkeypatch.setattr(Spool, "write", write)
    advance(stream, stream.initial_offset(), records=1)
    assert free
    assert not any(free)


def test_the_batch_that_spark_asks_for_next_is_in_the_spool_already_and_the_same_for_who_never_planned_it(
    server: ScriptedServer, options: AlignedOptions
) -> None:
    server.put("weather", 0, *range(60, 100, 2))
    server.put("flights", 0, *range(61, 100, 2))
    bounded = replace(options, max_poll_records=4, max_task_idle_ms=0)
    stream = AlignedStream(bounded)
    *_, start = advance(stream, logged(stream.initial_offset()), records=4)
    before = counted(stream, "spooled-ahead-total")
    spool = bounded.spool or Path()
    wait_until(lambda: len(list(spool.rglob("*.arrow"))) == 2, what="the next batch")
    end = logged(stream.latest_offset(start))
    assert counted(stream, "spooled-ahead-total") == before + 1
    (path,) = {each.spooled[0] for task in stream.tasks(start, end) for each in task.ranges if each.spooled}
    assert Path(path).exists()
    planned = rows_between(stream, start, end)
    assert len(planned) == 4
    stream.stop()
    assert list(spool.iterdir()) == []
    assert rows_between(AlignedStream(bounded), start, end) == planned


def counted(stream: AlignedStream, name: str) -> int:
    metrics = stream.metrics()
    assert metrics is not None
    return int(str(metrics[name]))
