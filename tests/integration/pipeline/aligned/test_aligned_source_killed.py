"""A driver that is killed in mid-batch: the batch that its log promises is read again, record for record.

Of what a killed driver leaves, its planner ends by itself; one that is killed too leaves its spool, which the next
one removes.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.bus.redis_server import RedisServer
from tests.support.spark.accelerator import PLANNER, Way, released_jar
from tests.support.spark.aligned_queries import (
    QUICK,
    InputLogs,
    Row,
    has_ended,
    load,
    logs_options,
    planner_of,
    run_to_end,
)
from tests.support.spark.process import spark_job, stat_of
from tests.support.spark.queries import committed_batches, settings, wait_until

TOPICS = "weather,flights"
HELD = 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("killed", "before", "after"),
    [
        ("the JVM", "python", "jar"),
        ("the JVM", "jar", "python"),
        ("everything", "python", "python"),
        ("everything", "jar", "jar"),
    ],
)
def test_a_batch_that_was_logged_and_not_committed_is_the_same_after_kill_9_by_either_way(
    request: pytest.FixtureRequest, redis: RedisServer, tmp_path: Path, *, killed: str, before: Way, after: Way
) -> None:
    """Spark takes the jar wherever it is on the class path, also if the Python source is registered."""
    jar = str(released_jar()) if "jar" in (before, after) else ""
    logs, checkpoint, spool = InputLogs(redis.url, tmp_path), tmp_path / "checkpoint", tmp_path / "spool"
    for partition in range(2):
        logs.add("weather", partition, range(0, 200, 10))
        logs.add("flights", partition, range(5, 200, 10))
    options = logs_options(
        logs, TOPICS, max_poll_records="30", max_task_idle_ms="0", spool=str(spool), checkpoint=str(checkpoint)
    )
    arguments = [str(checkpoint), "--options", json.dumps(options), "--hold", str(HELD)]
    arguments += ["--jar", jar] if before == "jar" else []
    with spark_job("aligned_until_killed.py", [*arguments, "--folder", str(tmp_path / "job")], tmp_path / "job") as job:
        job.wait_for_line(f"batch {HELD} written")
        planner = planner_of(checkpoint)
        assert (PLANNER in command_of(planner)) == (before == "jar")
        if killed == "the JVM":
            os.kill(int(stat_of(planner)[1]), signal.SIGKILL)
            wait_until(lambda: has_ended(planner), what="the end of a planner without a driver")
        job.kill()
    assert len(list(spool.iterdir())) == (0 if killed == "the JVM" else 1)
    assert committed_batches(checkpoint) == tuple(range(HELD))
    # What comes in the meantime must not get into the batch, nor may other bounds change it.
    logs.add("weather", 0, [60, 210])
    spark: SparkSession = request.getfixturevalue("spark")  # not before: two at a time are slow to start
    with settings(spark, QUICK):
        frame = load(spark, {**options, "max_poll_records": "50", "reader_tasks": "1"}, after)
        kept = run_to_end(frame, checkpoint)
    written = [json.loads((tmp_path / "job" / f"{batch}.json").read_text()) for batch in range(HELD + 1)]
    rows = [[Row._make([*row[:-1], row[-1].encode()]) for row in batch] for batch in written]
    assert kept.batches[HELD] == rows[HELD]
    everything = rows[0] + kept.rows
    assert len(everything) == len(set(everything)) == 82
    wait_until(lambda: not list(spool.iterdir()), what="the removal of every spool")


@pytest.mark.full
@pytest.mark.parametrize("way", ["python", "jar"])
def test_a_query_that_was_killed_before_its_first_commit_reads_what_came_since_it_first_began(
    request: pytest.FixtureRequest, redis: RedisServer, tmp_path: Path, way: Way
) -> None:
    """Spark asks again where a new checkpoint begins, which is later by then."""
    logs, checkpoint = InputLogs(redis.url, tmp_path), tmp_path / "checkpoint"
    for topic in TOPICS.split(","):
        logs.add(topic, 0, [1, 2, 3])
    options = logs_options(logs, TOPICS, starting="latest")
    arguments = [str(checkpoint), "--options", json.dumps(options), "--hold", "0"]
    arguments += ["--jar", str(released_jar())] if way == "jar" else []
    with spark_job("aligned_until_killed.py", [*arguments, "--folder", str(tmp_path / "job")], tmp_path / "job") as job:
        job.wait_for_line("batch 0 written")
        job.kill()
    assert committed_batches(checkpoint) == ()
    logs.add("weather", 0, range(10, 200, 10))
    spark: SparkSession = request.getfixturevalue("spark")
    with settings(spark, QUICK):
        kept = run_to_end(load(spark, options, way), checkpoint)
    assert [row.timestamp_ms for row in kept.rows] == list(range(10, 200, 10))


def command_of(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
