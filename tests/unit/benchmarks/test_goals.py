"""The table of goals says of each what was found, and never calls reached what was not measured."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.goals import CONSTANT, KS_LOCAL, LOOKUPS, Outcome, Verdict, goals_table, outcomes
from hypothesis import given
from hypothesis import strategies as st


def part(module: str, rounds: dict[str, list[dict[str, float]]], *, skipped: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"module": module, "status": "done", "rounds": rounds, "skipped": list(skipped)}


def lookups(node: list[float], constant: list[float], *, skipped: tuple[str, ...] = ()) -> dict[str, Any]:
    def rounds(rates: list[float]) -> list[dict[str, float]]:
        return [{"per_second": rate, "cpu_us": 24.0, "quiet_p50_ms": 0.1} for rate in rates]

    return part(LOOKUPS, {"node": rounds(node), CONSTANT: rounds(constant)}, skipped=skipped)


def found(report: dict[str, Any], what: str, goal: str) -> Outcome:
    (only,) = [each for each in outcomes(report) if each.what.startswith(what) and goal in each.goal]
    return only


def test_a_rate_is_compared_round_by_round() -> None:
    report = {"parts": {"lookups": lookups([180, 400, 1], [100, 200, 2])}}
    assert found(report, "node lookup", CONSTANT) == Outcome(
        "node lookup, hot keys, 64 connections", f"≥ 1.8 x {CONSTANT}", "1.80 x (0.50-2.00)", Verdict.REACHED
    )


def test_a_missed_rate_says_what_a_request_costs_and_what_the_goal_leaves() -> None:
    report = {"parts": {"lookups": lookups([42_000], [40_000])}}
    missed = found(report, "node lookup", CONSTANT)
    assert (missed.verdict, missed.found) == (Verdict.MISSED, "1.05 x (1.05-1.05)")
    assert missed.reason == "a request takes 24.0 us of CPU, the goal leaves 13.9"


def test_a_missed_rate_does_not_name_cpu_that_the_goal_leaves() -> None:
    report = {"parts": {"lookups": lookups([21_000], [20_000])}}
    reason = found(report, "node lookup", CONSTANT).reason
    assert reason.startswith("a request takes 24.0 us of CPU, the goal leaves 27.8")
    assert reason.endswith("CPU is not what misses it")


def test_a_peer_that_was_skipped_leaves_its_goal_unmeasured_and_says_why() -> None:
    report = {"parts": {"lookups": lookups([1], [1], skipped=("no Maven",))}}
    outcome = found(report, "node lookup", KS_LOCAL)
    assert (outcome.verdict, outcome.found) == (Verdict.NOT_MEASURED, "")
    assert "skipped: no Maven" in outcome.reason


def test_a_part_that_failed_is_named() -> None:
    report = {"parts": {"scale": {**part("benchmarks.scale", {}), "status": "ended with 1"}}}
    assert "ended with 1" in found(report, "gossip", "core").reason


def test_a_limit_is_reached_at_it_and_missed_above_it() -> None:
    for cpu, verdict in ((0.1, Verdict.REACHED), (0.11, Verdict.MISSED)):
        rounds = {"1000 nodes, 100000 replicas": [{"router_core": cpu, "longest_pause_ms": 5.0}]}
        report = {"parts": {"scale": part("benchmarks.scale", rounds)}}
        assert found(report, "gossip", "core").verdict is verdict


def test_an_idle_node_is_judged_by_who_has_the_page_open() -> None:
    rounds = {"12 tasks, page closed": [{"node_core": 0.02}], "12 tasks, 1 viewer": [{"node_core": 0.021}]}
    report = {"parts": {"idle": part("benchmarks.idle", rounds)}}
    assert found(report, "idle node, 12 tasks, page closed", "core").verdict is Verdict.REACHED
    assert found(report, "idle node, 12 tasks, 1 viewer", "core").verdict is Verdict.MISSED
    assert found(report, "idle node, 1000 tasks, 200 viewers", "core").verdict is Verdict.NOT_MEASURED


@pytest.mark.parametrize(("p99", "verdict"), [(9.0, Verdict.REACHED), (11.0, Verdict.MISSED)])
def test_the_tail_of_batches_is_judged_by_that_of_mget(p99: float, verdict: Verdict) -> None:
    rounds = {
        "node, compact": [{"keys_per_second": 9.0, "p50_ms": 1.0, "p99_ms": p99}],
        "FastAPI + redis-py MGET": [{"keys_per_second": 9.0, "p50_ms": 1.0, "p99_ms": 10.0}],
    }
    assert (
        found({"parts": {"b": part("benchmarks.batches", rounds)}}, "batches of 100, node: p99", "MGET").verdict
        is verdict
    )


SUBJECTS = st.sampled_from(
    ["node", "router", CONSTANT, KS_LOCAL, "nginx, forwarded to nginx", "FastAPI + redis-py GET"]
)
FIGURES = st.fixed_dictionaries({name: st.floats(0.01, 1e6) for name in ("per_second", "cpu_us", "quiet_p50_ms")})


@given(st.dictionaries(SUBJECTS, st.lists(FIGURES, max_size=3), max_size=6))
def test_every_report_has_a_table_and_nothing_unmeasured_is_reached(rounds: dict[str, list[dict[str, float]]]) -> None:
    report = {"parts": {"lookups": part(LOOKUPS, rounds)}}
    table = goals_table(report)
    known = outcomes(report)
    assert len(table.splitlines()) == len(known) + 2
    for outcome in known:
        assert (outcome.found == "") == (outcome.verdict is Verdict.NOT_MEASURED)
        assert bool(outcome.reason) == (outcome.verdict is not Verdict.REACHED)
