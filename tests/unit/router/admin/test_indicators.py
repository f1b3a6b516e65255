"""Each fault has its own indicator, with who is hurt, why and what to do; the worst of them is the headline."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from tests.support.router.snapshots import finished, kill, snapshot_of, stores_named, tables_with, worlds
from tests.support.router.tables import beat, task

from understudy_router.admin.indicators import INDICATORS, health_of
from understudy_router.admin.node_reports import Disagreements
from understudy_router.admin.reads_served import Rates
from understudy_router.admin.snapshot import Observed, Snapshot
from understudy_router.admin.trends import Trend
from understudy_router.cluster.catalogue import Stores
from understudy_router.cluster.degraded import Cause
from understudy_router.cluster.tables import Tables
from understudy_shared.auth.binding import Exposure
from understudy_shared.bus.messages import Applied, Freshness, QueryProgress
from understudy_shared.http.health import HealthReport, Indicator, State
from understudy_shared.spark.times import utc_text

ONE = stores_named({"one": 0}, partitions=1)


def well(**fields: Any) -> Snapshot:
    return snapshot_of(tables_with({"0_0": task("a", "b")}, beat("a"), beat("b")), ONE, **fields)


def looked(snapshot: Snapshot, **fields: Any) -> HealthReport:
    return finished(health_of(Observed(snapshot=snapshot, **fields)))


def by_name(report: HealthReport) -> dict[str, Indicator]:
    return {each.name: each for each in report.indicators}


def wrong(report: HealthReport) -> set[str]:
    return {each.name for each in report.indicators if each.state is not State.OK}


def test_all_is_well_and_every_indicator_is_listed() -> None:
    document = looked(well()).document()
    assert (document["state"], document["headline"]) == ("ok", "all well")
    assert [each["name"] for each in document["indicators"]] == list(INDICATORS)  # type: ignore[attr-defined]
    assert {each["symptom"] for each in document["indicators"]} == {""}  # type: ignore[attr-defined]


def test_a_router_that_strangers_reach_without_a_credential_says_so() -> None:
    report = looked(well(exposure=Exposure.UNGUARDED))
    assert wrong(report) == {"access"}
    assert "asks for no credential" in str(report.document()["headline"])


def test_a_router_that_strangers_may_take_credentials_from_says_so() -> None:
    report = looked(well(exposure=Exposure.IN_PLAIN))
    assert wrong(report) == {"access"}
    assert "credentials come to it without TLS" in str(report.document()["headline"])


@given(worlds())
def test_whatever_is_known_the_report_has_every_part_and_the_worst_state(world: tuple[Tables, Stores, float]) -> None:
    tables, stores, now_ms = world
    report = looked(snapshot_of(tables, stores, now_ms=now_ms))
    assert report.worst.state == max(each.state for each in report.indicators)
    for each in report.indicators:
        parts = (each.symptom, each.action)
        assert all(parts) == any(parts) == (each.state is not State.OK)
        assert len(each.document()["affected"]) <= 100  # type: ignore[arg-type]


def test_before_anything_is_known_the_state_is_unknown_and_says_why() -> None:
    report = looked(snapshot_of(Tables(), None, not_ready=("no catalogue is known yet",)))
    assert report.worst.name == "reads"
    assert report.document()["state"] == "unknown"
    assert "no catalogue is known yet" in report.worst.cause


def test_nodes_that_start_hurt_nobody() -> None:
    tables = Tables()
    tables.heard(beat("a", end_version=0, end_age_ms=None), age_ms=0, now_ms=0)
    report = looked(snapshot_of(tables, None, not_ready=("no catalogue is known yet",)))
    assert by_name(report)["checkpoint"].symptom == "No node has read a commit of the query yet"
    assert report.document()["state"] == "unknown"


def test_the_headline_is_one_line_with_the_symptom_and_what_to_do() -> None:
    report = looked(well(bus_lost_why="connection refused"))
    assert report.document()["headline"] == "Redis is not heard. Do: bring Redis back; restart nothing"


def test_nodes_that_wait_for_their_checkpoint_are_named_with_what_they_wait_for() -> None:
    tables, missing = Tables(), "a checkpoint at /data/orders: the folder does not exist"
    waiting = beat("a", state="starting", waits_for=missing, lineage=None, end_version=0, end_age_ms=None)
    tables.heard(waiting, age_ms=0, now_ms=0)
    report = looked(snapshot_of(tables, None, not_ready=("no catalogue is known yet",)))
    assert report.worst.symptom == f"No reader is answered yet: a waits for {missing}"
    assert "start the query" in report.worst.action
    assert by_name(report)["nodes"].affected == ("a",)
    assert missing in by_name(report)["checkpoint"].cause


def test_since_when_an_indicator_is_in_its_state_stays_while_it_does() -> None:
    def at(now_ms: float, before: HealthReport | None, **fields: Any) -> HealthReport:
        return finished(health_of(Observed(well(now_ms=now_ms, **fields)), before))

    first = at(0, None)
    lost = at(1, first, bus_lost_why="connection refused")
    still = at(2, lost, bus_lost_why="timed out")
    healed = at(3, still)
    begun, *_ = since = [each.since_us["bus"] for each in (first, lost, still, healed)]
    assert [each - begun for each in since] == [0, 1000, 1000, 3000]
    assert {each.since_us["nodes"] for each in (first, lost, still, healed)} == {begun}
    assert still.document()["since"] == utc_text(begun + 1000)


def test_causes_of_nodes_and_of_this_router_that_no_other_indicator_shows_are_named() -> None:
    beats = beat("a", degraded=["own-message", "lag-unknown"]), beat("b")
    causes = {"tls": "the certificate c.pem has expired: renew it", "bus-away": "no"}
    report = looked(snapshot_of(tables_with({"0_0": task("a", "b")}, *beats), ONE, causes=causes))
    found = by_name(report)["degraded"]
    assert wrong(report) == {"degraded"}
    assert found.symptom == "this router, a are degraded"
    assert found.cause == "the certificate c.pem has expired: renew it; a: own-message"
    assert found.affected == ("a",)


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
    assert (reads.state, reads.symptom) == (State.HURT, "2 of 4 store partitions cannot be read")
    assert reads.affected == ("one/0", "two/0")
    assert "dead: a" in reads.cause
    assert report.document()["headline"] == f"{report.worst.symptom}. Do: start a again"


def test_a_checkpoint_that_is_gone_is_the_cause_and_freshness_is_unknown() -> None:
    blind: dict[str, Any] = {"end_age_ms": None, "degraded": ["checkpoint-unreadable"]}
    tables = tables_with({"0_0": task("a", "b")}, beat("a", **blind), beat("b", **blind))
    report = looked(snapshot_of(tables, ONE))
    found = by_name(report)
    assert (found["checkpoint"].state, found["freshness"].state) == (State.HURT, State.UNKNOWN)
    assert found["checkpoint"].affected == ("a", "b")
    assert report.worst.name == "checkpoint"
    one = tables_with({"0_0": task("a", "b")}, beat("a", degraded=["checkpoint-unreadable"]), beat("b"))
    assert by_name(looked(snapshot_of(one, ONE)))["checkpoint"].state is State.ATTENTION


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


def test_a_query_that_does_not_commit_any_more_is_noticed_by_its_usual_pace() -> None:
    assert wrong(looked(well(), usual_commit_ms=1000, silent_ms=4900)) == set()
    report = looked(well(), usual_commit_ms=1000, silent_ms=5100)
    assert wrong(report) == {"query"}
    assert "has not committed for" in by_name(report)["query"].symptom
    assert wrong(looked(well(), usual_commit_ms=60_000, silent_ms=290_000)) == set()
    assert wrong(looked(well(), usual_commit_ms=None, silent_ms=290_000)) == set()


def quiet(*progress: QueryProgress | None, **fields: Any) -> Indicator:
    """What is said of a query that is silent for long, of which nodes a, b ... say this."""
    beats = [beat(node_id, query=each) for node_id, each in zip("abc", progress, strict=False)]
    snapshot = snapshot_of(tables_with({"0_0": task("a", "b", "c")}, *beats), ONE)
    return by_name(looked(snapshot, **{"usual_commit_ms": 1000, "silent_ms": 60_000, **fields}))["query"]


def test_a_query_that_is_slow_or_ended_in_a_batch_is_told_apart_from_one_that_begins_none() -> None:
    begun = quiet(QueryProgress(batch_ms=4000), QueryProgress(batch_ms=7000), None)
    assert "batch 7 began at least 7000 ms ago, without a commit: it is slow, hangs, or ended there" in begun.cause
    assert "driver" in begun.action
    none = quiet(QueryProgress(since_commit_ms=60_000), None)
    assert "batch 7 has not begun: the query was stopped, waits for its trigger, or has no input" in none.cause
    assert quiet(None, None).cause.endswith("it stopped, hangs, or has no input"), "older nodes do not say"
    assert {each.state for each in (begun, none, quiet(None))} == {State.ATTENTION}


def test_a_node_that_knows_another_end_says_nothing_of_the_batch_that_follows() -> None:
    old = beat("a", end_version=6, query=QueryProgress(batch_ms=9000))
    snapshot = snapshot_of(tables_with({"0_0": task("a", "b")}, old, beat("b", query=QueryProgress())), ONE)
    cause = by_name(looked(snapshot, usual_commit_ms=1000, silent_ms=60_000))["query"].cause
    assert "has not begun" in cause


def test_a_router_that_has_seen_no_commit_knows_the_pace_and_the_silence_by_the_nodes() -> None:
    said = QueryProgress(since_commit_ms=60_000, commit_interval_ms=1000)
    late = QueryProgress(since_commit_ms=90_000)
    unseen: dict[str, Any] = {"usual_commit_ms": None, "silent_ms": 0}
    assert quiet(said, late, **unseen).symptom == "The query has not committed for 90.0 s"
    assert quiet(late, **unseen).state is State.OK, "nobody knows its pace"
    assert quiet(QueryProgress(since_commit_ms=4000, commit_interval_ms=1000), **unseen).state is State.OK


def test_stores_that_fall_behind_are_named() -> None:
    report = looked(well(), trends={"one": Trend("growing", None), "two": Trend("steady", None)})
    assert by_name(report)["freshness"].affected == ("one",)


@pytest.mark.parametrize(("p99_ms", "is_late"), [(60_000, False), (60_001, True)])
def test_late_commits_name_the_nodes_that_measured_them_and_blame_nothing_that_was_not_measured(
    p99_ms: int, is_late: bool
) -> None:
    late, quick = Freshness(p50_ms=2, p99_ms=p99_ms), Freshness(p50_ms=2, p99_ms=9)
    beats = beat("a", freshness=quick), beat("b", freshness=late)
    found = looked(snapshot_of(tables_with({"0_0": task("a", "b")}, *beats), ONE))
    assert wrong(found) == ({"freshness"} if is_late else set())
    assert by_name(found)["freshness"].affected == (("b",) if is_late else ())
    assert "CPU" not in by_name(found)["freshness"].cause


def test_errors_of_readers_and_answers_beyond_their_bound_hurt() -> None:
    assert by_name(looked(well(), rates=Rates(error_percent=0.4, errors_per_s=1)))["reads"].state is State.OK
    some = by_name(looked(well(), rates=Rates(error_percent=0.5, errors_per_s=1)))["reads"]
    many = by_name(looked(well(), rates=Rates(error_percent=5.0, errors_per_s=9)))["reads"]
    assert (some.state, many.state) == (State.ATTENTION, State.HURT)
    assert by_name(looked(well(), rates=Rates(violations=1)))["reads"].state is State.HURT


def test_a_drained_a_failed_and_a_suspect_node_are_told_apart() -> None:
    for state, word in (("draining", "is draining"), ("failed", "has failed")):
        tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b", state=state))
        report = looked(snapshot_of(tables, ONE))
        assert word in by_name(report)["nodes"].symptom
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b"))
    tables.hop_failed("b", 0, "refused: cannot connect")
    snapshot = snapshot_of(tables, ONE)
    report = looked(snapshot, disagreements=Disagreements().see(snapshot))
    assert by_name(report)["nodes"].symptom == "b is suspect"
    assert by_name(report)["agreement"].cause == ("this router says suspect: refused: cannot connect; b says serving")


def test_restores_and_replicas_that_cannot_go_on_are_told_apart() -> None:
    restoring = beat("b", applied=Applied(version=3, state="RESTORING"))
    report = looked(snapshot_of(tables_with({"0_0": task("a", "b")}, beat("a"), restoring), ONE))
    assert by_name(report)["restores"].symptom == "1 replica is restoring"
    broken = beat("b", exceptions={"0_0": Applied(version=3, error="changelog 4.delta is damaged")})
    report = looked(snapshot_of(tables_with({"0_0": task("a", "b")}, beat("a"), broken), ONE))
    assert by_name(report)["restores"].cause == "one 0 on b: changelog 4.delta is damaged"


def test_a_difference_that_a_heartbeat_settles_is_no_disagreement_and_one_that_lasts_is() -> None:
    tables = tables_with({"0_0": task("a", "b")}, beat("a"), beat("b", epoch=0, term=0))
    seen = Disagreements()
    assert seen.see(snapshot_of(tables, ONE)) == []
    tables.heard(beat("b", epoch=0, term=0, sequence=2), age_ms=0, now_ms=3001)
    tables.heard(beat("a", sequence=2), age_ms=0, now_ms=3001)
    (found,) = seen.see(snapshot_of(tables, ONE, now_ms=3001))
    said = ("assignment 1 of term 1", "assignment 0 of term 0")
    assert (found["router_says"], found["node_says"], found["since"]) == (*said, "1970-01-01T00:16:40.000000Z")
    tables.heard(beat("b", sequence=3), age_ms=0, now_ms=3002)
    assert seen.see(snapshot_of(tables, ONE, now_ms=3002)) == []
