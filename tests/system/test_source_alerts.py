"""A real Prometheus watches a real query of the aligned source: the alert about its inputs fires, and clears.

It has a file of its own, after that of the as-of join: that one starts a Spark of its own, and a process has one.
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
from tests.system.alerts.causes import OF_THE_SOURCE
from tests.system.alerts.watched_world import EVERY_MS, LIMIT_S, LOOK_EVERY_S, RULES, quick_rules

from understudy_shared.base.sockets import free_port

pytestmark = [pytest.mark.full, pytest.mark.timeout(480)]

TOPIC = "weather"


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
