"""A real Prometheus watches a real cluster: each alert fires when its fault is caused, and clears after the repair.

The rules are those of deploy/prometheus, with every duration divided (tests/support/services/quick_rules.py). `make
verify` runs all; test_prometheus_scrapes.py has two of them in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.spark.aligned_queries import QUICK, load, running, wait_for_rows
from tests.support.spark.queries import settings
from tests.system.alerts.causes import AFTER_A_MINUTE, CAUSES, Cause, files_are_missing
from tests.system.alerts.watched_world import SOURCE, WatchedWorld, watched_world

pytestmark = [pytest.mark.full, pytest.mark.timeout(480)]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedWorld]:
    with watched_world(tmp_path_factory.mktemp("watched")) as made:
        yield made


@contextmanager
def query_of_a_redis(spark: SparkSession, folder: Path, metrics_port: int) -> Iterator[RedisServer]:
    """A running query of the aligned source, and the server that has its input."""
    with redis_server() as redis, settings(spark, QUICK):
        redis.command("XADD", f"{SOURCE}:0", "1-0", "value", "sunny")
        options = {"redis": redis.url, "topics": SOURCE, "metrics_port": str(metrics_port)}
        frame = load(spark, {**options, "spool": str(folder / "spool")})
        with running(frame, folder / "checkpoint") as (query, kept):
            wait_for_rows(query, kept, 1)
            yield redis


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.fault.__name__)
def test_alerts_fire_while_their_fault_lasts_and_clear_after_the_repair(watched: WatchedWorld, cause: Cause) -> None:
    watched.wait_until_well()
    watched.wait_for(cause.alerts, what="nothing is broken", fire=False)
    with cause.fault(watched):
        watched.wait_for(cause.alerts, what=cause.fault.__name__, fire=True)
    watched.wait_for(cause.alerts, what=f"{cause.fault.__name__}: over", fire=False)


def test_a_replica_and_an_input_that_fall_behind_for_a_minute_fire_their_alerts_until_they_are_back(
    watched: WatchedWorld, spark: SparkSession, tmp_path: Path
) -> None:
    watched.wait_until_well()
    with query_of_a_redis(spark, tmp_path, watched.source_port) as redis:
        watched.wait_for(AFTER_A_MINUTE, what="nothing is broken", fire=False)
        redis.pause()
        try:
            with files_are_missing(watched):
                watched.wait_for(AFTER_A_MINUTE, what="a minute", fire=True)
        finally:
            redis.resume()
        watched.wait_for(AFTER_A_MINUTE, what="a minute: over", fire=False)
