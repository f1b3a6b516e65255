"""The example's as-of join over Redis streams: flights that are there long before the weather wait for it.

What a run put out is compared, flight by flight, with the join in plain Python, and with the same logs read again. A
run that must not wait (`max_task_idle_ms` -1) shows that the comparison can fail.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.measurements import measured
from tests.support.repository import ROOT
from tests.support.spark.asof_world import (
    FIRST_S,
    NOTHING_SENT,
    WEEK_S,
    AsofRun,
    Joined,
    Records,
    Sent,
    add,
    all_records,
    arrive_late,
    as_of_join,
    asof_session,
    fetched,
    streams,
)
from tests.support.spark.process import SparkJob, spark_job
from tests.support.spark.queries import committed_batches, wait_until

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

HELD_BATCH = 2
BY_FLIGHT = [("event_time", "ascending"), ("carrier", "ascending"), ("flight", "ascending")]
DAY_S = WEEK_S // 7
END_S = FIRST_S + 45 * DAY_S

PATIENT = {"max_task_idle_ms": "3600000"}
"""Longer than any test: nothing is ever given up on."""

LIVE_RECORDS = 5_000
"""`max_poll_records` of the run that is killed."""

AGAIN_RECORDS = (50_000, 4_000)
"""`max_poll_records` of the runs that read the same logs again."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with asof_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


def finished(query: StreamingQuery, run: AsofRun, flights: int) -> Joined:
    """What is out when every flight is. Ends the query."""
    wait_until(partial(are_out, query, run, NOTHING_SENT, Sent(flights, 0)), what="every flight", limit_s=600)
    query.stop()
    return run.joined()


def read_again(spark: SparkSession, run: AsofRun, options: Mapping[str, str]) -> Joined:
    """All that is in the logs, to its end."""
    query = run.start(spark, options, available_now=True)
    query.awaitTermination()
    return run.joined()


@pytest.mark.full
def test_killed_or_read_again_in_other_batches_no_flight_gets_other_weather(
    spark: SparkSession, server: RedisServer, tmp_path: Path
) -> None:
    records = all_records().between(FIRST_S, END_S).closed()
    oracle = as_of_join(records)
    options = {**streams(server.url), **PATIENT}

    began_s = time.monotonic()
    killed = killed_and_finished(spark, server.url, records, tmp_path)
    lines = [
        f"killed in a batch, {LIVE_RECORDS} a batch: {killed.batches} batches in {time.monotonic() - began_s:.1f} s"
    ]
    assert killed.violations(oracle) == 0
    assert killed.differences(oracle) == 0
    assert killed.duplicates == 0

    for most in AGAIN_RECORDS:
        began_s = time.monotonic()
        again = read_again(spark, AsofRun(tmp_path / f"again-{most}"), {**options, "max_poll_records": str(most)})
        lines.append(f"{most} a batch: {again.batches} batches in {time.monotonic() - began_s:.1f} s")
        assert again.differences(killed.rows) == 0
        assert again.duplicates == 0
    measured(f"as-of join of {len(oracle)} flights: 0 order violations, 0 differences; {'; '.join(lines)}")


def killed_and_finished(spark: SparkSession, url: str, records: Records, folder: Path) -> Joined:
    """What is out in the end of a run that was killed before the commit of a batch, with the weather always late."""
    options = {**streams(url), **PATIENT, "max_poll_records": str(LIVE_RECORDS)}
    run, (first, *later) = AsofRun(folder / "killed"), records.rounds((END_S - FIRST_S) // 2)
    job_folder = folder / "job"

    def enough(before: Sent, sent: Sent) -> int:
        """How many must be fetched: with fewer, the source might not know the new flights; a batch is enough."""
        return min(sum(sent), sum(before) + LIVE_RECORDS // 2)

    arguments = [str(run.folder), "--spark", str(job_folder / "spark"), "--options", json.dumps(options)]
    with spark_job("asof_job.py", [*arguments, "--hold", str(HELD_BATCH)], job_folder) as job:
        sent = arrive_late(url, [first], lambda *counts: last_fetched(job) >= enough(*counts))
        job.wait_for_line(f"batch {HELD_BATCH} written")
        job.kill()
    assert committed_batches(run.checkpoint) == tuple(range(HELD_BATCH))
    left = pq.read_table(run.output_file(HELD_BATCH))

    query = run.start(spark, options)
    arrive_late(url, later, lambda *counts: fetched(query) >= enough(*counts), sent)
    joined = finished(query, run, len(records.flights))
    assert pq.read_table(run.output_file(HELD_BATCH)).sort_by(BY_FLIGHT) == left.sort_by(BY_FLIGHT)
    return joined


@pytest.mark.full
def test_the_example_prints_each_flight_with_the_weather_of_its_airport(server: RedisServer, tmp_path: Path) -> None:
    day = all_records().between(FIRST_S, FIRST_S + DAY_S).closed()
    add(server.url, "weather", day.weather)
    add(server.url, "flights", day.flights)
    example = str(ROOT / "docs" / "examples" / "asof_join.py")
    with spark_job(example, [str(tmp_path / "checkpoint"), server.url], tmp_path / "job") as job:
        job.wait_until(lambda: any(line.startswith("|2013-01-01T") for line in job.lines()), what="a flight")
        flights = [line.split("|")[1:-1] for line in job.lines() if line.startswith("|2013-01-01T")]
    assert all(weather_time.strip() == "NULL" or weather_time <= time for time, _, _, _, weather_time, *_ in flights)
    assert any(weather_time.strip() != "NULL" for _, _, _, _, weather_time, *_ in flights)


@pytest.mark.full
def test_without_waiting_late_weather_is_missed_and_reading_again_differs(
    spark: SparkSession, server: RedisServer, tmp_path: Path
) -> None:
    records = all_records().between(FIRST_S, FIRST_S + 2 * DAY_S).closed()
    oracle = as_of_join(records)
    runs = {}
    for idle_ms in (0, -1):
        server.flush()
        runs[idle_ms] = joined_late(spark, server.url, records, AsofRun(tmp_path / f"idle{idle_ms}"), idle_ms)
        assert runs[idle_ms].duplicates == 0
    hasty = runs[-1]
    assert hasty.violations(oracle) > 0
    again = read_again(spark, AsofRun(tmp_path / "again"), {**streams(server.url), **PATIENT})
    assert again.differences(oracle) == 0
    assert again.differences(hasty.rows) == hasty.violations(oracle)
    measured(
        f"as-of join of {len(oracle)} flights with late weather: order violations"
        f" {hasty.violations(oracle)} at -1, {runs[0].violations(oracle)} at 0"
    )


def joined_late(spark: SparkSession, url: str, records: Records, run: AsofRun, idle_ms: int) -> Joined:
    """What is out in the end of a run to which each day's weather comes when its flights are out."""
    query = run.start(spark, {**streams(url), "max_task_idle_ms": str(idle_ms)})
    arrive_late(url, records.rounds(DAY_S), partial(are_out, query, run))
    return finished(query, run, len(records.flights))


def last_fetched(job: SparkJob) -> int:
    """The highest fetch count that the job printed of its source."""
    return max((int(line.split()[1]) for line in job.lines() if line.startswith("fetched ")), default=0)


def are_out(query: StreamingQuery, run: AsofRun, _: Sent, sent: Sent) -> bool:
    """Whether every flight that is in the streams is in the output. Fails when the query has failed."""
    failure = query.exception()
    assert failure is None, failure
    return run.rows() >= sent.flights
