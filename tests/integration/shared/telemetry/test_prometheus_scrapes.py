"""A real Prometheus scrapes a real router and nodes: an alert fires when its fault is caused, and goes with it."""

from __future__ import annotations

from pathlib import Path

from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import APPLICATION, cluster
from tests.support.repository import ROOT
from tests.support.services.prometheus import LIMIT_S, prometheus
from tests.support.services.quick_rules import quicker
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

ALERTS = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
QUICKER = 300
"""A minute is a scrape."""


def test_alerts_fire_when_their_faults_are_caused_and_go_when_they_are_mended(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    with redis_server() as redis, cluster(checkpoint.path, tmp_path, redis.url, nodes=2, end_expiry_ms=500) as known:
        known.wait_to_rest(copies=2, version=2)
        router = known.start_router(end_expiry_ms=500)
        wait_until(lambda: router.not_ready() == "", what="the router", limit_s=LIMIT_S)
        ports = [router.port, *(node.port for node in known.nodes.values())]
        with prometheus(tmp_path / "prometheus", {APPLICATION: ports}, quicker(ALERTS, QUICKER)) as server:
            up = f'sum(up{{application="{APPLICATION}"}})'
            wait_until(
                lambda: [each["value"][1] for each in server.query(up)] == ["3"], what="targets", limit_s=LIMIT_S
            )
            assert router.look_up([WORDS[0]]).status == 200
            answered = "sum(understudy_served_lag_batches_count)"
            wait_until(lambda: server.query(answered)[0]["value"][1] == "1", what="a read", limit_s=LIMIT_S)
            calm = {"UnderstudyCheckpointUnreadable", "UnderstudyLagUnknown"}
            wait_until(lambda: not calm & server.firing(), what="calm", limit_s=LIMIT_S)
            checkpoint.path.rename(tmp_path / "elsewhere")
            wait_until(lambda: calm <= server.firing(), what="the alerts", limit_s=LIMIT_S)
            (tmp_path / "elsewhere").rename(checkpoint.path)
            wait_until(lambda: not calm & server.firing(), what="calm again", limit_s=LIMIT_S)
