"""The document of the admin page in the OpenAPI document of a router: cluster, stores, nodes, grid (pure)."""

from __future__ import annotations

from understudy_router.http.openapi_lag import NODE_REPORT
from understudy_shared.http.openapi.json_schema import (
    COUNT,
    COUNT_OR_UNKNOWN,
    FLAG,
    NUMBER_OR_UNKNOWN,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_UNKNOWN,
    Json,
    list_of,
    one_of,
    record,
    ref,
    said,
)

_COUNTED = ("nodes_live", "nodes_known", "replicas", "running", "restoring", "dead", "unknown")
_STORE_COUNTS = ("operator_id", "partitions", "active", "standby", "warmup", "restoring", "unserved")
_SAFE: Json = {"safe": said({"type": ["boolean", "null"]}, "Null: not known"), "why": TEXT}


def overview_schemas(schema: Json) -> Json:
    """By name; `schema` is the member that numbers the document's form."""
    return {
        "NodeDetail": record(
            "A node, and whether it may be stopped.",
            {
                **NODE_REPORT,
                "heartbeat_age_ms": said(COUNT_OR_UNKNOWN, "Null: nothing was heard of it yet"),
                "degraded": said(list_of(TEXT), "Causes of what does not work at it"),
                "waits_for": said(TEXT_OR_NULL, "What must be there before it can hold anything"),
                "restoring": said(COUNT, "Tasks that it restores"),
                "safe_to_stop": record("Whether it may be stopped now.", _SAFE),
            },
            {"applied_version": COUNT_OR_UNKNOWN},
        ),
        "StoreSummary": _store(),
        "Cell": record(
            "A replica in the grid.",
            {
                "role": said(one_of(["A", "S", "W"]), "Active, standby, warm-up"),
                "state": TEXT_OR_NULL,
                "lag": COUNT_OR_UNKNOWN,
                "lag_ms": COUNT_OR_UNKNOWN,
                "age_ms": COUNT_OR_UNKNOWN,
                "percent": said(NUMBER_OR_UNKNOWN, "Of its restore"),
                "error": TEXT_OR_NULL,
            },
        ),
        "GridRow": record(
            "A partition.",
            {
                "store": TEXT,
                "partition": COUNT,
                "cells": {"type": "object", "additionalProperties": ref("Cell"), "description": "By node id"},
            },
        ),
        "Restore": record(
            "A task that is being restored.",
            {
                "node_id": TEXT,
                "task": TEXT,
                "stores": list_of(TEXT),
                "stage": TEXT,
                "done_bytes": COUNT_OR_UNKNOWN,
                "total_bytes": COUNT_OR_UNKNOWN,
                "bytes_per_s": NUMBER_OR_UNKNOWN,
            },
        ),
        "Disagreement": record(
            "What this router believes of a node, and what the node says.",
            {"node_id": TEXT, "router_says": TEXT, "node_says": TEXT, "since": TIME_OR_UNKNOWN},
        ),
        "NumberedEvent": record("What happened.", {"id": COUNT, "at": TIME_OR_UNKNOWN, "event": TEXT, "detail": TEXT}),
        "Overview": record("All that the admin page shows.", {**schema, **_head(), **_parts()}),
    }


def _head() -> Json:
    return {
        "tick": said(COUNT, "Grows with every look at the cluster"),
        "generated_at": TIME,
        "application_id": TEXT,
        "lineage": TEXT_OR_NULL,
        "release": TEXT,
        "router": TEXT,
        "router_id": TEXT,
        "health": ref("HealthSummary"),
    }


def _parts() -> Json:
    return {
        "freshness": record("From commit to visible.", {"p50_ms": COUNT_OR_UNKNOWN, "p99_ms": COUNT_OR_UNKNOWN}),
        "reads": record(
            "What this router answered.",
            {
                "per_s": NUMBER_OR_UNKNOWN,
                "errors_per_s": NUMBER_OR_UNKNOWN,
                "within_bound_percent": NUMBER_OR_UNKNOWN,
                "staleness": record(
                    "How old the answers were.",
                    {"le_ms": said(list_of(NUMBER_OR_UNKNOWN), "Null: more"), "counts": list_of(COUNT)},
                ),
            },
        ),
        "lag": record(
            "The worst replica.",
            {
                "worst_batches": COUNT_OR_UNKNOWN,
                "worst_ms": COUNT_OR_UNKNOWN,
                "unknown": said(COUNT, "Replicas of unknown lag"),
                "store": TEXT_OR_NULL,
                "partition": COUNT_OR_UNKNOWN,
                "node_id": TEXT_OR_NULL,
            },
        ),
        "end": record(
            "The newest committed version.",
            {"version": COUNT_OR_UNKNOWN, "confirmed": FLAG, "age_ms": COUNT_OR_UNKNOWN},
        ),
        "bus": record("Redis.", {"state": one_of(["connected", "degraded"]), "why": TEXT}),
        "counts": record(
            "Nodes, and replicas by state.",
            dict.fromkeys(_COUNTED, COUNT),
        ),
        "stores": list_of(ref("StoreSummary")),
        "nodes": list_of(ref("NodeDetail")),
        "grid": record(
            "Partitions by nodes.",
            {
                "columns": said(list_of(TEXT), "Node ids"),
                "rows": list_of(ref("GridRow")),
                "total": COUNT,
                "order": said(one_of(["all", "worst"]), "All rows, or the worst 200"),
            },
        ),
        "restores": list_of(ref("Restore")),
        "disagreement": list_of(ref("Disagreement")),
        "events": said(list_of(ref("NumberedEvent")), "Newest first, at most 100"),
    }


def _store() -> Json:
    counts: Json = dict.fromkeys(_STORE_COUNTS, COUNT)
    return record(
        "A store in a line.",
        {
            "store": TEXT,
            **counts,
            "worst_lag": COUNT_OR_UNKNOWN,
            "worst_lag_ms": COUNT_OR_UNKNOWN,
            "unknown": said(COUNT, "Replicas of unknown lag"),
            "trend": one_of(["steady", "growing", "shrinking", "unknown"]),
            "eta_s": said(NUMBER_OR_UNKNOWN, "Until it is caught up"),
            "within_bound_percent": said(NUMBER_OR_UNKNOWN, "Of its reads in the last two minutes. Null: none"),
            "staleness_p99_ms": said(NUMBER_OR_UNKNOWN, "Of their answers, rounded up. Null: none of known age"),
            "staleness_is_more": said(FLAG, "Whether that is above `staleness_p99_ms`"),
            "history": said(list_of(NUMBER_OR_UNKNOWN), "Its worst lag, oldest first, at most 60 points"),
            "key": list_of(record("A key column.", {"name": TEXT, "type": TEXT})),
            "example": said(TEXT_OR_NULL, "A key, as text"),
        },
    )
