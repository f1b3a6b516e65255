"""The goals that a run of the benchmarks reached, and the reasons for the others (pure: from the report to the table).

Ratios are taken round by round, between servers that took turns; their median counts. A goal without a measurement is
not reached: the table names the missing figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from benchmarks.report import Report

LOOKUPS, BATCHES, FOLLOWING = "benchmarks.lookups", "benchmarks.batches", "benchmarks.following"
RESTORE, SCALE, IDLE = "benchmarks.restore_and_lookup", "benchmarks.scale", "benchmarks.idle"
EXPORTS, LEASES, FLEET = "benchmarks.exports", "benchmarks.leases", "benchmarks.fleet"
CONSTANT, REDIS_GET, NGINX_HOP = "constant ASGI app", "FastAPI + redis-py GET", "nginx, forwarded to nginx"
KS_LOCAL = "Kafka Streams, local"
KS_FORWARDED = "Kafka Streams, forwarded with Vert.x"
MGET = "FastAPI + redis-py MGET"


class Verdict(StrEnum):
    """Whether a goal is reached."""

    REACHED = "reached"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


class Outcome(NamedTuple):
    """One goal, what was found, and why that is not enough."""

    what: str
    goal: str
    found: str
    verdict: Verdict
    reason: str = ""


class _MissingError(Exception):
    """A figure that a goal needs is not in the report."""


def goals_table(report: Report) -> str:
    """Render the outcomes as a table in Markdown."""
    lines = ["| | goal | found | | why |", "|---|---|---|---|---|"]
    lines += [
        f"| {each.what} | {each.goal} | {each.found} | **{each.verdict}** | {each.reason} |"
        for each in outcomes(report)
    ]
    return "\n".join(lines) + "\n"


def outcomes(report: Report) -> list[Outcome]:
    """List every goal, in the order of the issues that set them."""
    return [
        *_lookups(report),
        *_batches(report),
        *_restores(report),
        *_following(report),
        *_scale(report),
        *_idle(report),
        *_exports(report),
        *_leases(report),
        *_fleet(report),
    ]


def _lookups(report: Report) -> Iterator[Outcome]:
    node = "node lookup, hot keys, 64 connections"
    yield _rate(report, node, "node", CONSTANT, 1.8)
    yield _rate(report, node, "node", KS_LOCAL, 1)
    routed = "routed lookup"
    yield _rate(report, routed, "router", CONSTANT, 1.2)
    yield _rate(report, routed, "router", KS_FORWARDED, 1)
    yield _rate(report, routed, "router", REDIS_GET, 8)
    quiet = "one connection, routed, p50"
    yield _at_most(report, quiet, (LOOKUPS, "router", "quiet_p50_ms"), 0.14, "ms")
    yield _ratio(
        report, quiet, (LOOKUPS, "router", "quiet_p50_ms"), (LOOKUPS, NGINX_HOP, "quiet_p50_ms"), 1.3, at_least=False
    )


def _batches(report: Report) -> Iterator[Outcome]:
    for server, factor in (("node", 0.9), ("router", 0.7)):
        subject = f"{server}, compact"
        rate, peer = (BATCHES, subject, "keys_per_second"), (BATCHES, MGET, "keys_per_second")
        yield _ratio(report, f"batches of 100, {server}", rate, peer, factor, at_least=True)
        yield _tail(report, subject)


def _restores(report: Report) -> Iterator[Outcome]:
    hdfs = "HDFSBacked, 1000000 keys"
    during, idle = (
        (RESTORE, f"{hdfs}, lookups during a restore", "p99_ms"),
        (RESTORE, f"{hdfs}, lookups, idle", "p99_ms"),
    )
    yield _ratio(report, "p99 of lookups during a large restore", during, idle, 3, at_least=False)
    spark, ours = (RESTORE, hdfs, "spark_s"), (RESTORE, hdfs, "restore_s")
    yield _ratio(report, "Spark's reader against a restore, HDFS-backed, 1 M keys", spark, ours, 3, at_least=True)
    large = (RESTORE, "HDFSBacked, 10000000 keys", "resident_of_raw")
    yield _at_most(report, "resident after a restore, HDFS-backed, 10 M keys", large, 1.5, "x raw")


def _following(report: Report) -> Iterator[Outcome]:
    for tasks, figure, limit, unit in (
        (200, "per_commit_and_task_ms", 0.3, "ms"),
        (1000, "busy_core", 0.5, "core"),
        (12, "idle_core", 0.01, "core"),
        (1000, "idle_core", 0.03, "core"),
    ):
        what = f"following, {tasks} tasks: {figure.replace('_', ' ')}"
        yield _at_most(report, what, (FOLLOWING, f"{tasks} tasks", figure), limit, unit)


def _scale(report: Report) -> Iterator[Outcome]:
    subject = "1000 nodes, 100000 replicas"
    yield _at_most(report, "gossip of 1,000 nodes, router CPU", (SCALE, subject, "router_core"), 0.1, "core")
    yield _at_most(report, "... longest pause of its loop", (SCALE, subject, "longest_pause_ms"), 20, "ms")


def _idle(report: Report) -> Iterator[Outcome]:
    for tasks in (12, 1000):
        for case in ("page closed", "1 viewer", "200 viewers"):
            subject = f"{tasks} tasks, {case}"
            yield _at_most(report, f"idle node, {subject}", (IDLE, subject, "node_core"), 0.02, "core")


def _exports(report: Report) -> Iterator[Outcome]:
    subject = "exports, 1000000 keys"

    def figure(name: str) -> _Place:
        return EXPORTS, subject, name

    arrow, ndjson = figure("arrow_per_second"), figure("ndjson_per_second")
    raw, spark, alone = figure("raw_per_second"), figure("spark_per_second"), figure("p99_ms_0")
    yield _ratio(report, "Arrow, rows a second", arrow, raw, 0.5, at_least=True)
    yield _ratio(report, "NDJSON, rows a second", ndjson, raw, 0.2, at_least=True)
    yield _ratio(report, "Arrow, beside Spark's reader", arrow, spark, 5, at_least=True)
    for exports in (1, 4):
        beside = figure(f"p99_ms_{exports}")
        yield _ratio(report, f"p99 of lookups beside exports: {exports}", beside, alone, 2, at_least=False)


def _leases(report: Report) -> Iterator[Outcome]:
    for leases in (1, 10, 50):
        held = LEASES, f"{leases} leases", "of_model"
        yield _at_most(report, f"memory of versions that leases keep: {leases}", held, 1.5, "x model")


def _fleet(report: Report) -> Iterator[Outcome]:
    for phase in ("at rest", "a commit in 2 s each"):
        place = FLEET, f"40 queries, {phase}", "memory_of_clusters"
        yield _at_most(report, f"memory of a fleet of 40 queries, {phase}", place, 0.2, "x 40 clusters")
    answer = FLEET, "from announce to the first answer", "first_answer_s"
    yield _at_most(report, "from a query's announce to its first answer, p50", answer, 3, "s")


_Place = tuple[str, str, str]
"""Module, subject, figure."""


def _rate(report: Report, what: str, subject: str, other: str, factor: float) -> Outcome:
    """Compare a rate with another server's; a miss gives the cost of a request."""
    ours, theirs = (LOOKUPS, subject, "per_second"), (LOOKUPS, other, "per_second")
    found = _ratio(report, what, ours, theirs, factor, at_least=True)
    if found.verdict is not Verdict.MISSED:
        return found
    cpu_us = statistics.median(_series(report, (LOOKUPS, subject, "cpu_us")))
    left_us = 1e6 / (factor * statistics.median(_series(report, theirs)))
    reason = f"a request takes {cpu_us:.1f} us of CPU, the goal leaves {left_us:.1f}"
    if cpu_us < left_us:
        reason += ": the server was not busy all the time, so CPU is not what misses it"
    return found._replace(reason=reason)


def _ratio(report: Report, what: str, place: _Place, other: _Place, factor: float, *, at_least: bool) -> Outcome:
    sign = "≥" if at_least else "≤"
    goal = f"{sign} {factor:g} x {other[1]}" if place[1] != other[1] else f"{sign} {factor:g} x {other[2]}"
    try:
        ours, theirs = _series(report, place), _series(report, other)
    except _MissingError as missing:
        return Outcome(what, goal, "", Verdict.NOT_MEASURED, str(missing))
    ratios = [one / another for one, another in zip(ours, theirs, strict=False)]
    found = statistics.median(ratios)
    text = f"{found:.2f} x ({min(ratios):.2f}-{max(ratios):.2f})"
    if found >= factor if at_least else found <= factor:
        return Outcome(what, goal, text, Verdict.REACHED)
    medians = f"{statistics.median(ours):,.4g} against {statistics.median(theirs):,.4g} ({place[2]})"
    return Outcome(what, goal, text, Verdict.MISSED, medians)


def _tail(report: Report, subject: str) -> Outcome:
    what, goal = f"batches of 100, {subject.partition(',')[0]}: p99 / p50", "≤ MGET's"
    try:
        ours, theirs = (
            statistics.median(
                p99 / p50
                for p99, p50 in zip(
                    _series(report, (BATCHES, each, "p99_ms")), _series(report, (BATCHES, each, "p50_ms")), strict=True
                )
            )
            for each in (subject, MGET)
        )
    except _MissingError as missing:
        return Outcome(what, goal, "", Verdict.NOT_MEASURED, str(missing))
    text = f"{ours:.1f}, MGET's {theirs:.1f}"
    if ours <= theirs:
        return Outcome(what, goal, text, Verdict.REACHED)
    return Outcome(what, goal, text, Verdict.MISSED, "its slowest answers are further from the usual ones")


def _at_most(report: Report, what: str, place: _Place, limit: float, unit: str) -> Outcome:
    goal = f"≤ {limit:g} {unit}"
    try:
        found = statistics.median(_series(report, place))
    except _MissingError as missing:
        return Outcome(what, goal, "", Verdict.NOT_MEASURED, str(missing))
    if found <= limit:
        return Outcome(what, goal, f"{found:.3g} {unit}", Verdict.REACHED)
    return Outcome(what, goal, f"{found:.3g} {unit}", Verdict.MISSED, f"{found / limit:.1f} x the goal")


def _series(report: Report, place: _Place) -> Sequence[float]:
    """Return the rounds of one figure. Raises _MissingError with the reason when there are no rounds."""
    module, subject, figure = place
    parts: list[dict[str, Any]] = [part for part in report["parts"].values() if part["module"] == module]
    for part in parts:
        rounds = part["rounds"].get(subject, [])
        found = [each[figure] for each in rounds if figure in each]
        if found:
            return found
    if not parts:
        raise _MissingError(f"{module} is not in this run")
    skips = [skip for part in parts for skip in part["skipped"]]
    ended = [part["status"] for part in parts if part["status"] != "done"]
    raise _MissingError("; ".join([f"no {figure} of {subject!r}", *ended, *(f"skipped: {skip}" for skip in skips)]))
