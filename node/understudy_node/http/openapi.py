"""The calls of a node in its OpenAPI document, beyond those that routers have, too (pure)."""

from __future__ import annotations

from understudy_node.http.health import INDICATORS
from understudy_shared.base.words import ReplicaState, Role
from understudy_shared.http.openapi import examples
from understudy_shared.http.openapi.calls import OF_A_CHANGE, OPERATIONS, Answer, Call, json_body, query_parameter
from understudy_shared.http.openapi.document import Service
from understudy_shared.http.openapi.health_call import health_call, health_schemas
from understudy_shared.http.openapi.json_schema import (
    COUNT,
    COUNT_OR_UNKNOWN,
    FLAG,
    PORT,
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
from understudy_shared.http.openapi.read_calls import read_calls
from understudy_shared.http.openapi.service_calls import service_calls
from understudy_shared.http.problems import ProblemType


def node_service() -> Service:
    """The document's parts. `understudy serve` has no drain, and its document none."""
    return Service(
        "Understudy node",
        "This is a node: it answers for the partitions that it holds. `understudy serve` holds all of them; in a "
        "cluster a router knows which node holds a key, and a node answers `not-owner` for keys of others.",
        (
            *read_calls(ProblemType.NOT_OWNER, ProblemType.STORE_ERROR),
            health_call(
                {"node": "127.0.0.1:8080", "node_id": None},
                {
                    "name": "query",
                    "symptom": "The query has not committed for longer than it usually takes",
                    "impact": "answers stay what they are",
                    "action": "look at the query; lookups go on",
                },
            ),
            _lag_call(),
            _drain_call(),
            *service_calls(),
        ),
        _lag_schemas() | health_schemas(INDICATORS, {"node": TEXT, "node_id": TEXT_OR_NULL}),
    )


def _lag_call() -> Call:
    partition: Json = {
        "partition": 3,
        "role": "active",
        "state": "RUNNING",
        "current_offset_position": 418,
        "end_offset_position": 418,
        "offset_lag": 0,
        "time_lag_ms": 12,
        "committed_at": examples.TIME,
        "keys": 4037,
        "overlay_bytes": 81_920,
        "marks": [],
        "error": None,
    }
    query: Json = {
        "state": "committing",
        "last_batch": 417,
        "last_commit_at": examples.TIME,
        "last_commit_seen_ms_ago": 310,
        "batch_in_progress": True,
    }
    report: Json = {
        "generated_at": examples.TIME,
        "view_of": {"host": examples.HOST, "port": examples.PORT},
        "application_id": examples.APPLICATION,
        "checkpoint": "s3://bucket/flights",
        "lineage": examples.LINEAGE,
        "end_offset_position": 418,
        "end_confirmed": True,
        "query": query,
        "hints": [],
        "restoring_layout": None,
        "stores": [{"store": "aircraft", "operator_id": 0, "partitions": [partition]}],
        "events": [{"at": examples.TIME, "event": "ready", "detail": "4 tasks are open"}],
    }
    return Call(
        "get",
        "/admin/v1/lag",
        "lag",
        OPERATIONS,
        "How far every partition that this node holds is, and how the query is",
        (Answer(200, "As this node sees it; what it does not know is null", ref("LagReport"), report),),
        'curl "$url/admin/v1/lag?store=aircraft"',
        (ProblemType.UNKNOWN_STORE, ProblemType.NOT_INITIALISED),
        parameters=(query_parameter("store", "Only this store", TEXT),),
    )


def _lag_schemas() -> Json:
    partition: Json = {
        "partition": COUNT,
        "role": one_of(map(str, Role)),
        "state": one_of(map(str, ReplicaState)),
        "current_offset_position": COUNT_OR_UNKNOWN,
        "end_offset_position": COUNT_OR_UNKNOWN,
        "offset_lag": said(COUNT_OR_UNKNOWN, "Versions behind"),
        "time_lag_ms": said(COUNT_OR_UNKNOWN, "Milliseconds behind"),
        "committed_at": TIME_OR_UNKNOWN,
        "keys": said(COUNT_OR_UNKNOWN, "Of the base, without the changes since"),
        "overlay_bytes": said(COUNT, "Memory of the changes since"),
        "marks": said(list_of(TEXT), "What of the checkpoint is in doubt"),
        "error": TEXT_OR_NULL,
    }
    query: Json = {
        "state": said(
            one_of(["committing", "idle", "waiting", "unknown"]), "Waiting: this process saw no commit arrive yet"
        ),
        "last_batch": COUNT_OR_UNKNOWN,
        "last_commit_at": TIME_OR_UNKNOWN,
        "last_commit_seen_ms_ago": COUNT_OR_UNKNOWN,
        "batch_in_progress": FLAG,
    }
    report: Json = {
        "generated_at": TIME,
        "view_of": record("Whose view it is.", {"host": TEXT, "port": PORT}),
        "application_id": TEXT,
        "checkpoint": said(TEXT, "Its location, without secrets"),
        "lineage": TEXT_OR_NULL,
        "end_offset_position": said(COUNT, "The newest committed version; 0 before the first"),
        "end_confirmed": FLAG,
        "query": ref("Query"),
        "hints": said(list_of(TEXT), "What would make this checkpoint cheaper to follow"),
        "restoring_layout": said(COUNT_OR_UNKNOWN, "Partitions of a layout that is being restored"),
        "stores": list_of(ref("StoreLag")),
        "events": said(list_of(ref("Event")), "Oldest first"),
    }
    return {
        "PartitionLag": record("A partition that this node holds.", partition),
        "StoreLag": record(
            "The partitions of a store.",
            {"store": TEXT, "operator_id": COUNT, "partitions": list_of(ref("PartitionLag"))},
        ),
        "Query": record("The query, as far as its files show it.", query),
        "LagReport": record("All that this node knows.", report),
    }


def _drain_call() -> Call:
    return Call(
        "post",
        "/admin/v1/drain",
        "drain",
        OPERATIONS,
        "Move this node's tasks to others, or take that back",
        (Answer(202, "It will", ref("Draining"), {"node_id": examples.NODE, "draining": True}),),
        "curl -X POST \"$url/admin/v1/drain\" -H 'Content-Type: application/json' -d '{\"drain\": true}'",
        OF_A_CHANGE,
        'Nothing moves before its new place is caught up; `{"drain": false}` takes it back. It must say '
        "`Content-Type: application/json`, and must not come from a page of another site.",
        body=json_body(ref("Drain"), {"drain": True}),
    )
