"""Prometheus' own tools accept what we serve and what we ship."""

from __future__ import annotations

from pathlib import Path

from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.services.expositions import cluster_node, router_exposition
from tests.support.services.prometheus import promtool

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"


async def test_promtool_finds_nothing_to_say_of_a_routers_metrics() -> None:
    assert promtool("check", "metrics", stdin=await router_exposition()) == (0, "")


async def test_promtool_finds_nothing_to_say_of_a_nodes_metrics(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with cluster_node(checkpoint.path, tmp_path / "data") as (_, group):
        text = (await group.metrics()).decode()
    assert promtool("check", "metrics", stdin=text) == (0, "")


def test_promtool_complains_of_a_gauge_that_is_called_a_total() -> None:
    code, said = promtool("check", "metrics", stdin="# HELP a_total b\n# TYPE a_total gauge\na_total 1\n")
    assert code != 0
    assert "_total" in said


def test_the_rules_are_rules() -> None:
    code, said = promtool("check", "rules", str(DEPLOY / "alerts.yml"))
    assert code == 0, said


def test_the_configuration_of_the_compose_file_is_one() -> None:
    code, said = promtool("check", "config", str(DEPLOY / "prometheus.yml"))
    assert code == 0, said


def test_each_alert_fires_when_its_fault_lasts_and_goes_with_it() -> None:
    code, said = promtool("test", "rules", str(DEPLOY / "tests" / "alerts_test.yml"))
    assert code == 0, said
