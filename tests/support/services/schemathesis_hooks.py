"""What no document can tell Schemathesis, which loads this: issued positions, columns of keys, who may see what.

`schemathesis_runs.py` says what it is told.
"""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import unquote

import requests
import schemathesis
from hypothesis import strategies
from schemathesis import Case, CheckContext, HookContext, Response
from tests.support.services.accepted_bounds import in_a_body, in_a_query
from tests.support.services.schemathesis_runs import KNOWLEDGE, Knowledge

from understudy_shared.reads.bound_parsing import LAG_PARAMETERS, VERSION_PARAMETERS
from understudy_shared.reads.tokens import SnapshotLease, decode_position

TOLD = Knowledge(**json.loads(os.environ[KNOWLEDGE]))
WORD = {"anyOf": [{"enum": ["word-0", "word-1"]}, {"type": ["string", "null"]}]}
KEY = {
    "anyOf": [
        {"type": "array", "prefixItems": [WORD], "items": False, "minItems": 1},
        {"type": "object", "properties": {"word": WORD}, "required": ["word"], "additionalProperties": False},
    ],
    "example": ["word-0"],
}

UNREAD = {400, 408, 413, 414, 415, 431}
"""Statuses of a request that does not parse, or is too large, before anybody is asked who he is."""

OF_WHOEVER_IS_KNOWN = {"list_stores", "openapi", "docs"}
"""Calls that every key may make. They show what it may see."""

OF_WHAT_IS_ASKED = {"read_several", "lease_snapshot", "release_snapshot"}
"""Calls whose rights depend on their content, so that every key learns which method they take."""

ABSENT = "op9"
"""A store that is not there, with a name as long as that of the hidden one."""

CONTRADICTING = (*LAG_PARAMETERS, "min_position", "cursor")
"""Parameters that ask for another version than the one that is named: they are left out then."""

MOMENTS = ["2999-01-01T00:00:00Z", "1764115200000"]
IN_A_BODY = {"position": [TOLD.position], "moment": MOMENTS}
"""Values of formats that are ours. No validator knows the formats, so that another text would be called valid."""

schemathesis.openapi.format("position", strategies.just(TOLD.position))
schemathesis.openapi.format("moment", strategies.sampled_from(MOMENTS))
schemathesis.openapi.format("cursor", strategies.just(TOLD.cursor))
LEASE = SnapshotLease(decode_position(TOLD.position), "any", 60)
schemathesis.openapi.format("lease", strategies.just(LEASE.encode()))


@schemathesis.hook
def before_load_schema(context: HookContext, raw_schema: dict[str, Any]) -> None:
    components = raw_schema["components"]
    components["schemas"]["Key"] = KEY
    bounds = components["schemas"]["Bounds"]["properties"]
    for name, schema in bounds.items():
        bounds[name] = in_a_body(name, schema)
    leased = components["schemas"]["SnapshotRequest"]["properties"]
    for name, schema in leased.items():
        if schema.get("format") in IN_A_BODY:
            leased[name] = {"enum": [*IN_A_BODY[schema["format"]], None]}
    for name, parameter in components["parameters"].items():
        if "contentSchema" in parameter["schema"]:
            parameter["content"] = {"application/json": {"schema": parameter.pop("schema")["contentSchema"]}}
            del parameter["example"]
        elif parameter["in"] == "query":
            parameter["schema"] = in_a_query(name, parameter["schema"])


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    """Let one parameter name the version: several contradict each other, which no type tells."""
    body = case.body if isinstance(case.body, dict) else {}
    for bounds in (case.query, body if case.path == "/v1/snapshots" else body.get("bounds")):
        if isinstance(bounds, dict):
            named = [name for name in VERSION_PARAMETERS if str(bounds.get(name)) not in {"None", "none"}]
            for name in {*named[1:], *(CONTRADICTING if named else ())} & bounds.keys():
                del bounds[name]
            if named and bounds is not body:
                bounds["wait_ms"] = "0"
            if "from" in bounds:
                bounds.pop("to", None)


if TOLD.hidden:

    @schemathesis.check
    def who_has_no_right_is_refused(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
        """Without a key: 401. With one that has no right to it: 403, or 404 as for what is not there."""
        operation = case.operation.definition.raw
        shown = _shown(response)
        if shown == TOLD.key or operation.get("security") == []:
            return
        if shown is not None and operation["operationId"] in OF_WHOEVER_IS_KNOWN:
            return
        wanted = {401} if shown is None else {401, 403, 404}
        if shown is not None and operation["operationId"] in OF_WHAT_IS_ASKED:
            wanted |= {204, 405} if response.request.method == "OPTIONS" else {405}
        assert response.status_code in wanted | UNREAD, f"{response.status_code} is none of {wanted}"

    @schemathesis.check
    def nothing_hidden_is_named(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
        """Nothing hidden is in an answer; who names a hidden store reads what he reads of one that is not there."""
        store = TOLD.hidden[0]
        if _shown(response) == TOLD.key:
            return
        sent, said = response.request, _said(response.status_code, response.headers, response.content)
        asked = unquote(str(sent.url)) + str(sent.body)
        assert not [each for each in TOLD.hidden if each in said and each not in asked], f"it is named: {said}"
        if store in str(sent.url) + str(sent.body):
            other = sent.copy()
            other.url = str(sent.url).replace(store, ABSENT)
            other.body = _renamed(sent.body, store)
            with requests.Session() as session:
                answer = session.send(other, timeout=60)
            told = _said(answer.status_code, {name: [value] for name, value in answer.headers.items()}, answer.content)
            assert told.replace(ABSENT, store) == said, f"another answer than for a store that is not there: {told}"


def _shown(response: Response) -> str | None:
    """The key that was sent."""
    sent = response.request.headers.get("authorization")
    return None if sent is None else str(sent).removeprefix("Bearer ")


def _said(status: int, headers: Any, body: bytes) -> str:
    """All that an answer says."""
    named = sorted((name.lower(), tuple(values)) for name, values in headers.items())
    return f"{status} {named} {body.decode('utf-8', 'replace')}"


def _renamed(body: object, store: str) -> Any:
    if isinstance(body, bytes):
        return body.replace(store.encode(), ABSENT.encode())
    return body.replace(store, ABSENT) if isinstance(body, str) else body
