"""The table of metrics in docs/reference/metrics.md is that of the code; what alerts and dashboards name is in it."""

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
from tests.support.services.expositions import (
    cluster_node,
    labels_in,
    metrics_of,
    names_in,
    router_exposition,
)

from understudy_node.events import CAUSES as NODE_CAUSES
from understudy_node.fleet.following import CAUSES as FLEET_CAUSES
from understudy_router.cluster.readiness import Cause
from understudy_router.fleet import CAUSES as ROUTER_FLEET_CAUSES

DOCUMENT = (ROOT / "docs" / "reference" / "metrics.md").read_text()
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
ALERT_TESTS = ROOT / "deploy" / "prometheus" / "tests" / "alerts_test.yml"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
RUNBOOKS = ROOT / "docs" / "runbooks"
NAME = re.compile(r"\b(?:understudy|process)_[a-z0-9_]+\b")
METRIC = re.compile(r"(?m)^- `(\w+)(?:\{([\w,]+)\})?`: ")
PLACES = {"At both": {"N", "R"}, "At routers": {"R"}, "At nodes": {"N"}}
PARTS = re.compile(r"_(bucket|sum|count)$")
WITHOUT_SERIES = {"understudy_end_age_seconds", "understudy_tls_certificate_expiry_timestamp_seconds"}
"""Absent for a moment, until the end is confirmed; absent without certificates."""
WITHOUT_SERIES |= {"understudy_application_state"}  # fleets have them


def table() -> dict[str, tuple[set[str], set[str]]]:
    """Labels and places of each documented metric."""
    section = DOCUMENT.partition("\n## Nodes and routers\n")[2].partition("\n## ")[0]
    return {
        name: (set(filter(None, labels.split(","))), places)
        for title, places in PLACES.items()
        for name, labels in METRIC.findall(section.partition(f"\n### {title}\n")[2].partition("\n### ")[0])
    }


@pytest.fixture
async def expositions(tmp_path: Path) -> Mapping[str, str]:
    """The metrics of a node and of a router, by the letter that the document has for each."""
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with cluster_node(checkpoint.path, tmp_path / "data") as (_, app):
        node = await metrics_of(app)
    return {"N": node, "R": await router_exposition()}


async def test_every_metric_of_a_node_and_a_router_is_documented_and_no_other(expositions: Mapping[str, str]) -> None:
    documented = table()
    for place, text in expositions.items():
        there = {name for name, (_, places) in documented.items() if place in places}
        assert there - WITHOUT_SERIES == names_in(text) - WITHOUT_SERIES


async def test_the_documented_labels_are_those_of_the_series(expositions: Mapping[str, str]) -> None:
    documented = table()
    for text in expositions.values():
        for name, labels in labels_in(text).items():
            assert labels == documented[name][0], name


def exists(name: str, documented: Mapping[str, object]) -> bool:
    """Whether a name in an expression is a metric or a part of one; another test compares those of the source."""
    if name.startswith("understudy_source_"):
        return re.search(rf"`{name}[`{{]", DOCUMENT) is not None
    return name in documented or (PARTS.sub("", name) in documented and bool(PARTS.search(name)))


def rules() -> list[dict[str, Any]]:
    groups = YAML(typ="safe").load(ALERTS)["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels(dashboard: Path) -> Iterator[dict[str, Any]]:
    yield from json.loads(dashboard.read_text())["panels"]


def test_every_metric_that_an_alert_or_a_dashboard_names_exists() -> None:
    documented = table()
    named = {(rule["alert"], name) for rule in rules() for name in NAME.findall(rule["expr"])}
    for dashboard in DASHBOARDS:
        variables = json.loads(dashboard.read_text())["templating"]["list"]
        texts = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
        texts += [str(variable.get("query")) for variable in variables]
        named |= {(dashboard.name, name) for text in texts for name in NAME.findall(text)}
    assert len(named) > 40
    assert [(where, name) for where, name in sorted(named) if not exists(name, documented)] == []


def runbook_of(rule: Mapping[str, Any]) -> Path:
    """The page of an alert. A router serves it at an absolute address."""
    found = re.fullmatch(r"http://localhost:8080/admin/runbooks/([\w-]+)(?:#.*)?", rule["annotations"]["runbook_url"])
    assert found is not None, rule
    return RUNBOOKS / f"{found[1]}.md"


def test_every_alert_says_what_is_wrong_and_leads_to_a_runbook() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        page = runbook_of(rule)
        assert rule["alert"] in page.read_text(), page
    assert {runbook_of(rule) for rule in rules()} == set(RUNBOOKS.glob("*.md")) - {RUNBOOKS / "README.md"}


def test_every_cause_of_degraded_has_a_section_in_the_runbook_that_its_alert_leads_to() -> None:
    (rule,) = (each for each in rules() if each["alert"] == "UnderstudyDegraded")
    assert rule["annotations"]["runbook_url"].endswith("/degraded#{{ $labels.cause }}")
    sections = re.findall(r"(?m)^## (\S+)$", runbook_of(rule).read_text())
    assert sorted(sections) == sorted({*NODE_CAUSES, *FLEET_CAUSES, *ROUTER_FLEET_CAUSES, *Cause})


def test_every_alert_has_a_case_that_is_silent_fires_and_goes() -> None:
    cases = {case["name"]: case for case in YAML(typ="safe").load(ALERT_TESTS)["tests"]}
    assert cases.keys() == {rule["alert"] for rule in rules()}
    for name, case in cases.items():
        counts = [len(look["exp_samples"]) for look in case["promql_expr_test"]]
        assert counts == [0, 1, 0] * (len(counts) // 3) != [], name
        assert all(name in look["expr"] for look in case["promql_expr_test"])
