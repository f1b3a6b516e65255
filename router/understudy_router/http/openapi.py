"""The calls of a router in its OpenAPI document, beyond those that nodes have, too (pure)."""

from __future__ import annotations

from understudy_router.http.openapi_admin import admin_calls, admin_schemas
from understudy_router.http.openapi_lag import NODE_EXAMPLE, REPLICA, drain_call, lag_call, lag_schemas
from understudy_router.routing.choose import Reason
from understudy_shared.http.openapi import examples
from understudy_shared.http.openapi.calls import STORES, Answer, Call
from understudy_shared.http.openapi.document import Service
from understudy_shared.http.openapi.json_schema import (
    COUNT,
    COUNT_OR_UNKNOWN,
    FLAG,
    TEXT,
    TEXT_OR_NULL,
    Json,
    list_of,
    one_of,
    one_schema_of,
    or_null,
    record,
    ref,
    said,
)
from understudy_shared.http.openapi.parameters import BOUNDS, shared
from understudy_shared.http.openapi.read_calls import OF_A_BOUND, OF_A_STORE, read_calls
from understudy_shared.http.openapi.service_calls import service_calls
from understudy_shared.http.problems import ProblemType

_CANDIDATE: Json = {
    **REPLICA,
    "version": COUNT_OR_UNKNOWN,
    "offset_lag": said(COUNT_OR_UNKNOWN, "Versions behind"),
    "time_lag_ms": said(COUNT_OR_UNKNOWN, "What the node measured, and the age of its report"),
    "report_age_ms": COUNT_OR_UNKNOWN,
    "health": said(TEXT_OR_NULL, "What this router concludes of the node: ok, suspect or quarantined"),
}
_CANDIDATE_EXAMPLE: Json = {
    **NODE_EXAMPLE,
    "role": "active",
    "state": "RUNNING",
    "version": 418,
    "offset_lag": 0,
    "time_lag_ms": 140,
    "report_age_ms": 128,
    "health": "ok",
}
_HOST_EXAMPLE: Json = {"host": examples.HOST, "port": examples.PORT}


def router_service() -> Service:
    """The document's parts."""
    return Service(
        "Understudy router",
        "This is a router: it sends every lookup to the best replica of any node.",
        (
            *read_calls(ProblemType.DEADLINE),
            *_metadata_calls(),
            lag_call(),
            drain_call(),
            *admin_calls(),
            *service_calls(),
        ),
        {**_metadata_schemas(), **lag_schemas(), **admin_schemas()},
    )


def _metadata_calls() -> tuple[Call, ...]:
    problems = (ProblemType.BAD_KEY, *OF_A_BOUND, *OF_A_STORE)
    key: Json = {
        "store": "aircraft",
        "key": {"tailnum": "N14228"},
        "partition": 3,
        "partitions": 4,
        "active_host": _HOST_EXAMPLE,
        "standby_hosts": [],
        "term": 1,
        "epoch": 7,
        "lineage": examples.LINEAGE,
        "end_offset_position": 418,
        "end_confirmed": True,
        "bounds": {},
        "choice": [{**_CANDIDATE_EXAMPLE, "why": "active, 0 versions behind"}],
        "exclusions": [],
    }
    store: Json = {
        "store": "aircraft",
        "partitions": [{"partition": 0, "active_host": _HOST_EXAMPLE, "standby_hosts": []}],
        "hosts": [_HOST_EXAMPLE],
        "term": 1,
        "epoch": 7,
    }
    return (
        Call(
            "get",
            "/v1/stores/{store}/metadata",
            "describe_hosts",
            STORES,
            "The hosts of a store, or of a key in its exact form",
            (
                Answer(
                    200,
                    "With `key`, whom this router would ask for it, and whom not; without, the hosts of each partition",
                    ref("Metadata"),
                    store,
                ),
            ),
            'curl "$url/v1/stores/aircraft/metadata"',
            problems,
            "It asks no node. Bounds count for a key only.",
            shared("store", "key_json_optional", *BOUNDS, "longs"),
        ),
        Call(
            "get",
            "/v1/stores/{store}/metadata/{key}",
            "explain_key",
            STORES,
            "Whom this router would ask for a key, whom not, and why",
            (Answer(200, "The candidates in order, and the excluded with their reasons", ref("KeyMetadata"), key),),
            'curl "$url/v1/stores/aircraft/metadata/N14228"',
            problems,
            "It asks no node: it shows what this router knows, and would do now for a lookup under these bounds.",
            shared("store", "key", *BOUNDS, "longs"),
        ),
    )


def _metadata_schemas() -> Json:
    hosts: Json = {
        "active_host": said(or_null(ref("Host")), "Null while there is none"),
        "standby_hosts": list_of(ref("Host")),
    }
    order: Json = {"term": COUNT, "epoch": said(COUNT, "Of the assignment that this is by")}
    return {
        "PartitionHosts": record("Who holds a partition.", {"partition": COUNT, **hosts}),
        "StoreMetadata": record(
            "Who holds a store (KIP-535's metadata).",
            {
                "store": TEXT,
                "partitions": list_of(ref("PartitionHosts")),
                "hosts": said(list_of(ref("Host")), "All of them, once"),
                **order,
            },
        ),
        "Metadata": one_schema_of("StoreMetadata", "KeyMetadata"),
        "ChosenReplica": record("A replica that would be asked.", {**_CANDIDATE, "why": TEXT}),
        "ExcludedReplica": record(
            "A replica that would not be asked.", {**_CANDIDATE, "reason": one_of(map(str, Reason))}
        ),
        "KeyMetadata": record(
            "Where a key is, and whom a lookup of it would ask.",
            {
                "store": TEXT,
                "key": ref("Columns"),
                "partition": COUNT,
                "partitions": COUNT,
                **hosts,
                **order,
                "lineage": TEXT,
                "end_offset_position": COUNT_OR_UNKNOWN,
                "end_confirmed": FLAG,
                "bounds": said(ref("Bounds"), "Those that count, the store's included"),
                "choice": said(list_of(ref("ChosenReplica")), "In the order in which they would be asked"),
                "exclusions": list_of(ref("ExcludedReplica")),
            },
        ),
    }
