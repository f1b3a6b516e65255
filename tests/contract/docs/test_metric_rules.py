"""Every gauge of a service has a rule for how those of several processes become one."""

from __future__ import annotations

import re

from tests.support.repository import ROOT

from understudy_shared.processes.metric_sums import GAUGES
from understudy_shared.telemetry.metric_families import about_the_process

PACKAGES = ("node/understudy_node", "router/understudy_router", "shared/understudy_shared")


def test_every_gauge_has_a_rule_and_every_rule_a_gauge() -> None:
    sources = [path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {name for source in sources for name in re.findall(r'GaugeMetricFamily\(\s*"(\w+)"', source)}
    found |= {family.name for family in about_the_process() if family.type == "gauge"}
    assert found == set(GAUGES)
