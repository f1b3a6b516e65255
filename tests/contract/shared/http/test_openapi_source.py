"""The OpenAPI document says of limits, words and problems what the code says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.services.openapi import resolved

from understudy_node.http.page import INDICATORS as OF_NODES
from understudy_router.admin.facts import ROLES
from understudy_router.admin.indicators import INDICATORS as OF_ROUTERS
from understudy_router.admin.lag_report import MAX_LIMIT as MAX_ROWS
from understudy_router.admin.lag_report import SORTS, STATES
from understudy_router.routing.choose import Reason
from understudy_shared.base.plausible import CEILING
from understudy_shared.base.words import ReplicaState, Role, StoreKind
from understudy_shared.fleet.service import ApplicationState
from understudy_shared.http.health import HealthState
from understudy_shared.http.openapi.document import Service, document, read_source
from understudy_shared.http.problems import ProblemType
from understudy_shared.page.series import HISTORY_MINUTES
from understudy_shared.questions.lease.service import MAX_LEASED_STORES
from understudy_shared.questions.scan.question import MAX_FIELDS, MAX_ORDER_CHARS, MAX_SCAN_ROWS
from understudy_shared.questions.scan.where import MAX_TERMS
from understudy_shared.reads import tokens
from understudy_shared.reads.bounds import MAX_BATCH_KEYS, MAX_LIMIT, MAX_PAGE_ELEMENTS, MAX_WAIT_MS, UnknownLag

Json = dict[str, Any]

SERVICES: tuple[Service, ...] = ("serve", "node", "router")
DOCUMENTS: dict[str, Any] = {name: document(name) for name in SERVICES}
FLEET: Any = document("router", is_fleet=True)
COMPONENTS: Json = read_source()["components"]
SCHEMAS, PARAMETERS = COMPONENTS["schemas"], COMPONENTS["parameters"]
PROBLEM_JSON = "application/problem+json"

OF_EVERY_CALL = {
    *(ProblemType.BAD_REQUEST, ProblemType.REQUEST_TIMEOUT, ProblemType.TARGET_TOO_LONG),
    *(ProblemType.OVERLOADED, ProblemType.HEADERS_TOO_LARGE, ProblemType.INTERNAL),
}
"""Any request may not parse, come too slowly, be too large, or be one too many."""
OF_A_CREDENTIAL = {ProblemType.UNAUTHENTICATED, ProblemType.FORBIDDEN, ProblemType.RATE_LIMITED}
OF_A_CHANGE = {ProblemType.CROSS_SITE, ProblemType.NOT_JSON, ProblemType.TOO_LARGE}


# ---- problems


def types_of(response: Json) -> list[ProblemType]:
    schema = response.get("content", {}).get(PROBLEM_JSON, {"schema": {}})["schema"]
    slugs = schema["dependentSchemas"]["type"]["properties"]["type"]["enum"] if schema else []
    return [next(each for each in ProblemType if each.slug == slug) for slug in slugs]


def operations() -> Iterator[tuple[Json, Json, list[Json]]]:
    """Each operation of each service: its document, itself, and its responses, with their statuses."""
    for found in (*DOCUMENTS.values(), FLEET):
        for methods in found["paths"].values():
            for operation in methods.values():
                responses = operation["responses"].items()
                yield found, operation, [{"status": status, **resolved(found, each)} for status, each in responses]


READS_BY_BODY = {"scan_by_body", "export_by_body", "read_several", "lease_snapshot", "watch_keys"}
"""Reads that a page of another site may not send."""


def test_every_operation_has_the_problems_of_every_call_and_those_of_its_kind() -> None:
    for _, operation, responses in operations():
        types = {each for response in responses for each in types_of(response)}
        assert types >= OF_EVERY_CALL, operation["operationId"]
        assert all(each.status == int(response["status"]) for response in responses for each in types_of(response))
        is_open = operation.get("security") == []
        assert types & OF_A_CREDENTIAL == (set() if is_open else OF_A_CREDENTIAL), operation["operationId"]
        name = operation["operationId"]
        must_be_json = "drain" in name or name in READS_BY_BODY
        assert (types >= OF_A_CHANGE) == must_be_json


def test_every_problem_that_a_service_has_is_of_some_operation() -> None:
    described = {each for _, _, responses in operations() for response in responses for each in types_of(response)}
    elsewhere = {ProblemType.METHOD_NOT_ALLOWED, ProblemType.OUTDATED_CATALOGUE}
    """The answer of another method's call, and one that only routers read."""
    assert set(ProblemType) - described == elsewhere


# ---- words


def texts(values: Any) -> list[str]:
    return [str(each) for each in values]


def of_member(schema: str, member: str, service: Service = "node") -> Json:
    found: Json = DOCUMENTS[service]["components"]["schemas"][schema]["properties"][member]
    return found


def of_parameter(path: str, name: str) -> Json:
    parameters = DOCUMENTS["router"]["paths"][path]["get"]["parameters"]
    (found,) = [each["schema"] for each in parameters if each.get("name") == name]
    schema: Json = found
    return schema


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        pytest.param(schema, texts(words), id=name)
        for name, schema, words in [
            ("problem", of_member("Problem", "type"), [each.slug for each in ProblemType]),
            ("served-by", of_member("ServedBy", "role"), Role),
            ("state", of_member("ServedBy", "state"), ReplicaState),
            ("kind", of_member("Store", "kind"), StoreKind),
            ("candidate", of_member("Candidate", "role"), [*Role, "warmup"]),
            ("partition", of_member("PartitionLag", "role"), Role),
            ("partition-state", of_member("PartitionLag", "state"), ReplicaState),
            ("health", of_member("HealthReport", "state"), [each.word for each in HealthState]),
            ("indicator-state", of_member("Indicator", "state"), [each.word for each in HealthState]),
            ("indicators-of-a-node", of_member("Indicator", "name"), OF_NODES),
            ("indicators-of-a-router", of_member("Indicator", "name", "router"), OF_ROUTERS),
            ("exclusion", of_member("ExcludedReplica", "reason", "router"), Reason),
            ("role", of_member("ReplicaLag", "role", "router"), ROLES),
            ("asked-state", of_parameter("/admin/v1/lag", "state"), STATES),
            ("asked-role", of_parameter("/admin/v1/lag", "role"), ROLES),
            ("asked-sort", of_parameter("/admin/v1/lag", "sort"), SORTS),
            ("application", FLEET["components"]["schemas"]["Application"]["properties"]["state"], ApplicationState),
            (
                "application-row",
                FLEET["components"]["schemas"]["ApplicationRow"]["properties"]["state"],
                ApplicationState,
            ),
            ("unknown-lag", PARAMETERS["unknown_lag"]["schema"], [*UnknownLag, "none"]),
        ]
    ],
)
def test_the_words_of_a_schema_are_those_of_the_code(schema: Json, words: list[str]) -> None:
    assert schema["enum"] == words


OF_SCANS = (
    *("scan_limit", "scan_cursor", "partition", "prefix", "where", "fields", "explain", "estimate"),
    *("range_from", "range_to", "order", "reverse", "window_from", "window_to", "by"),
)
OF_EXPORTS = ("export_format", "trailer", "file_ending")


@pytest.mark.parametrize(("name", "body"), [("scan", "ScanQuestion"), ("export", "ExportQuestion")])
def test_the_body_of_a_scan_has_its_parameters(name: str, body: str) -> None:
    (call,) = [each["get"] for path, each in DOCUMENTS["router"]["paths"].items() if path.endswith(f"/{name}")]
    every = [resolved(DOCUMENTS["router"], each) for each in call["parameters"]]
    parameters = {each["name"]: each["schema"] for each in every if each["in"] == "query"}
    members = SCHEMAS[body]["properties"]
    assert members.keys() == parameters.keys()
    as_json = ("prefix", "where", "fields")
    assert all(members[name] == parameters[name] for name in members.keys() - as_json)


def test_the_bounds_of_a_batch_are_the_parameters_with_null() -> None:
    """A cursor is of one key."""
    bounds = SCHEMAS["Bounds"]["properties"]
    assert PARAMETERS.keys() - bounds.keys() == {
        *("store", "key", "key_json", "key_json_optional"),
        *("cursor", "longs", "compact"),
        *("from", "to"),
        *("estimate_stores", "application"),
        *OF_SCANS,
        *OF_EXPORTS,
    }
    for name, bound in bounds.items():
        parameter, schema = PARAMETERS[name], PARAMETERS[name]["schema"]
        also_null = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
        assert bound == {
            **schema,
            "type": [schema["type"], "null"],
            **also_null,
            "description": parameter["description"].removesuffix(" `none` takes back the default of the store."),
        }


# ---- limits


def test_limits_are_those_of_the_code() -> None:
    greatest = {name: each["schema"]["maximum"] for name, each in PARAMETERS.items() if "maximum" in each["schema"]}
    assert greatest == {
        "max_lag": MAX_LIMIT,
        "max_staleness_ms": MAX_LIMIT,
        "wait_ms": MAX_WAIT_MS,
        "limit": MAX_PAGE_ELEMENTS,
        "version": MAX_LIMIT,
        "from": CEILING,
        "to": CEILING,
        "scan_limit": MAX_SCAN_ROWS,
        "partition": 2**31 - 1,
    }
    assert PARAMETERS["order"]["schema"]["maxLength"] == MAX_ORDER_CHARS
    assert SCHEMAS["Where"]["maxItems"] == MAX_TERMS
    assert SCHEMAS["ScanPage"]["properties"]["rows"]["maxItems"] == MAX_SCAN_ROWS
    assert SCHEMAS["ScanQuestion"]["properties"]["fields"]["maxItems"] == MAX_FIELDS
    assert SCHEMAS["Batch"]["properties"]["keys"]["maxItems"] == MAX_BATCH_KEYS
    of_a_lease = SCHEMAS["SnapshotRequest"]["properties"]
    assert of_a_lease["ttl_s"]["maximum"] == tokens.MAX_TTL_S
    assert f"{tokens.DEFAULT_TTL_S} by default" in of_a_lease["ttl_s"]["description"]
    assert of_a_lease["stores"]["maxItems"] == MAX_LEASED_STORES
    assert of_a_lease["wait_ms"]["maximum"] == MAX_WAIT_MS
    assert of_parameter("/admin/v1/lag", "limit")["maximum"] == MAX_ROWS
    assert of_parameter("/admin/v1/lag", "top")["maximum"] == MAX_ROWS
    assert of_parameter("/admin/v1/history", "minutes")["maximum"] == HISTORY_MINUTES


def test_tokens_look_as_the_code_makes_them() -> None:
    of_a_position, of_a_cursor = of_member("Found", "position"), of_member("Found", "next_cursor")
    assert of_a_position["pattern"] == rf"^{tokens.POSITION_PREFIX[:-1]}\.[A-Za-z0-9_-]+$"
    assert of_a_position["maxLength"] == tokens.MAX_TOKEN_CHARS
    assert of_a_cursor["pattern"] == rf"^{tokens.CURSOR_PREFIX[:-1]}\.[A-Za-z0-9_-]+$"
    assert of_a_cursor["maxLength"] == tokens.MAX_CURSOR_CHARS
    of_a_lease = of_member("SnapshotLease", "snapshot")
    assert of_a_lease["pattern"] == rf"^{tokens.LEASE_PREFIX[:-1]}\.[A-Za-z0-9_-]+$"
    assert of_a_lease["maxLength"] == tokens.MAX_TOKEN_CHARS
