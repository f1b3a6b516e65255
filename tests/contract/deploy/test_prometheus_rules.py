"""Prometheus' own tools accept what we serve and what we ship."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.repository import ROOT
from tests.support.services.expositions import cluster_node, metrics_of, router_exposition
from tests.support.services.prometheus import promtool
from tests.system.alerts.causes import CAUSES, OF_CERTIFICATES, OF_FLEETS, OF_OTHER_READS, OF_THE_SOURCE

from understudy_router.admin.rates import FAILED_OUTCOMES, KIND_OF

DEPLOY = ROOT / "deploy" / "prometheus"
ALERTS = (DEPLOY / "alerts.yml").read_text()
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
METRICS = re.compile(r"\b(?:understudy|process)_[a-z0-9_]+\b")
CHOSEN = re.compile(r'\b(?!__name__)(\w+)="(\w+)"')


def rules() -> list[dict[str, Any]]:
    return [rule for group in YAML(typ="safe").load(ALERTS)["groups"] for rule in group["rules"]]


async def test_promtool_finds_nothing_to_say_of_a_routers_metrics() -> None:
    assert promtool("check", "metrics", stdin=await router_exposition()) == (0, "")


async def test_promtool_finds_nothing_to_say_of_a_nodes_metrics(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with cluster_node(checkpoint.path, tmp_path / "data") as (_, app):
        text = await metrics_of(app)
    assert promtool("check", "metrics", stdin=text) == (0, "")


def test_the_configuration_of_the_compose_file_is_one() -> None:
    code, said = promtool("check", "config", str(DEPLOY / "prometheus.yml"))
    assert code == 0, said


def test_each_alert_fires_when_its_fault_lasts_and_goes_with_it() -> None:
    code, said = promtool("test", "rules", str(DEPLOY / "tests" / "alerts_test.yml"))
    assert code == 0, said


def test_every_alert_has_a_fault_that_causes_it() -> None:
    caused = [alert for cause in CAUSES for alert in cause.alerts] + sorted(
        OF_THE_SOURCE | OF_CERTIFICATES | OF_FLEETS | OF_OTHER_READS
    )
    assert sorted(caused) == sorted(rule["alert"] for rule in rules())


def test_the_alert_of_other_reads_than_lookups_counts_what_health_counts() -> None:
    (expr,) = (rule["expr"] for rule in rules() if rule["alert"] == "UnderstudyCallsFail")
    assert [set(each.split("|")) for each in re.findall(r'op=~"([^"]*)"', expr)] == [set(KIND_OF)] * 2
    outcomes = [set(each.split("|")) for each in re.findall(r'outcome=~"([^"]*)"', expr)]
    assert outcomes == [FAILED_OUTCOMES, FAILED_OUTCOMES | {"answered"}]


def shown_by(dashboard: Path) -> Iterator[str]:
    """The expressions of a dashboard, with its variables filled in."""
    for panel in json.loads(dashboard.read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$application", "a").replace("$store", "s").replace("$__rate_interval", "5m")


def seen_with_series(expression: str) -> Mapping[str, Any]:
    """A case for promtool: an expression shows something of series with the names and labels that it chooses."""
    chosen = {"application": "a", "job": "u", "store": "s", "state": "RUNNING", **dict(CHOSEN.findall(expression))}
    series = []
    for name in METRICS.findall(expression):
        for own in ({"instance": "i", "le": "1"}, {"instance": "i", "le": "+Inf"}, {"instance": "j", "le": "+Inf"}):
            labels = ",".join(f'{label}="{value}"' for label, value in (chosen | own).items())
            series.append({"series": f"{name}{{{labels}}}", "values": "1+60x20"})
    shows = {"expr": f"absent({expression})", "eval_time": "15m", "exp_samples": []}
    return {"interval": "1m", "input_series": series, "promql_expr_test": [shows]}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_each_panel_of_a_dashboard_shows_something(dashboard: Path, tmp_path: Path) -> None:
    cases = [seen_with_series(expression) for expression in shown_by(dashboard)]
    (tmp_path / "panels.json").write_text(json.dumps({"rule_files": [], "tests": cases}))
    code, said = promtool("test", "rules", str(tmp_path / "panels.json"))
    assert code == 0, said
