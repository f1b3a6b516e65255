"""What the admin page and operators ask of a router, in its OpenAPI document; lag and drain have a module (pure)."""

from __future__ import annotations

from understudy_router.admin.indicators import INDICATORS
from understudy_router.http.openapi_lag import NODE_ID
from understudy_router.http.openapi_overview import overview_schemas
from understudy_shared.http.openapi import examples
from understudy_shared.http.openapi.calls import OPERATIONS, Answer, Call, query_parameter
from understudy_shared.http.openapi.health_call import HEALTH, SCHEMA, health_call, health_schemas
from understudy_shared.http.openapi.json_schema import (
    COUNT,
    FLAG,
    NUMBER_OR_UNKNOWN,
    TEXT,
    TIME,
    Json,
    list_of,
    record,
    ref,
    said,
)
from understudy_shared.http.problems import ProblemType

SERIES = ("lag_batches", "time_lag_ms", "freshness_p50_ms", "freshness_p99_ms", "reads_per_s")


def admin_calls() -> tuple[Call, ...]:
    """Those of the admin API; the document has the ones that the router serves."""
    return (_health_call(), *_node_calls(), *_page_calls())


def admin_schemas() -> Json:
    """By name."""
    place = record("A partition of a store.", {"store": TEXT, "partition": COUNT})
    kinds = ("last_replica", "active", "bound")
    safe: Json = {
        "node_id": TEXT,
        "safe": FLAG,
        "why": TEXT,
        "would_lose": record(
            "What would have no replica, no active, or none inside its bound; the first 1,000 of each are listed.",
            {
                **{kind: list_of(ref("Place")) for kind in kinds},
                "counts": record("Of all.", dict.fromkeys(kinds, COUNT)),
            },
        ),
        "checked_at": TIME,
    }
    return {
        **health_schemas(INDICATORS, {"router": TEXT, "router_id": TEXT}),
        "HealthSummary": record("How the cluster is.", HEALTH),
        "Place": place,
        "SafeToStop": record("Whether a node may be stopped now.", safe),
        "Nodes": record(
            "Every node.",
            {
                "generated_at": TIME,
                "view_of": record("Whose view it is.", {"router": TEXT, "router_id": TEXT}),
                "nodes": list_of(ref("NodeDetail")),
            },
        ),
        "History": record(
            "Series of equal lengths, oldest first. Null: nothing is known of that moment.",
            {
                **SCHEMA,
                "step_ms": COUNT,
                "end": said(TIME, "The time of the last point"),
                "series": record("By name.", {name: list_of(NUMBER_OR_UNKNOWN) for name in SERIES}),
            },
        ),
        **overview_schemas(SCHEMA),
    }


def _health_call() -> Call:
    return health_call(
        {"router": "127.0.0.1:8080", "router_id": "router-1"},
        {
            "name": "nodes",
            "symptom": "1 of 3 nodes does not answer",
            "impact": "Reads are served by the others; 4 partitions have one replica less",
            "cause": "node-3 said nothing for 3.2 s, and did not answer when it was asked",
            "action": "look at node-3, or start another node",
            "affected": ["node-3"],
        },
    )


def _node_calls() -> tuple[Call, ...]:
    safe: Json = {
        "node_id": examples.NODE,
        "safe": False,
        "why": "1 partition would lose its last replica",
        "would_lose": {
            "last_replica": [{"store": "aircraft", "partition": 3}],
            "active": [],
            "bound": [],
            "counts": {"last_replica": 1, "active": 0, "bound": 0},
        },
        "checked_at": examples.TIME,
    }
    return (
        Call(
            "get",
            "/admin/v1/nodes",
            "list_nodes",
            OPERATIONS,
            "Every node, and whether it may be stopped",
            (Answer(200, "Live nodes, and dead ones for ten minutes", ref("Nodes")),),
            'curl "$url/admin/v1/nodes"',
        ),
        Call(
            "get",
            "/admin/v1/nodes/{node_id}/safe-to-stop",
            "is_safe_to_stop",
            OPERATIONS,
            "Whether a node may be stopped now",
            (Answer(200, "Yes, or what would be lost", ref("SafeToStop"), safe),),
            'curl "$url/admin/v1/nodes/node-1/safe-to-stop"',
            (ProblemType.UNKNOWN_PATH,),
            "Losing only the active role is safe when a standby is caught up: it takes over.",
            (NODE_ID,),
        ),
    )


def _page_calls() -> tuple[Call, ...]:
    last = {
        "name": "Last-Event-ID",
        "in": "header",
        "required": False,
        "description": "The `id` of the last message: within 60 ticks only the changes since then are sent.",
        "schema": TEXT,
    }
    return (
        Call(
            "get",
            "/admin/v1/history",
            "history",
            OPERATIONS,
            "Lag, freshness and rate of the last hour",
            (Answer(200, "The worst over all stores, or of the one that is named", ref("History")),),
            'curl "$url/admin/v1/history?store=aircraft&minutes=15"',
            (ProblemType.UNKNOWN_STORE, ProblemType.UNKNOWN_PATH, ProblemType.NOT_INITIALISED),
            "With `partition`: its worst live replica. Kept in memory, for a bounded number of partitions.",
            (
                query_parameter("store", "Only this store", TEXT),
                query_parameter("partition", "Only this partition of the store", COUNT),
                query_parameter("minutes", "How far back", {"type": "integer", "minimum": 1, "maximum": 60}),
            ),
        ),
        Call(
            "get",
            "/admin/v1/overview",
            "overview",
            OPERATIONS,
            "All that the admin page shows",
            (Answer(200, "As this router knows it at one tick", ref("Overview")),),
            'curl "$url/admin/v1/overview"',
        ),
        Call(
            "get",
            "/admin/v1/events",
            "events",
            OPERATIONS,
            "The overview, and then what changes, as server-sent events",
            (
                Answer(
                    200,
                    "`overview` first, then at most one message a second: `delta`, or `heartbeat` when nothing changed",
                    TEXT,
                    None,
                    "text/event-stream",
                ),
            ),
            'curl -N "$url/admin/v1/events"',
            (ProblemType.TOO_MANY_VIEWERS,),
            "A viewer who reads slowly gets merged changes. There are at most 500 viewers.",
            (last,),
        ),
    )
