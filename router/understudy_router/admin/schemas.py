"""What the admin API answers, as JSON schemas, for the OpenAPI document; tests hold the answers to it (data)."""

from __future__ import annotations

from typing import Any

from understudy_router.admin.indicators import NAMES
from understudy_router.admin.lag_page import STATES
from understudy_router.admin.layout import ROLES

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
MAYBE_TEXT: Json = {"type": ["string", "null"]}
COUNT: Json = {"type": "integer", "minimum": 0}
MAYBE_COUNT: Json = {"type": ["integer", "null"], "minimum": 0}
MAYBE_NUMBER: Json = {"type": ["number", "null"], "minimum": 0}
FLAG: Json = {"type": "boolean"}


def list_of(items: Json) -> Json:
    return {"type": "array", "items": items}


def members(**properties: Json) -> Json:
    """An object that has all of these members, and may have more: releases differ."""
    return {"type": "object", "required": list(properties), "properties": properties}


def one_of(*values: str | None) -> Json:
    return {"enum": list(values)}


_HEAD: Json = {
    "generated_at": TEXT,
    "view_of": members(router=TEXT),
    "application_id": TEXT,
    "lineage": MAYBE_TEXT,
    "end_offset_position": MAYBE_COUNT,
    "end_confirmed": FLAG,
    "bus": members(state=one_of("connected", "degraded"), why=TEXT),
    "assignment": {
        "anyOf": [members(term=COUNT, epoch=COUNT, written_by=TEXT), {"type": "null"}],
    },
}
_STATE = one_of(*(state for state in STATES if state != "UNKNOWN"), None)
_REPLICA: Json = {
    "partition": COUNT,
    "node_id": TEXT,
    "host": TEXT,
    "port": COUNT,
    "role": one_of(*ROLES),
    "state": _STATE,
    "current_offset_position": MAYBE_COUNT,
    "end_offset_position": MAYBE_COUNT,
    "offset_lag": MAYBE_COUNT,
    "time_lag_ms": MAYBE_COUNT,
    "report_age_ms": MAYBE_COUNT,
    "error": MAYBE_TEXT,
}
_NODE: Json = {
    "node_id": TEXT,
    "host": TEXT,
    "port": COUNT,
    "zone": MAYBE_TEXT,
    "state": TEXT,
    "live": FLAG,
    "health": one_of("ok", "suspect", "quarantined", None),
    "heartbeat_age_ms": MAYBE_NUMBER,
    "version": MAYBE_COUNT,
    "active": COUNT,
    "standby": COUNT,
    "warmup": COUNT,
    "reason": TEXT,
}
_EVENT: Json = {"at": MAYBE_TEXT, "event": TEXT, "detail": TEXT}
_STATES = one_of("ok", "attention", "unknown", "hurt")

LAG_TREE = members(
    **_HEAD,
    nodes=list_of(members(**_NODE)),
    stores=list_of(members(store=TEXT, operator_id=COUNT, partitions=list_of(members(**_REPLICA)))),
    events=list_of(members(**_EVENT)),
)
LAG_PAGE = members(
    **_HEAD,
    replicas=list_of(members(store=TEXT, operator_id=COUNT, **_REPLICA)),
    total=COUNT,
    next_cursor=MAYBE_TEXT,
)
LAG = {"anyOf": [LAG_TREE, LAG_PAGE]}

_HEALTH: Json = {
    "state": _STATES,
    "headline": TEXT,
    "indicators": list_of(
        members(
            name=one_of(*NAMES),
            state=_STATES,
            symptom=TEXT,
            impact=TEXT,
            cause=TEXT,
            action=TEXT,
            runbook=MAYBE_TEXT,
            affected=list_of(TEXT),
        )
    ),
}
HEALTH = members(schema=COUNT, generated_at=TEXT, application_id=TEXT, router=TEXT, **_HEALTH)

_NODE_MORE = members(
    **_NODE,
    degraded=list_of(TEXT),
    restoring=COUNT,
    safe_to_stop=members(safe=FLAG, why=TEXT),
)
NODES = members(generated_at=TEXT, view_of=members(router=TEXT), nodes=list_of(_NODE_MORE))

_STORE_PARTITIONS = list_of(members(store=TEXT, partition=COUNT))
SAFE_TO_STOP = members(
    node_id=TEXT,
    safe=FLAG,
    why=TEXT,
    would_lose=members(
        last_replica=_STORE_PARTITIONS,
        active=_STORE_PARTITIONS,
        bound=_STORE_PARTITIONS,
        counts=members(last_replica=COUNT, active=COUNT, bound=COUNT),
    ),
    checked_at=TEXT,
)

_SERIES = list_of(MAYBE_NUMBER)
HISTORY = members(
    schema=COUNT,
    step_ms=COUNT,
    end=TEXT,
    series=members(
        lag_batches=_SERIES,
        time_lag_ms=_SERIES,
        freshness_p50_ms=_SERIES,
        freshness_p99_ms=_SERIES,
        reads_per_s=_SERIES,
    ),
)

_CELL = members(
    role=one_of("A", "S", "W"),
    state=_STATE,
    lag=MAYBE_COUNT,
    lag_ms=MAYBE_COUNT,
    age_ms=MAYBE_COUNT,
    percent=MAYBE_NUMBER,
    error=MAYBE_TEXT,
)
OVERVIEW = members(
    schema=COUNT,
    tick=COUNT,
    generated_at=TEXT,
    application_id=TEXT,
    lineage=MAYBE_TEXT,
    release=TEXT,
    router=TEXT,
    health=members(**_HEALTH),
    freshness=members(p50_ms=MAYBE_COUNT, p99_ms=MAYBE_COUNT),
    reads=members(
        per_s=MAYBE_NUMBER,
        errors_per_s=MAYBE_NUMBER,
        within_bound_percent=MAYBE_NUMBER,
        staleness=members(le_ms=_SERIES, counts=list_of(COUNT)),
    ),
    lag=members(
        worst_batches=MAYBE_COUNT,
        worst_ms=MAYBE_COUNT,
        unknown=COUNT,
        store=MAYBE_TEXT,
        partition=MAYBE_COUNT,
        node_id=MAYBE_TEXT,
    ),
    end=members(version=MAYBE_COUNT, confirmed=FLAG, age_ms=MAYBE_COUNT),
    bus=members(state=one_of("connected", "degraded"), why=TEXT),
    counts=members(
        nodes_live=COUNT,
        nodes_known=COUNT,
        replicas=COUNT,
        running=COUNT,
        restoring=COUNT,
        dead=COUNT,
        unknown=COUNT,
    ),
    stores=list_of(
        members(
            store=TEXT,
            operator_id=COUNT,
            partitions=COUNT,
            active=COUNT,
            standby=COUNT,
            warmup=COUNT,
            restoring=COUNT,
            unserved=COUNT,
            worst_lag=MAYBE_COUNT,
            worst_lag_ms=MAYBE_COUNT,
            unknown=COUNT,
            trend=one_of("steady", "growing", "shrinking", "unknown"),
            eta_s=MAYBE_NUMBER,
            history=_SERIES,
            key=list_of(members(name=TEXT, type=TEXT)),
            example=MAYBE_TEXT,
        )
    ),
    nodes=list_of(_NODE_MORE),
    grid=members(
        columns=list_of(TEXT),
        rows=list_of(members(store=TEXT, partition=COUNT, cells={"type": "object", "additionalProperties": _CELL})),
        total=COUNT,
        order=one_of("all", "worst"),
    ),
    restores=list_of(
        members(
            node_id=TEXT,
            task=TEXT,
            stores=list_of(TEXT),
            stage=TEXT,
            done_bytes=MAYBE_COUNT,
            total_bytes=MAYBE_COUNT,
            bytes_per_s=MAYBE_NUMBER,
        )
    ),
    disagreement=list_of(members(node_id=TEXT, router_says=TEXT, node_says=TEXT, since=MAYBE_TEXT)),
    events=list_of(members(id=COUNT, **_EVENT)),
)


def answer(description: str, schema: Json, *texts: str) -> dict[int | str, Json]:
    """The 200 of a route: JSON, or a text of one of these types."""
    content = {"application/json": {"schema": schema}, **{kind: {"schema": TEXT} for kind in texts}}
    return {200: {"description": description, "content": content}}
