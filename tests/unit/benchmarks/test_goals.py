"""The table of goals says of each what was found, and never calls reached what was not measured."""

from __future__ import annotations

from typing import Any

from benchmarks.goals import CONSTANT, LOOKUPS, Outcome, Verdict, outcomes


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


def test_a_limit_is_reached_at_it_and_missed_above_it() -> None:
    for cpu, verdict in ((0.1, Verdict.REACHED), (0.11, Verdict.MISSED)):
        rounds = {"1000 nodes, 100000 replicas": [{"router_core": cpu, "longest_pause_ms": 5.0}]}
        report = {"parts": {"scale": part("benchmarks.scale", rounds)}}
        assert found(report, "gossip", "core").verdict is verdict
