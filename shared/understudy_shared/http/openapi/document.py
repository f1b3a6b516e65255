"""`/openapi.json` and `/docs` of a service: the calls that it describes and that it has.

FastAPI is asked only which routes there are. It knows neither the lookups, which are answered in front of it, nor what
the routes answer: their bodies are made of bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from importlib.metadata import version
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response

from understudy_shared.http.openapi.calls import DOCUMENTS, LOOKUPS, OPERATIONS, STORES, Call, problem_responses
from understudy_shared.http.openapi.json_schema import Json, references
from understudy_shared.http.openapi.page import HEADERS, page
from understudy_shared.http.openapi.parameters import parameters
from understudy_shared.http.openapi.read_schemas import read_schemas
from understudy_shared.http.openapi.service_calls import service_schemas

_ALWAYS = frozenset({LOOKUPS, DOCUMENTS})
"""Calls that are answered in front of the framework, and those of `add_document`."""

_PARAMETER = re.compile(r"{[^}]*}")
_HOST = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?")

_BEARER: Json = {"type": "http", "scheme": "bearer", "description": "An API key of this service"}

_TAGS = {
    LOOKUPS: "One key, or many. Every answer says its version, its lag, and who gave it.",
    STORES: "What can be asked, and who would be asked.",
    OPERATIONS: "For operators, probes and dashboards.",
    DOCUMENTS: "What a service says of its calls.",
}

_INTRODUCTION = """
Understudy answers questions about the state of a running Spark Structured Streaming query, from replicas that follow \
the query's checkpoint. {role}

**Keys.** The friendly form is a percent-encoded path segment for each key column; the exact form is JSON, an array in \
schema order or an object by column name. Every key that is printed can be sent back as it is.

**Answers.** `200` with `found: true`, or `404` with `found: false` as `application/json`: only that body means that \
the key is absent. Both say their `version`, `committed_at`, `lag`, who served them, and a `position`. What is not \
known is null; an unknown lag is never 0.

**Bounds.** Without any, every replica may answer, and the answer says how old it is. A reader bounds that age with \
`max_lag`, `max_staleness_ms` and `min_position`; an answer that would break the bound is refused with every candidate \
and its reason.

**Problems.** Anything else that fails is `application/problem+json` (RFC 9457) with a stable `type`, what was wrong, \
where, and what to do. 429 and 503 problems carry `Retry-After`.

**Credentials.** A service that was started with credentials answers 401 without one, and 403 where the credential's \
roles do not allow a call; a store that it may not see is answered as one that is not there. Send \
`Authorization: Bearer` and the key. Probes need none.

**Limits.** A path and a query have at most 16 KiB each, as they are sent; a batch 1,000 keys and 8 MiB; an encoded \
key 64 KiB unless the service is set otherwise. Percent-encoding is for names and keys only, and a query parameter \
is given once. `HEAD` is answered wherever `GET` is; any other method that a path does not take is 405, with `Allow`.
"""


class Service(NamedTuple):
    """What a kind of service says of itself. `schemas` are those that only its own calls refer to."""

    title: str
    role: str
    calls: tuple[Call, ...]
    schemas: Json


def add_document(http: FastAPI, service: Callable[[], Service], *, is_guarded: bool = False) -> None:
    """Serve `/openapi.json` and `/docs`, made when they are first asked for; call it when all routes are there.

    `is_guarded`: the service asks for credentials.
    """
    generated = http.openapi

    def complete() -> dict[str, Any]:
        if http.openapi_schema is None:
            routes = {(method, nameless(path)) for path, methods in generated()["paths"].items() for method in methods}
            http.openapi_schema = document(service(), routes, is_guarded=is_guarded)
        return http.openapi_schema

    http.openapi = complete  # type: ignore[method-assign]  # FastAPI's documented way to extend it

    @http.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        address = _address(request.url.scheme, request.headers.get("host", ""))
        return Response(page(complete(), address), media_type="text/html", headers=HEADERS)


def document(service: Service, routes: Collection[tuple[str, str]], *, is_guarded: bool = False) -> Json:
    """The document of those calls that there is a route for: method and path, `{}` for each parameter."""
    calls = [call for call in service.calls if call.tag in _ALWAYS or (call.method, nameless(call.path)) in routes]
    paths: Json = {}
    for call in calls:
        paths.setdefault(call.path, {})[call.method] = call.operation()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": service.title,
            "version": version("understudy"),
            "summary": "Key lookups in the state of a running Spark Structured Streaming query",
            "description": _INTRODUCTION.format(role=service.role).strip(),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [
            {"name": name, "description": text}
            for name, text in _TAGS.items()
            if any(call.tag == name for call in calls)
        ],
        "paths": paths,
        **({"security": [{"key": []}]} if is_guarded else {}),
        "components": {
            **_components(paths, service, calls),
            **({"securitySchemes": {"key": _BEARER}} if is_guarded else {}),
        },
    }


def nameless(path: str) -> str:
    """`/v1/stores/{store}` as `/v1/stores/{}`: two names of a parameter are one call."""
    return _PARAMETER.sub("{}", path)


def _components(paths: Json, service: Service, calls: Iterable[Call]) -> Json:
    """What the paths refer to, and what that refers to: nothing of calls that are not there."""
    every: Json = {
        "parameters": parameters(),
        "responses": problem_responses(calls),
        "schemas": {**read_schemas(), **service_schemas(), **service.schemas},
    }
    needed: set[str] = set()
    found = set(references(paths))
    while found - needed:
        needed |= found
        found = {each for name in found for each in references(_at(every, name))}
    return {
        kind: {name: part for name, part in parts.items() if f"{kind}/{name}" in needed}
        for kind, parts in every.items()
    }


def _at(components: Json, name: str) -> object:
    kind, _, name = name.partition("/")
    return components[kind][name]


def _address(scheme: str, host: str) -> str:
    """Where the reader reached this service, for commands to copy; a usual address if the header is odd."""
    return f"{scheme}://{host}" if _HOST.fullmatch(host) else "http://127.0.0.1:8080"
