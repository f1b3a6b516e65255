"""Overview documents made by hand, as `GET /admin/v1/overview` gives them: one for each state of a cluster.

They hold what the contract of the page says, and nothing random: the same call gives the same document.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

AT = "2026-11-22T12:04:31.000000Z"
SINCE = "2026-11-22T12:03:58.000000Z"
LINEAGE = "618d1658-2a46-4d6d-b22e-4e23518436de"

Overview = dict[str, Any]

INDICATORS = ("reads", "checkpoint", "freshness", "nodes", "redundancy", "bus", "restores", "agreement", "access")

KEYS: dict[str, tuple[list[dict[str, str]], str | None]] = {
    "aircraft": ([{"name": "tailnum", "type": "string"}], '["N14228"]'),
    "routes": (
        [
            {"name": "carrier", "type": "string"},
            {"name": "origin", "type": "string"},
            {"name": "dest", "type": "string"},
        ],
        '["UA","EWR","IAH"]',
    ),
    "airport_hours": (
        [{"name": "window", "type": "struct<start:timestamp,end:timestamp>"}, {"name": "origin", "type": "string"}],
        None,
    ),
}


def cell(role: str = "A", **fields: Any) -> dict[str, Any]:
    """A replica of the grid that is well."""
    well = {"state": "RUNNING", "lag": 0, "lag_ms": 12, "age_ms": 400, "percent": None, "error": None}
    return {"role": role, **well, **fields}


def row(store: str, partition: int, cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {"store": store, "partition": partition, "cells": cells}


def indicator(name: str, state: str = "ok", **fields: Any) -> dict[str, Any]:
    """An indicator; well unless said otherwise."""
    silent: dict[str, Any] = {"symptom": "", "impact": "", "cause": "", "action": "", "runbook": None, "affected": []}
    return {"name": name, "state": state, "since": SINCE, **silent, **fields}


def store(name: str, operator_id: int, **fields: Any) -> dict[str, Any]:
    """A store of four partitions, each with an active and a standby."""
    key, example = KEYS[name]
    return {
        "store": name, "operator_id": operator_id, "partitions": 4, "active": 4, "standby": 4, "warmup": 0,
        "restoring": 0, "unserved": 0, "worst_lag": 0, "worst_lag_ms": 12, "unknown": 0, "trend": "steady",
        "eta_s": None, "within_bound_percent": 100.0, "staleness_p99_ms": 25, "staleness_is_more": False,
        "history": [int(n % 17 == 5) for n in range(60)], "key": key, "example": example, **fields,
    }  # fmt: skip


def lease(**fields: Any) -> dict[str, Any]:
    """A snapshot lease that three nodes hold."""
    return {
        "id": "K-pd12_QxABc", "version": 410, "committed_at": SINCE, "lineage": LINEAGE, "ttl_s": 60,
        "expires_at": AT, "tasks": 24, "extra_bytes": 1_500_000, "disk_bytes": 0, "nodes": 3, **fields,
    }  # fmt: skip


def node(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "node_id": f"node-{number}", "host": "10.0.0.4", "port": 7100 + number, "zone": "zone-a", "state": "serving",
        "live": True, "health": "ok", "heartbeat_age_ms": 400, "version": 418, "active": 4, "standby": 4, "warmup": 0,
        "reason": "", "degraded": [], "waits_for": None, "restoring": 0,
        "safe_to_stop": {"safe": True, "why": "every partition has another caught-up replica"}, **fields,
    }  # fmt: skip


def healthy() -> Overview:
    """Three nodes, three stores of four partitions, all well."""
    rows = []
    for index, name in enumerate(KEYS):
        for partition in range(4):
            active, standby = (partition + index) % 3 + 1, (partition + index + 1) % 3 + 1
            rows.append(row(name, partition, {f"node-{active}": cell("A"), f"node-{standby}": cell("S", lag_ms=15)}))
    return {
        "schema": 1, "tick": 1, "generated_at": AT, "application_id": "flights", "lineage": LINEAGE,
        "release": "0.1.0", "router": "127.0.0.1:8080", "router_id": "router-1",
        "health": {"state": "ok", "headline": "all well", "runbook": None,
                   "indicators": [indicator(name) for name in INDICATORS]},
        "freshness": {"p50_ms": 8, "p99_ms": 17},
        "reads": {
            "per_s": 1240.4, "errors_per_s": 0, "within_bound_percent": 99.98,
            "staleness": {"le_ms": [1, 5, 10, 50, 100, 500, 1000, None], "counts": [0, 120, 9000, 4400, 60, 3, 0, 0]},
        },
        "lag": {"worst_batches": 0, "worst_ms": 15, "unknown": 0, "store": "aircraft", "partition": 0,
                "node_id": "node-2"},
        "end": {"version": 418, "confirmed": True, "age_ms": 310},
        "bus": {"state": "connected", "why": ""},
        "counts": {"nodes_live": 3, "nodes_known": 3, "replicas": 24, "running": 24, "restoring": 0, "dead": 0,
                   "unknown": 0},
        "stores": [store(name, index) for index, name in enumerate(KEYS)],
        "nodes": [node(1), node(2, zone="zone-b"), node(3, zone="zone-c")],
        "grid": {"columns": ["node-1", "node-2", "node-3"], "rows": rows, "total": 12, "order": "all"},
        "restores": [], "disagreement": [], "snapshots": {"held": 0, "leases": []},
        "events": [
            {"id": 3, "at": "2026-11-22T12:01:02.250000Z", "event": "joined", "detail": "node-3 at 10.0.0.4:7103"},
            {"id": 2, "at": "2026-11-22T12:01:01.750000Z", "event": "joined", "detail": "node-2 at 10.0.0.4:7102"},
            {"id": 1, "at": "2026-11-22T12:01:01.500000Z", "event": "joined", "detail": "node-1 at 10.0.0.4:7101"},
        ],
    }  # fmt: skip


def served() -> Overview:
    """The same stores at `understudy serve`: one process, which knows of no other."""
    shown, here = healthy(), "127.0.0.1:8080"
    for each in shown["grid"]["rows"]:
        each["cells"] = {here: cell("A", age_ms=0)}
    of_a_router = ("standby", "warmup", "eta_s", "within_bound_percent", "staleness_p99_ms", "staleness_is_more")
    for each in shown["stores"]:
        each["trend"] = None
        for name in of_a_router:
            del each[name]
    shown["grid"]["columns"] = [here]
    shown["counts"] = {"replicas": 12, "running": 12, "restoring": 0, "dead": 0, "unknown": 0}
    shown["events"] = [{"id": 1, "at": "2026-11-22T12:01:01.500000Z", "event": "ready", "detail": "12 tasks are open"}]
    return shown | {"service": "server", "router_id": None, "nodes": None, "bus": None}


def degraded() -> Overview:
    """A dead node, a suspect one, a query whose end nobody knows, Redis gone, and a damaged changelog."""
    shown = healthy()
    for each in shown["grid"]["rows"]:
        cells = each["cells"]
        if "node-3" in cells:
            role = cells["node-3"]["role"]
            cells["node-3"] = cell(role, state="DEAD", lag=None, lag_ms=None, age_ms=None, error="killed")
    rows = shown["grid"]["rows"]
    rows[0]["cells"]["node-1"] = cell("A", lag=3, lag_ms=4200)
    rows[4]["cells"]["node-2"] = cell("A", lag=None, lag_ms=None, age_ms=15_000)
    rows[6]["cells"]["node-1"] = cell("S", error="1234.changelog: damaged at byte 512")
    shown["health"] = {
        "state": "hurt",
        "headline": "node-3 is dead. Do: start node-3 again, or take it out for good",
        "runbook": "docs/runbooks/nodes.md",
        "indicators": [
            indicator("reads"),
            indicator(
                "checkpoint", "attention", symptom="the end of the query is not confirmed for 15 s",
                impact="readers with a bound on lag are refused", cause="the checkpoint storage does not answer",
                action="check the mount on node-1 and node-2", runbook="docs/runbooks/checkpoint.md",
                affected=["node-1", "node-2"],
            ),
            indicator("freshness"),
            indicator(
                "nodes", "hurt", symptom="node-3 is dead", impact="4 store partitions have no standby",
                cause="no word for 3 heartbeats, and it did not answer when it was asked",
                action="start node-3 again, or take it out for good", runbook="docs/runbooks/nodes.md",
                affected=["node-3"],
            ),
            indicator("redundancy", "attention", symptom="4 partitions have one replica", impact="a fault stops reads",
                      cause="node-3 is dead", action="wait for the warm-ups", runbook="docs/runbooks/redundancy.md",
                      affected=[f"aircraft {n}" for n in range(4)]),
            indicator("bus", "attention", symptom="Redis refuses writes", impact="nothing is reassigned",
                      cause="OOM command not allowed", action="give Redis memory", runbook="docs/runbooks/bus.md",
                      affected=["redis"]),
            indicator("restores"),
            indicator("agreement", "unknown", symptom="node-2 cannot be asked", impact="", cause="", action="",
                      affected=["node-2"]),
        ],
    }  # fmt: skip
    shown["bus"] = {"state": "degraded", "why": "OOM command not allowed when used memory > 'maxmemory'"}
    shown["end"] = {"version": 418, "confirmed": False, "age_ms": 15_200}
    shown["lag"] = {"worst_batches": 3, "worst_ms": 4200, "unknown": 1, "store": "aircraft", "partition": 0,
                    "node_id": "node-1"}  # fmt: skip
    shown["counts"] |= {"nodes_live": 2, "running": 15, "dead": 8, "unknown": 1}
    shown["reads"] |= {"per_s": 412, "errors_per_s": 2.5, "within_bound_percent": 98.4}
    shown["freshness"] = {"p50_ms": 30, "p99_ms": 2400}
    shown["stores"][0] |= {"active": 4, "standby": 2, "worst_lag": 3, "worst_lag_ms": 4200, "trend": "growing",
                           "history": [0] * 50 + [0, 0, 1, 1, 2, 2, 2, 3, 3, 3]}  # fmt: skip
    shown["stores"][1] |= {"active": 3, "unserved": 1, "unknown": 1, "worst_lag": None, "worst_lag_ms": None,
                           "within_bound_percent": 97.25, "staleness_p99_ms": 300_000, "staleness_is_more": True,
                           "trend": "unknown", "history": [0] * 40 + [None] * 20}  # fmt: skip
    lone = {"safe": False, "why": "aircraft 0 and routes 1 would lose their last caught-up replica"}
    shown["nodes"] = [
        node(1, safe_to_stop=lone),
        node(2, health="suspect", reason="timeout: no answer within 1000 ms", degraded=["bus-away: refuses writes"],
             safe_to_stop={"safe": None, "why": "its lag is unknown"}),
        node(3, state="dead", live=False, health=None, heartbeat_age_ms=33_000, version=None, active=0, standby=0,
             reason="no word for 3 heartbeats, and it did not answer when it was asked",
             safe_to_stop={"safe": None, "why": ""}),
    ]  # fmt: skip
    shown["disagreement"] = [
        {"node_id": "node-2", "router_says": "suspect: timeouts", "node_says": "serving",
         "since": "2026-11-22T12:03:59.000000Z"},
    ]  # fmt: skip
    shown["events"] = [
        {"id": 6, "at": "2026-11-22T12:04:01.000000Z", "event": "bus-lost", "detail": "OOM command not allowed"},
        {"id": 5, "at": "2026-11-22T12:03:59.000000Z", "event": "suspect", "detail": "node-2: timeouts"},
        {"id": 4, "at": "2026-11-22T12:03:58.000000Z", "event": "died",
         "detail": "node-3: no word for 3 heartbeats, and it did not answer when it was asked"},
        *shown["events"],
    ]  # fmt: skip
    return shown


def restoring() -> Overview:
    """A node that has come back: it restores, another drains."""
    shown = healthy()
    for number, each in enumerate(shown["grid"]["rows"]):
        if "node-3" in each["cells"]:
            percent = None if number == 1 else 62 + number
            each["cells"]["node-3"] = cell("W", state="RESTORING", lag=40, lag_ms=60_000, percent=percent)
    shown["grid"]["rows"][11]["cells"]["node-3"] = cell("W", state="CREATED", lag=None, lag_ms=None)
    shown["health"]["state"] = "attention"
    shown["health"]["headline"] = "8 replicas restore on node-3: done in about 40 s"
    shown["health"]["runbook"] = "docs/runbooks/restores.md"
    shown["health"]["indicators"] = [
        indicator(
            name, "attention", symptom="8 replicas restore", impact="node-3 serves nothing yet",
            cause="node-3 was started again", action="wait", runbook="docs/runbooks/restores.md", affected=["node-3"],
        )
        if name == "restores"
        else indicator(name)
        for name in INDICATORS
    ]  # fmt: skip
    shown["counts"] |= {"running": 16, "restoring": 8}
    for each in shown["stores"]:
        each |= {"warmup": 2, "restoring": 2, "worst_lag": 40, "worst_lag_ms": 60_000}
        each |= {"trend": "shrinking", "eta_s": 41.5}
    shown["stores"][2] |= {"within_bound_percent": None, "staleness_p99_ms": None}
    shown["nodes"][1] |= {"state": "draining", "active": 1, "standby": 2, "warmup": 0}
    shown["nodes"][2] |= {"restoring": 8, "active": 0, "standby": 0, "warmup": 8,
                          "safe_to_stop": {"safe": True, "why": "it holds nothing that others lack"}}  # fmt: skip
    shown["restores"] = [
        {"node_id": "node-3", "task": "2_0", "stores": ["airport_hours"], "stage": "unknown", "done_bytes": None,
         "total_bytes": None, "bytes_per_s": None},
        {"node_id": "node-3", "task": "0_0", "stores": ["aircraft"], "stage": "download", "done_bytes": 1_240_000_000,
         "total_bytes": 2_000_000_000, "bytes_per_s": 80_000_000.0},
        {"node_id": "node-3", "task": "1_1", "stores": ["routes"], "stage": "replay", "done_bytes": 5_000_000,
         "total_bytes": None, "bytes_per_s": None},
    ]  # fmt: skip
    return shown


def empty() -> Overview:
    """A router that has heard nothing."""
    shown = healthy()
    shown["health"] = {
        "state": "unknown",
        "headline": "nothing was heard of flights yet: no node, no store, no commit",
        "runbook": None,
        "indicators": [
            indicator("nodes", "unknown", symptom="no node was heard of", impact="nothing can be asked",
                      cause="none was started, or it says another application id",
                      action="start one: understudy node CHECKPOINT --redis URL --application-id flights"),
        ],
    }  # fmt: skip
    shown["lineage"] = None
    shown["freshness"] = {"p50_ms": None, "p99_ms": None}
    shown["reads"] = {"per_s": 0, "errors_per_s": 0, "within_bound_percent": None,
                      "staleness": {"le_ms": [1, 5, None], "counts": [0, 0, 0]}}  # fmt: skip
    shown["lag"] = {"worst_batches": None, "worst_ms": None, "unknown": 0, "store": None, "partition": None,
                    "node_id": None}  # fmt: skip
    shown["end"] = {"version": None, "confirmed": False, "age_ms": None}
    shown["counts"] = dict.fromkeys(shown["counts"], 0)
    shown["grid"] = {"columns": [], "rows": [], "total": 0, "order": "all"}
    for section in ("stores", "nodes", "events"):
        shown[section] = []
    return shown


def waiting() -> Overview:
    """One node was started before the query: it waits for its checkpoint."""
    shown = empty()
    waits_for = "the checkpoint s3://state/flights: no metadata file yet; the query writes it when it first starts"
    shown["nodes"] = [
        node(
            1,
            state="waiting",
            waits_for=waits_for,
            version=None,
            active=0,
            standby=0,
            safe_to_stop={"safe": None, "why": "this router does not know yet which node holds what"},
        )
    ]
    shown["counts"] |= {"nodes_live": 1, "nodes_known": 1}
    shown["health"] |= {
        "state": "attention",
        "headline": "node-1 waits for its checkpoint. Do: start the query, or check the path of the checkpoint",
        "indicators": [indicator(
            "nodes", "attention", symptom="node-1 waits for its checkpoint", impact="nothing can be asked yet",
            cause=waits_for, action="start the query, or check the path of the checkpoint", affected=["node-1"],
            runbook="docs/runbooks/nodes.md",
        )],
    }  # fmt: skip
    return shown


def failover() -> Overview:
    """The node with an active of each store died a moment ago, and its standbys took over."""
    shown = degraded()
    calm = healthy()
    shown |= {name: calm[name] for name in ("bus", "end", "freshness", "lag", "disagreement", "reads")}
    indicators = [each for each in shown["health"]["indicators"] if each["name"] in {"nodes", "redundancy"}]
    shown["health"] |= {"state": "attention", "indicators": [{**each, "state": "attention"} for each in indicators]}
    shown["stores"] = [{**each, "standby": 2, "history": calm["stores"][0]["history"]} for each in calm["stores"]]
    shown["nodes"] = [calm["nodes"][0], calm["nodes"][1], shown["nodes"][2]]
    for each in shown["grid"]["rows"]:
        cells = {node_id: {**found, "error": None} for node_id, found in each["cells"].items()}
        for found in cells.values():
            if found["state"] == "RUNNING" and "node-3" in cells:
                found |= {"role": "A", "lag": 0, "lag_ms": 12, "age_ms": 400}
        each["cells"] = cells
    taken = "node-1 is active for aircraft 2, routes 1, airport_hours 0 and 1 more, after node-3"
    promoted = {"id": 5, "at": "2026-11-22T12:03:58.400000Z", "event": "promoted", "detail": taken}
    shown["events"] = [promoted, *(each for each in shown["events"] if each["id"] == 4), *calm["events"]]
    return shown


def stopped() -> Overview:
    """The query has stopped; everything else is well."""
    shown = healthy()
    symptom = "The query has not committed for 4 min"
    shown["health"] = {
        "state": "attention",
        "headline": f"{symptom}. Do: look at the query, and at its driver's log",
        "runbook": "docs/runbooks/query.md",
        "indicators": [indicator(
            "query", "attention", symptom=symptom, impact="answers stay what they are",
            cause="it usually commits every 1.0 s; batch 418 has not begun: the query was stopped, waits for its "
            "trigger, or has no input",
            action="look at the query, and at its driver's log", runbook="docs/runbooks/query.md",
        )],
    }  # fmt: skip
    shown["end"]["age_ms"] = 240_000
    return shown


def without_redis() -> Overview:
    """Redis is away, and lookups go on."""
    shown = healthy()
    why = "Redis does not answer at redis://redis:6379: Connection refused"
    shown["bus"] = {"state": "degraded", "why": why}
    shown["health"] = {
        "state": "attention",
        "headline": "Redis is not heard. Do: bring Redis back; restart nothing",
        "runbook": "docs/runbooks/bus.md",
        "indicators": [indicator(
            "bus", "attention", symptom="Redis is not heard",
            impact="lookups go on; no failure is healed meanwhile", cause=why,
            action="bring Redis back; restart nothing", runbook="docs/runbooks/bus.md",
        )],
    }  # fmt: skip
    return shown


def large(replicas: int, nodes: int = 16) -> Overview:
    """So many replicas, two of each partition; every 50th lags. Above 10,000 the grid would be the worst only."""
    shown = healthy()
    partitions = replicas // 2
    names = [f"node-{number:03d}" for number in range(1, nodes + 1)]
    rows = []
    for partition in range(partitions):
        active, standby = names[partition % nodes], names[(partition * 7 + 1 + partition % nodes) % nodes]
        if active == standby:
            standby = names[(partition + 1) % nodes]
        lag = 5 if partition % 50 == 0 else partition % 2
        rows.append(row("aircraft", partition, {active: cell("A", lag=lag), standby: cell("S")}))
    shown["grid"] = {"columns": names, "rows": rows, "total": partitions, "order": "all"}
    shown["stores"] = [store("aircraft", 0, partitions=partitions, active=partitions, standby=partitions, worst_lag=5)]
    shown["nodes"] = [node(number, node_id=name) for number, name in enumerate(names, 1)]
    shown["lag"] |= {"worst_batches": 5, "partition": 0, "node_id": names[0]}
    shown["counts"] |= {"nodes_live": nodes, "nodes_known": nodes, "replicas": replicas, "running": replicas}
    return shown


SHOWN: dict[str, Callable[[], Overview]] = {
    "healthy": healthy,
    "degraded": degraded,
    "restoring": restoring,
    "empty": empty,
}
"""The states that the page is shown in, by name."""

PICTURED: dict[str, Callable[[], Overview]] = {
    **SHOWN,
    "served": served,
    "waiting": waiting,
    "failover": failover,
    "stopped": stopped,
    "without redis": without_redis,
    "large": lambda: large(1000, nodes=4),
}
"""Those, and more of which there are pictures."""


def fleet() -> Overview:
    """The overview of a router of several applications."""
    found = {"flights": healthy(), "orders": degraded(), "sessions": restoring(), "payments": healthy()}
    applications = [
        {"application": name, "state": "serving", "reason": None, "stores": [each["store"] for each in of["stores"]]}
        | {part: of[part] for part in ("health", "lag", "freshness", "reads", "counts")}
        for name, of in found.items()
    ]
    applications.sort(key=lambda each: ("hurt", "attention", "ok").index(each["health"]["state"]))
    return {"schema": 1, "generated_at": AT, "applications": applications}


_SERIES = ("lag_batches", "time_lag_ms", "freshness_p50_ms", "freshness_p99_ms", "reads_per_s")


def history(minutes: int = 60, *, is_known: bool = True) -> dict[str, Any]:
    """An hour in steps of ten seconds, with a gap where nothing was known."""
    points = minutes * 6
    lag: list[int | None] = [2 * (n % 97 == 40) + (n % 31 == 7) for n in range(points)]
    lag[points // 2 : points // 2 + 12] = [None] * 12
    if not is_known:
        nothing = dict.fromkeys(_SERIES, [None] * points)
        return {"schema": 1, "step_ms": 10_000, "end": AT, "series": nothing}
    p50 = [8 + n // 40 % 2 for n in range(points)]
    p99 = [16 + n // 6 * 7 % 5 + 9 * (n % 83 == 11) for n in range(points)]
    return {
        "schema": 1, "step_ms": 10_000, "end": AT,
        "series": {"lag_batches": lag, "time_lag_ms": p50, "freshness_p50_ms": p50, "freshness_p99_ms": p99,
                   "reads_per_s": [1200 + n % 40 for n in range(points)]},
    }  # fmt: skip
