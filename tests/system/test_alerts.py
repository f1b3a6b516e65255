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
from tests.support.services.prometheus import program, prometheus
from tests.support.spark.aligned_queries import QUICK, load, running, wait_for_rows
from tests.support.spark.queries import settings, wait_until
from tests.system.alerts.causes import CAUSES, OF_THE_SOURCE, Cause
from tests.system.alerts.watched_world import (
    EVERY_MS,
    LIMIT_S,
    LOOK_EVERY_S,
    RULES,
    WatchedWorld,
    quick_rules,
    watched_world,
)
from tests.system.proof.processes import free_port

pytestmark = [pytest.mark.full, pytest.mark.timeout(480)]

TOPIC = "weather"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedWorld]:
    with watched_world(tmp_path_factory.mktemp("watched")) as made:
        yield made


@contextmanager
def query_of_a_redis(spark: SparkSession, folder: Path, metrics_port: int) -> Iterator[RedisServer]:
    """A running query of the aligned source, and the server that has its input."""
    with redis_server() as redis, settings(spark, QUICK):
        redis.command("XADD", f"{TOPIC}:0", "1-0", "value", "sunny")
        options = {"redis": redis.url, "topics": TOPIC, "metrics_port": str(metrics_port)}
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


def test_an_input_that_does_not_answer_for_a_minute_fires_its_alert_until_it_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    program("prometheus")
    port, rules, away = free_port(), quick_rules(RULES.read_text()), "understudy_source_input_away_seconds"
    with (
        query_of_a_redis(spark, tmp_path, port) as redis,
        prometheus(tmp_path / "prometheus", {TOPIC: [port]}, rules, every_ms=EVERY_MS) as server,
    ):
        wait_until(lambda: server.value(away) == 0, what="a scrape", limit_s=LIMIT_S, every_s=LOOK_EVERY_S)
        assert not server.firing() & OF_THE_SOURCE
        redis.pause()
        try:
            wait_until(lambda: server.firing() >= OF_THE_SOURCE, what="it", limit_s=LIMIT_S, every_s=LOOK_EVERY_S)
        finally:
            redis.resume()
        wait_until(
            lambda: server.value(away) == 0 and not server.firing() & OF_THE_SOURCE,
            what="its end",
            limit_s=LIMIT_S,
            every_s=LOOK_EVERY_S,
        )
