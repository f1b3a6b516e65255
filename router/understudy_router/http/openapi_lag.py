"""The lag report and the drain of a router in its OpenAPI document (pure)."""

from __future__ import annotations

from understudy_router.admin.lag_page import MAX_LIMIT, SORTS, STATES
from understudy_router.admin.layout import ROLES
from understudy_shared.http.openapi import examples
from understudy_shared.http.openapi.calls import (
    OF_A_CHANGE,
    OPERATIONS,
    Answer,
    Call,
    json_body,
    path_parameter,
    query_parameter,
)
from understudy_shared.http.openapi.json_schema import (
    COUNT,
    COUNT_OR_UNKNOWN,
    FLAG,
    PORT,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    Json,
    list_of,
    one_of,
    one_schema_of,
    or_null,
    record,
    ref,
    said,
)
from understudy_shared.http.problems import ProblemType

NODE_EXAMPLE: Json = {"node_id": examples.NODE, "host": examples.HOST, "port": examples.PORT}
REPLICA: Json = {
    "node_id": TEXT,
    "host": TEXT,
    "port": PORT,
    "role": one_of(["active", "standby", "warmup"]),
    "state": said(TEXT_OR_NULL, "Null while nothing was heard of it"),
}
NODE_REPORT: Json = {
    "node_id": TEXT,
    "host": TEXT,
    "port": PORT,
    "zone": TEXT_OR_NULL,
    "state": said(TEXT, "starting, waiting (for its checkpoint), serving, draining, leaving, failed, or dead"),
    "live": FLAG,
    "health": TEXT_OR_NULL,
    "heartbeat_age_ms": COUNT,
    "version": COUNT_OR_UNKNOWN,
    "active": said(COUNT, "Tasks of which it has the active replica"),
    "standby": COUNT,
    "warmup": COUNT,
    "reason": said(TEXT, "Why it is suspect, quarantined or dead"),
}
_REPLICA: Json = {
    "partition": 3,
    **NODE_EXAMPLE,
    "role": "active",
    "state": "RUNNING",
    "current_offset_position": 418,
    "end_offset_position": 418,
    "offset_lag": 0,
    "time_lag_ms": 140,
    "report_age_ms": 128,
    "error": None,
}
_NODE: Json = {
    **NODE_EXAMPLE,
    "zone": None,
    "state": "serving",
    "live": True,
    "health": "ok",
    "heartbeat_age_ms": 128,
    "version": 418,
    "active": 4,
    "standby": 0,
    "warmup": 0,
    "reason": "",
}
_HEAD_EXAMPLE: Json = {
    "generated_at": examples.TIME,
    "view_of": {"router": "127.0.0.1:8080", "router_id": "router-1"},
    "application_id": examples.APPLICATION,
    "lineage": examples.LINEAGE,
    "end_offset_position": 418,
    "end_confirmed": True,
    "bus": {"state": "connected", "why": ""},
    "assignment": {"term": 1, "epoch": 7, "written_by": examples.NODE},
}
_NAME: Json = {**TEXT, "maxLength": 256}
_LIMIT: Json = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT}
NODE_ID = path_parameter("node_id", "A node, as the lag report names it", examples.NODE, pattern="^[^/]+$")


def lag_call() -> Call:
    """The tree of the stores, or pages of replicas: the members differ, and so do the schemas."""
    report: Json = {
        **_HEAD_EXAMPLE,
        "nodes": [_NODE],
        "stores": [{"store": "aircraft", "operator_id": 0, "partitions": [_REPLICA]}],
        "events": [{"at": examples.TIME, "event": "joined", "detail": examples.NODE}],
    }
    tag: Json = {
        "ETag": {"description": "Of a page: send it as `If-None-Match`", "schema": TEXT},
    }
    return Call(
        "get",
        "/admin/v1/lag",
        "lag",
        OPERATIONS,
        "How far every replica is, and how every node is",
        (
            Answer(
                200,
                "As this router knows it; what it does not know is null",
                ref("LagAnswer"),
                report,
                headers=tag,
            ),
            Answer(200, "", TEXT, None, "text/csv"),
            Answer(304, "The page is what `If-None-Match` names", None),
        ),
        'curl "$url/admin/v1/lag?store=aircraft&sort=-lag&limit=20"',
        (ProblemType.UNKNOWN_STORE, ProblemType.UNKNOWN_PATH),
        "Without `limit`, `cursor`, `sort` and `top`: stores, partitions and replicas as a tree, with nodes and "
        "events. With any of them: a page of replicas. As CSV: all replicas, unless there is a limit.",
        (
            query_parameter("store", "Only this store", _NAME),
            query_parameter("node", "Only this node", _NAME),
            query_parameter("state", "Only replicas in this state", one_of(STATES)),
            query_parameter("role", "Only replicas in this role", one_of(ROLES)),
            query_parameter("limit", "Rows of a page: 100 by default", _LIMIT),
            query_parameter("cursor", "The `next_cursor` of the page before", {**TEXT, "maxLength": 2048}),
            query_parameter("sort", "The order; `-` before it: descending. Unknown is worse than any", one_of(SORTS)),
            query_parameter("top", "So many with the greatest lag: without `limit`, `cursor` and `sort`", _LIMIT),
            query_parameter("format", "`Accept: text/csv` says the same", one_of(["csv", "json"])),
        ),
    )


def lag_schemas() -> Json:
    """By name."""
    replica: Json = {
        "partition": COUNT,
        **REPLICA,
        "current_offset_position": COUNT_OR_UNKNOWN,
        "end_offset_position": COUNT_OR_UNKNOWN,
        "offset_lag": said(COUNT_OR_UNKNOWN, "Versions behind"),
        "time_lag_ms": said(COUNT_OR_UNKNOWN, "What the node measured, and the age of its report"),
        "report_age_ms": COUNT_OR_UNKNOWN,
        "error": TEXT_OR_NULL,
    }
    head: Json = {
        "generated_at": TIME,
        "view_of": record("Whose view it is.", {"router": TEXT, "router_id": TEXT}),
        "application_id": TEXT,
        "lineage": TEXT_OR_NULL,
        "end_offset_position": COUNT_OR_UNKNOWN,
        "end_confirmed": FLAG,
        "bus": record("Redis.", {"state": one_of(["connected", "degraded"]), "why": TEXT}),
        "assignment": or_null(ref("Assignment")),
    }
    return {
        "Assignment": record("Who holds what.", {"term": COUNT, "epoch": COUNT, "written_by": TEXT}),
        "LagAnswer": one_schema_of("LagReport", "LagPage"),
        "LagPage": record(
            "Some replicas.",
            {
                **head,
                "replicas": list_of(ref("StoreReplicaLag")),
                "total": said(COUNT, "Of all pages"),
                "next_cursor": said(TEXT_OR_NULL, "Null on the last page"),
            },
        ),
        "ReplicaLag": record("A replica, by its node's last report.", replica),
        "StoreReplicaLag": record(
            "A replica of a store, by its node's last report.", {"store": TEXT, "operator_id": COUNT, **replica}
        ),
        "StoreLag": record(
            "The replicas of a store.",
            {"store": TEXT, "operator_id": COUNT, "partitions": list_of(ref("ReplicaLag"))},
        ),
        "NodeReport": record("A node, live or dead for less than ten minutes.", NODE_REPORT),
        "LagReport": record(
            "All that this router knows.",
            {
                **head,
                "nodes": list_of(ref("NodeReport")),
                "stores": list_of(ref("StoreLag")),
                "events": said(list_of(ref("Event")), "Oldest first"),
            },
        ),
    }


def drain_call() -> Call:
    return Call(
        "post",
        "/admin/v1/nodes/{node_id}/drain",
        "drain_node",
        OPERATIONS,
        "Move a node's tasks to others, or take that back",
        (Answer(202, "The node will", ref("Draining"), {"node_id": examples.NODE, "draining": True}),),
        "curl -X POST \"$url/admin/v1/nodes/node-1/drain\" -H 'Content-Type: application/json' -d '{\"drain\": true}'",
        (*OF_A_CHANGE, ProblemType.UNKNOWN_PATH, ProblemType.NODE_UNREACHABLE, ProblemType.BAD_REPLY),
        'Nothing moves before its new place is caught up; `{"drain": false}` takes it back. It must say '
        "`Content-Type: application/json`, and must not come from a page of another site.",
        (NODE_ID,),
        json_body(ref("Drain"), {"drain": True}),
    )
