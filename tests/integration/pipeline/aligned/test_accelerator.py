"""The accelerator jar against the Python source: the same rows, batches and errors, and no process that stays."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.support.bus.redis_server import RedisServer
from tests.support.kafka.broker import KafkaBroker
from tests.support.kafka.clients import produce
from tests.support.spark.accelerator import Way, prepared_planners, released_jar
from tests.support.spark.aligned_queries import (
    QUICK,
    InputLogs,
    has_ended,
    load,
    logs_options,
    planner_of,
    running,
    started,
    wait_for_rows,
)
from tests.support.spark.process import spark_job
from tests.support.spark.queries import settings, wait_until

from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.stream import CheckpointLock

TOPICS = "weather,flights"
IDLE_TIMEOUT, DRIVER_PYTHON = "spark.understudy.plannerIdleTimeout", "spark.pyspark.driver.python"
OTHER: Mapping[Way, Way] = {"python": "jar", "jar": "python"}

Options = Mapping[str, str]
RowDicts = list[dict[str, Any]]


@pytest.fixture(autouse=True, scope="module")
def _quick_session(spark: SparkSession) -> Iterator[None]:
    released_jar()
    with settings(spark, QUICK):
        yield


@pytest.fixture
def logs(redis: RedisServer, tmp_path: Path) -> InputLogs:
    """Two topics of two partitions, some records out of order and some without a time."""
    made = InputLogs(redis.url, tmp_path)
    for topic, first in (("weather", 0), ("flights", 5)):
        for partition in range(2):
            made.add(topic, partition, [first + 10 * number for number in range(10)], note="ä€")
            made.add(topic, partition, [first + 95, None, first + 20, first + 100])
    return made


def fill_kafka(broker: KafkaBroker) -> dict[str, str]:
    """Records with and without keys, values and headers."""
    weather, flights = broker.make_topic(2), broker.make_topic(2)
    for partition in range(2):
        produce(broker.servers, TopicPartition(weather, partition), [b"w0", None, b"", b"w3" * 5_000], key=b"k")
        headers = [("a", b"1"), ("b", None)]
        produce(broker.servers, TopicPartition(flights, partition), [b"f0", b"f1"], headers=headers)
        produce(broker.servers, TopicPartition(flights, partition), [b"f2"])
    return {"kafka": broker.servers, "topics": f"{weather},{flights}"}


def rows_of(frame: DataFrame) -> RowDicts:
    """All columns of a batch, in merge order."""
    rows: RowDicts = frame.toArrow().to_pylist()
    return sorted(rows, key=lambda row: tuple(row["merge_order"].values()))


def everything(frame: DataFrame, checkpoint: Path) -> RowDicts:
    """All rows there are, without what depends on where batches end."""
    rows: RowDicts = []
    query = started(frame, checkpoint, lambda batch, _: rows.extend(rows_of(batch)), available_now=True)
    query.awaitTermination()
    for row in rows:
        for name in ("batch", "effective_ms"):
            del row["merge_order"][name]
    return sorted(rows, key=lambda row: (row["merge_order"]["partition"], row["timestamp"] is None, str(row)))


def assert_both_ways_are_the_same(spark: SparkSession, options: Options, folder: Path, *, rows: int) -> None:
    frames = {way: load(spark, options, way) for way in OTHER}
    assert frames["jar"].schema == frames["python"].schema
    found = {way: everything(frame, folder / f"checkpoint-{way}") for way, frame in frames.items()}
    assert found["jar"] == found["python"]
    assert len(found["jar"]) == rows


def test_rows_of_kafka_are_those_of_the_python_source_whatever_is_null(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    options = {**fill_kafka(broker), "include_headers": "true", "spool": str(tmp_path / "spool")}
    assert_both_ways_are_the_same(spark, options, tmp_path, rows=14)


@pytest.mark.full
@pytest.mark.parametrize(
    ("more", "rows"),
    [
        ({"undecodable": "skip"}, 52),
        ({"undecodable": "keep"}, 56),
        ({"undecodable": "partition-time"}, 56),
        ({"undecodable": "skip,weather:keep", "max_timestamp_jump_ms": "20"}, 54),
        ({"undecodable": "keep", "merge": "global"}, 56),
        ({"undecodable": "keep", "reader_tasks": "1", "max_poll_records": "7"}, 56),
        ({"undecodable": "keep", "spool": "off"}, 56),
    ],
    ids=lambda found: ",".join(f"{name}={value}" for name, value in found.items()) if isinstance(found, dict) else "",
)
def test_rows_of_redis_are_those_of_the_python_source_whatever_options_change(
    spark: SparkSession, logs: InputLogs, tmp_path: Path, more: Options, rows: int
) -> None:
    assert_both_ways_are_the_same(spark, {**logs_options(logs, TOPICS), **more}, tmp_path, rows=rows)


class Broken(Exception):  # noqa: N818  # no error of the source
    """The sink refuses a batch."""


def keep_until(rows: dict[int, RowDicts], broken: int | None) -> Callable[[DataFrame, int], None]:
    """Keep all rows of each batch, and refuse the batch that is named, once they are kept."""

    def keep(frame: DataFrame, batch_id: int) -> None:
        assert len(frame.limit(1).collect()) == 1, "a task that ends early leaves no memory behind"
        rows[batch_id] = rows_of(frame)
        if batch_id == broken:
            raise Broken

    return keep


@pytest.mark.parametrize("first", ["python", "jar"])
def test_a_batch_that_runs_again_by_the_other_way_is_the_same_and_the_query_goes_on(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path, first: Way
) -> None:
    """Also in `merge_order` and `stream_time`, which depend on the offsets that the other way has logged."""
    more = {"include_headers": "true", "include_stream_time": "true", "max_poll_records": "4"}
    options = {**fill_kafka(broker), **more, "spool": str(tmp_path / "spool")}
    checkpoint = tmp_path / "checkpoint"
    before: dict[int, RowDicts] = {}
    after: dict[int, RowDicts] = {}
    query = started(load(spark, options, first), checkpoint, keep_until(before, 1), available_now=True)
    with pytest.raises(StreamingQueryException, match="Broken"):
        query.awaitTermination()
    query = started(load(spark, options, OTHER[first]), checkpoint, keep_until(after, None), available_now=True)
    query.awaitTermination()
    assert after[1] == before[1]
    found: Sequence[RowDicts] = [before[0], *after.values()]
    assert sum(map(len, found)) == 14
    wait_until(lambda: not list(tmp_path.glob("spool/*/*.arrow")), what="the planners to remove what they spooled")


@pytest.mark.full
@pytest.mark.parametrize("way", ["python", "jar"])
def test_a_batch_that_runs_again_with_fewer_records_is_counted_in_the_progress(
    spark: SparkSession, module_redis: RedisServer, tmp_path: Path, way: Way
) -> None:
    """An entry in the middle of a stream is deleted between the runs, as compaction takes a record of Kafka."""
    options = {"redis": module_redis.url, "topics": way, "spool": str(tmp_path / "spool")}
    rows: dict[int, RowDicts] = {}
    with redis.Redis.from_url(module_redis.url) as client:
        for number in range(1, 5):
            client.xadd(f"{way}:0", {"value": "v"}, id=f"{number}-0")
        query = started(load(spark, options, way), tmp_path / "checkpoint", keep_until(rows, 0), available_now=True)
        with pytest.raises(StreamingQueryException, match="Broken"):
            query.awaitTermination()
        assert len(rows[0]) == 4
        client.xdel(f"{way}:0", "2-0")
        client.xadd(f"{way}:0", {"value": "v"}, id="5-0")
    query = started(load(spark, options, way), tmp_path / "checkpoint", keep_until(rows, None), available_now=True)
    query.awaitTermination()
    assert [row["offset"] for row in rows[0]] == ["1-0", "3-0", "4-0"]
    (source,) = json.loads(query.recentProgress[-1].json)["sources"]
    assert source["latestOffset"]["compacted-records-total"] == 1


def test_the_death_of_the_planner_ends_the_query_and_says_how(
    spark: SparkSession, logs: InputLogs, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    options = logs_options(logs, TOPICS, undecodable="skip")
    with running(load(spark, options, "jar"), checkpoint) as (query, kept):
        wait_for_rows(query, kept, 52)
        os.kill(planner_of(checkpoint), signal.SIGKILL)
        wait_until(lambda: not query.isActive, what="the query's end")
    assert "accelerator.planner ended with exit code 137" in str(query.exception())
    with running(load(spark, options, "jar"), checkpoint) as (query, _):
        logs.add("weather", 0, [500])
        wait_until(lambda: bool(query.recentProgress), what="a query that goes on")
        planner = planner_of(checkpoint)
    wait_until(lambda: has_ended(planner), what="the planner's end")


@pytest.fixture
def set_of_driver(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Sets what the driver reads of the session's settings; afterwards all is as before."""
    conf = spark.sparkContext._jsc.sc().conf()
    before: dict[str, str] = {}

    def change(name: str, value: str) -> None:
        before.setdefault(name, conf.get(name, ""))
        conf.set(name, value)

    yield change
    for name, value in before.items():
        conf.set(name, value) if value else conf.remove(name)


def test_a_second_query_on_a_checkpoint_is_refused_without_an_option_and_a_second_source_is_not(
    spark: SparkSession, logs: InputLogs, tmp_path: Path
) -> None:
    """Spark tells the jar where the checkpoint is, in the bytes of a path that are not those of its URI."""
    checkpoint = tmp_path / "a checkpoint of 100%"
    weather, flights = (
        load(spark, logs_options(logs, topic, undecodable="skip"), "jar") for topic in TOPICS.split(",")
    )
    first = CheckpointLock(checkpoint, source="1")
    with pytest.raises(StreamingQueryException, match="another query reads this checkpoint"):
        everything(weather.union(flights), checkpoint)
    first.release()
    assert len(everything(weather.union(flights), checkpoint)) == 52


def test_a_query_that_is_started_after_another_takes_a_process_that_was_started_meanwhile(
    spark: SparkSession, logs: InputLogs, tmp_path: Path
) -> None:
    options = logs_options(logs, TOPICS, undecodable="skip")
    before = prepared_planners(spark)
    assert len(everything(load(spark, options, "jar"), tmp_path / "first")) == 52
    wait_until(lambda: len(prepared_planners(spark) - before) == 1, what="a planner without a query")
    (waiting,) = prepared_planners(spark) - before
    checkpoint = tmp_path / "second"
    with running(load(spark, options, "jar"), checkpoint) as (query, kept):
        wait_for_rows(query, kept, 52)
        assert planner_of(checkpoint) == waiting


@pytest.mark.full
def test_a_planner_that_no_query_takes_ends_by_itself(
    spark: SparkSession, logs: InputLogs, tmp_path: Path, set_of_driver: Callable[[str, str], None]
) -> None:
    """One that waits for a next query, and one that waits because a `load()` was followed by no query."""
    set_of_driver(IDLE_TIMEOUT, "5s")
    options = logs_options(logs, TOPICS, undecodable="skip")
    before = prepared_planners(spark)
    everything(load(spark, options, "jar"), tmp_path / "checkpoint")
    wait_until(lambda: len(prepared_planners(spark) - before) == 1, what="a planner without a query")
    wait_until(lambda: not prepared_planners(spark) - before, what="its end")
    frame = load(spark, options, "jar")
    wait_until(lambda: len(prepared_planners(spark) - before) == 1, what="one in place of the one that was asked")
    wait_until(lambda: not prepared_planners(spark) - before, what="its end")
    assert len(everything(frame, tmp_path / "other")) == 52


@pytest.mark.full
def test_a_planner_that_waits_for_a_query_ends_with_its_session_and_with_a_jvm_that_is_killed(
    logs: InputLogs, tmp_path: Path
) -> None:
    options = json.dumps(logs_options(logs, TOPICS, undecodable="skip"))
    arguments = ["--jar", str(released_jar()), "--options", options, "--folder", str(tmp_path / "job")]
    with spark_job("waiting_planners.py", arguments, tmp_path / "job") as job:
        job.wait_until(lambda: bool(job.lines()), what="a planner of the second session")
        planner, jvm = map(int, job.lines()[-1].split())
        assert not has_ended(planner)
        os.kill(jvm, signal.SIGKILL)
        wait_until(lambda: has_ended(planner), what="the end of a planner without a driver")


@pytest.mark.full
def test_a_planner_that_is_silent_for_two_minutes_is_ended_and_the_query_says_so(
    spark: SparkSession, logs: InputLogs, tmp_path: Path
) -> None:
    """It is stopped, as a machine that swaps or a debugger stops it: it lives, and sends no beat."""
    checkpoint = tmp_path / "checkpoint"
    options = logs_options(logs, TOPICS, undecodable="skip")
    with running(load(spark, options, "jar"), checkpoint) as (query, kept):
        wait_for_rows(query, kept, 52)
        planner = planner_of(checkpoint)
        os.kill(planner, signal.SIGSTOP)
        wait_until(lambda: not query.isActive, what="the query's end", limit_s=240)
        assert "accelerator.planner was silent for 120 s, so it was ended" in str(query.exception())
        wait_until(lambda: has_ended(planner), what="the planner's end")


def test_a_python_that_cannot_start_is_named_and_so_is_what_to_do(
    spark: SparkSession, logs: InputLogs, tmp_path: Path, set_of_driver: Callable[[str, str], None]
) -> None:
    options = logs_options(logs, TOPICS)
    set_of_driver(DRIVER_PYTHON, "/nowhere/python3")
    fix = "Set PYSPARK_PYTHON or spark.pyspark.python to a Python in which understudy is installed"
    with pytest.raises(AnalysisException, match=rf"Python cannot be started as '/nowhere/python3'.*{fix}"):
        load(spark, options, "jar")
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    set_of_driver(DRIVER_PYTHON, str(bare))
    with pytest.raises(AnalysisException, match="No module named 'understudy_aligned'") as refused:
        load(spark, options, "jar")
    started = f"with exit code 1 before it answered. It was started as '{bare} -m understudy_aligned.accelerator"
    assert started in str(refused.value)
    assert fix in str(refused.value)


@pytest.mark.full
def test_an_input_that_is_gone_when_a_batch_is_read_is_the_error_of_the_query(
    spark: SparkSession, logs: InputLogs, tmp_path: Path
) -> None:
    frame = load(spark, logs_options(logs, TOPICS, undecodable="skip"), "jar")

    def keep(batch: DataFrame, _: int) -> None:
        logs.remove()
        for path in tmp_path.glob("spool/*/*.arrow"):
            path.unlink()
        batch.collect()

    query = started(frame, tmp_path / "checkpoint", keep, available_now=True)
    with pytest.raises(StreamingQueryException, match="DataLostError"):
        query.awaitTermination()


@pytest.mark.full
def test_a_query_can_be_stopped_while_a_task_reads_an_input_that_hangs(
    spark: SparkSession, module_redis: RedisServer, tmp_path: Path
) -> None:
    with redis.Redis.from_url(module_redis.url) as client:
        client.xadd("hanging:0", {"value": "a"}, id="1-0")
    options = {"redis": module_redis.url, "topics": "hanging", "spool": str(tmp_path / "spool")}
    reading = threading.Event()

    def keep(batch: DataFrame, _: int) -> None:
        for path in tmp_path.glob("spool/*/*.arrow"):
            path.unlink()
        module_redis.pause()
        reading.set()
        batch.collect()

    query = started(load(spark, options, "jar"), tmp_path / "checkpoint", keep, available_now=False)
    try:
        wait_until(reading.is_set, what="a batch that is read")
        query.stop()
        assert not query.isActive
    finally:
        module_redis.resume()
