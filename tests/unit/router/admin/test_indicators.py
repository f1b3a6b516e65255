"""Each fault has its own indicator, with who is hurt, why and what to do; the worst of them is the headline."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from tests.support.router.snapshots import finished, kill, snapshot_of, stores_named, tables_with, worlds
from tests.support.router.tables import beat, task

from understudy_router.admin.indicators import INDICATORS, health_of
from understudy_router.admin.rates import Rates
from understudy_router.admin.snapshot import ClusterSnapshot, Observed
from understudy_router.cluster.catalogue import CatalogueStores
from understudy_router.cluster.readiness import Cause
from understudy_router.cluster.tables import Tables
from understudy_shared.cluster.node_calls import CallKind
from understudy_shared.http.health import HealthReport, HealthState, Indicator

ONE = stores_named({"one": 0}, partitions=1)


def well(**fields: Any) -> ClusterSnapshot:
    return snapshot_of(tables_with({"0_0": task("a", "b")}, beat("a"), beat("b")), ONE, **fields)


def looked(snapshot: ClusterSnapshot, **fields: Any) -> HealthReport:
    return finished(health_of(Observed(snapshot=snapshot, **fields)))


def by_name(report: HealthReport) -> dict[str, Indicator]:
    return {each.name: each for each in report.indicators}


def wrong(report: HealthReport) -> set[str]:
    return {each.name for each in report.indicators if each.state is not HealthState.OK}


def test_all_is_well_and_every_indicator_is_listed() -> None:
    document = looked(well()).document()
    assert (document["state"], document["headline"]) == ("ok", "all well")
    assert [each["name"] for each in document["indicators"]] == list(INDICATORS)  # type: ignore[attr-defined]
    assert {each["symptom"] for each in document["indicators"]} == {""}  # type: ignore[attr-defined]


@given(worlds())
def test_whatever_is_known_the_report_has_every_part_and_the_worst_state(
    world: tuple[Tables, CatalogueStores, float],
) -> None:
    tables, stores, now_ms = world
    report = looked(snapshot_of(tables, stores, now_ms=now_ms))
    assert report.worst.state == max(each.state for each in report.indicators)
    for each in report.indicators:
        parts = (each.symptom, each.action)
        assert all(parts) == any(parts) == (each.state is not HealthState.OK)
        assert len(each.document()["affected"]) <= 100  # type: ignore[arg-type]


def test_before_anything_is_known_the_state_is_unknown_and_says_why() -> None:
    report = looked(snapshot_of(Tables(), None, not_ready=("no catalogue is known yet",)))
    assert report.worst.name == "reads"
    assert report.document()["state"] == "unknown"
    assert "no catalogue is known yet" in report.worst.cause


def test_a_dead_node_is_named_with_why_and_its_partitions_hang_by_one() -> None:
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
    now_ms = kill(tables, "b", now_ms=0)
    report = looked(snapshot_of(tables, ONE, now_ms=now_ms))
    found = by_name(report)
    assert wrong(report) == {"nodes", "redundancy"}
    assert (found["nodes"].symptom, found["nodes"].affected) == ("b is dead", ("b",))
    assert "did not answer when asked" in found["nodes"].cause
    assert found["redundancy"].affected == ("one/0",)
    assert report.worst.name == "nodes"


def test_partitions_that_nobody_serves_hurt_readers_and_name_the_dead() -> None:
    tables = tables_with(
        {"0_0": task("a"), "0_1": task("b")}, beat("a", partitions=2), beat("b", partitions=2), partitions=2
    )
    now_ms = kill(tables, "a", now_ms=0)
    report = looked(snapshot_of(tables, stores_named({"one": 0, "two": 0}, partitions=2), now_ms=now_ms))
    reads = by_name(report)["reads"]
    assert (reads.state, reads.symptom) == (HealthState.HURT, "2 of 4 store partitions cannot be read")
    assert reads.affected == ("one/0", "two/0")
    assert "dead: a" in reads.cause
    assert report.document()["headline"] == f"{report.worst.symptom}. Do: start a again"


def test_a_checkpoint_that_is_gone_is_the_cause_and_freshness_is_unknown() -> None:
    blind: dict[str, Any] = {"end_age_ms": None, "degraded": ["checkpoint-unreadable"]}
    tables = tables_with({"0_0": task("a", "b")}, beat("a", **blind), beat("b", **blind))
    report = looked(snapshot_of(tables, ONE))
    found = by_name(report)
    assert (found["checkpoint"].state, found["freshness"].state) == (HealthState.HURT, HealthState.UNKNOWN)
    assert found["checkpoint"].affected == ("a", "b")
    assert report.worst.name == "checkpoint"
    one = tables_with({"0_0": task("a", "b")}, beat("a", degraded=["checkpoint-unreadable"]), beat("b"))
    assert by_name(looked(snapshot_of(one, ONE)))["checkpoint"].state is HealthState.ATTENTION


@pytest.mark.parametrize(
    ("fields", "symptom"),
    [
        ({"bus_lost_why": "connection refused"}, "Redis is not heard"),
        ({"unheard": "2 of 3 nodes"}, "Redis does not carry what the nodes say"),
        ({"causes": {Cause.WRITES_REFUSED: "READONLY"}}, "Redis refuses writes"),
    ],
)
def test_a_bus_that_is_away_or_refuses_writes_has_its_own_cause(fields: dict[str, Any], symptom: str) -> None:
    report = looked(well(**fields))
    assert wrong(report) == {"bus"}
    assert by_name(report)["bus"].symptom == symptom


@pytest.mark.parametrize(
    ("percent", "state"), [(0.4, HealthState.OK), (0.5, HealthState.ATTENTION), (5.0, HealthState.HURT)]
)
def test_it_is_not_all_well_while_other_reads_than_lookups_fail_though_nodes_reply(
    percent: float, state: HealthState
) -> None:
    report = looked(well(), rates=Rates(failed_requests={CallKind.LEASE: 0.1, CallKind.SCAN: percent}))
    assert (by_name(report)["calls"].state, wrong(report)) == (state, set() if state is HealthState.OK else {"calls"})
    if state is not HealthState.OK:
        assert f"{percent:g} % of the scans of the last minute failed" in str(report.document()["headline"])
        assert by_name(report)["calls"].affected == ("lease", "scan")
