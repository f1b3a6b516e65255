"""What a router replies to its admin and metadata calls, made by hand for tests of those who read it."""

from __future__ import annotations

from typing import Any


def _candidate(number: int, role: str, **fields: Any) -> dict[str, Any]:
    known = {"state": "RUNNING", "version": 418, "offset_lag": 2, "time_lag_ms": 1200, "report_age_ms": 300}
    return {"node_id": f"node-{number}", "host": "127.0.0.1", "port": 7100 + number, "role": role, **known, **fields}


UNKNOWN = {"state": None, "version": None, "offset_lag": None, "time_lag_ms": None, "report_age_ms": None}

EXPLAINED: dict[str, Any] = {
    "store": "aircraft",
    "key": {"tailnum": "N1"},
    "partition": 3,
    "partitions": 8,
    "active_host": {"host": "127.0.0.1", "port": 7101},
    "standby_hosts": [{"host": "127.0.0.1", "port": 7102}, {"host": "127.0.0.1", "port": 7104}],
    "term": 1,
    "epoch": 2,
    "lineage": "l",
    "end_offset_position": 420,
    "end_confirmed": True,
    "bounds": {"max_lag": 1},
    "choice": [_candidate(2, "standby", offset_lag=1, why="least lag of the standbys")],
    "exclusions": [
        _candidate(1, "active", reason="lag-exceeded"),
        {**_candidate(3, "standby", reason="lag-unknown"), **UNKNOWN},
    ],
}


def member(node_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "node_id": node_id,
        "host": "127.0.0.1",
        "port": 7101,
        "zone": None,
        "state": "serving",
        "live": True,
        "health": "ok",
        "heartbeat_age_ms": 310.4,
        "version": 420,
        "active": 1,
        "standby": 0,
        "warmup": 0,
        "reason": "",
        **fields,
    }


def replica(
    partition: int,
    node_id: str,
    role: str,
    state: str | None,
    *,
    position: int | None = 420,
    end: int | None = 420,
    lag: int | None = 0,
    time_lag_ms: int | None = None,
) -> dict[str, Any]:
    return {
        "partition": partition,
        "node_id": node_id,
        "host": "127.0.0.1",
        "port": 7101,
        "role": role,
        "state": state,
        "current_offset_position": position,
        "end_offset_position": end,
        "offset_lag": lag,
        "time_lag_ms": time_lag_ms,
        "report_age_ms": 310,
        "error": None,
    }


def router_report(
    *, nodes: list[dict[str, Any]] | None = None, partitions: list[dict[str, Any]] | None = None, **fields: Any
) -> dict[str, Any]:
    """`GET /admin/v1/lag` of a router: two nodes, one store."""
    replicas = [
        replica(1, "node-2", "active", "RUNNING"),
        replica(0, "node-2", "standby", "RESTORING", position=400, lag=20, time_lag_ms=60_000),
        replica(0, "node-1", "active", "RUNNING"),
    ]
    return {
        "generated_at": "2026-11-20T11:00:03.120000Z",
        "view_of": {"router": "127.0.0.1:8080"},
        "application_id": "flights",
        "lineage": "l",
        "end_offset_position": 420,
        "end_confirmed": True,
        "bus": {"state": "connected", "why": ""},
        "assignment": {"term": 1, "epoch": 2, "written_by": "node-1"},
        "nodes": [member("node-1"), member("node-2", standby=1)] if nodes is None else nodes,
        "stores": [
            {"store": "aircraft", "operator_id": 0, "partitions": replicas if partitions is None else partitions}
        ],
        "events": [],
        **fields,
    }
