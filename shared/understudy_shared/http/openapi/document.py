"""`/openapi.json` and `/docs` of a service, made from the `openapi.json` beside this module.

That file describes every call of every service. `x-services` names the services that have a part; without it all do.
`x-router` has the members of a part that differ at a router, `x-fleet` those that differ at a service of several
applications, or `only`. `x-bounds` stands for every bound of a reader, which `components/parameters` describes once.
None of them is in the document that a service serves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import orjson
from fastapi import FastAPI, Request, Response

from understudy_shared.base.extras import PACKAGE
from understudy_shared.http.openapi.of_a_fleet import ONLY, add_unknown_application, paths_of_a_fleet
from understudy_shared.http.openapi.page import HEADERS, Json, page
from understudy_shared.reads.bound_parsing import BOUNDS

Service = Literal["serve", "node", "router"]

_SOURCE = Path(__file__).with_name("openapi.json")
_MARKS = {"x-services", "x-router", "x-fleet"}
_BOUNDS = "x-bounds"
TAKES_BACK = " `none` takes back the default of the store."
"""The end of the description of each bound that a store may have a default of."""
_COMPONENTS = "#/components/"
_HOST = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?")


def add_document(
    http: FastAPI, service: Service, *, is_fleet: bool = False, is_guarded: bool = False, root_path: str = ""
) -> None:
    """Serve `/openapi.json` and `/docs`, made at their first request.

    `is_fleet`: the service has several applications. `is_guarded`: it requires credentials. `root_path`:
    the prefix under which a proxy publishes it.
    """

    def complete() -> dict[str, Any]:
        if http.openapi_schema is None:
            found = document(service, is_fleet=is_fleet, is_guarded=is_guarded)
            http.openapi_schema = found | ({"servers": [{"url": root_path}]} if root_path else {})
        return http.openapi_schema

    http.openapi = complete  # type: ignore[method-assign]  # FastAPI's documented way to replace it

    @http.get("/docs")
    async def docs(request: Request) -> Response:
        address = _address(request.url.scheme, request.headers.get("host", "")) + root_path
        return Response(page(complete(), address), media_type="text/html", headers=HEADERS)


def read_source() -> Json:
    """Return the document of all services, with every mark but `x-bounds`."""
    source: Json = orjson.loads(_SOURCE.read_bytes())
    bounds = {name: source["components"]["parameters"][name] for name in BOUNDS}
    for methods in source["paths"].values():
        for call in methods.values():
            if {_BOUNDS: "parameters"} in (parameters := call.get("parameters", [])):
                place = parameters.index({_BOUNDS: "parameters"})
                parameters[place : place + 1] = [{"$ref": f"{_COMPONENTS}parameters/{name}"} for name in bounds]
    for schema in source["components"]["schemas"].values():
        match schema.get("properties", {}).pop(_BOUNDS, None):
            case "properties":
                schema["properties"] |= {name: bound["schema"] for name, bound in bounds.items()}
            case "properties or null":
                schema["properties"] = {name: _or_null(bound) for name, bound in bounds.items()} | schema["properties"]
    return source


def _or_null(bound: Json) -> Json:
    schema = {**bound["schema"], "type": [bound["schema"]["type"], "null"]}
    choices = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, **choices, "description": bound["description"].removesuffix(TAKES_BACK)}


def document(service: Service, *, is_fleet: bool = False, is_guarded: bool = False) -> Json:
    """Return the document of a service: its calls, and only the components that they refer to."""
    source = read_source()
    if is_fleet:
        source["paths"] = paths_of_a_fleet(source["paths"], is_router=service == "router")
    found: Json = _cut(source, service, is_fleet)
    info, components = found["info"], found["components"]
    info["version"] = version(PACKAGE)
    said = {"role": info.pop("x-role"), "applications": info.pop("x-applications")}
    info["description"] = "\n\n".join(info["description"]).format(**said)
    found["paths"] = {path: methods for path, methods in found["paths"].items() if methods}
    if is_fleet:
        add_unknown_application(_not_found(found))
    if not is_guarded:
        del found["security"], components["securitySchemes"]
    needed = _reached(found["paths"], components)
    for kind, parts in components.items():
        if kind != "securitySchemes":
            components[kind] = {name: part for name, part in parts.items() if f"{kind}/{name}" in needed}
    return found


def _not_found(document: Json) -> Iterator[Json]:
    """Yield each response of status 404, shared or of one call."""
    yield from (part for name, part in document["components"]["responses"].items() if name.startswith("404"))
    for methods in document["paths"].values():
        for call in methods.values():
            if "content" in (response := call["responses"].get("404", {})):
                yield response


def references(part: object) -> Iterator[str]:
    """Yield the names of the components that a part of a document refers to, such as `schemas/Lag`."""
    if isinstance(part, dict):
        target = part.get("$ref")
        if isinstance(target, str):
            yield target.removeprefix(_COMPONENTS)
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def _cut(part: Any, service: Service, is_fleet: bool) -> Any:
    """Return the part as one service has it."""
    if isinstance(part, list):
        return [_cut(each, service, is_fleet) for each in part]
    if not isinstance(part, dict):
        return part
    of_a_router = part.get("x-router", {}) if service == "router" else {}
    of_a_fleet = part.get("x-fleet", {}) if is_fleet and part.get("x-fleet") != ONLY else {}
    return {
        name: _cut(value, service, is_fleet)
        for name, value in (part | of_a_router | of_a_fleet).items()
        if name not in _MARKS and _has(service, is_fleet, value)
    }


def _has(service: Service, is_fleet: bool, part: object) -> bool:
    if not isinstance(part, dict):
        return True
    return service in part.get("x-services", (service,)) and (is_fleet or part.get("x-fleet") != ONLY)


def _reached(paths: Json, components: Json) -> set[str]:
    """Return the names of all components that paths refer to, and that these components refer to."""
    needed: set[str] = set()
    found = set(references(paths))
    while found - needed:
        needed |= found
        parts = [components[kind][name] for kind, _, name in (each.partition("/") for each in found)]
        found = set(references(parts))
    return needed


def _address(scheme: str, host: str) -> str:
    """Return the address at which the client reached this service, or a default if the header is malformed."""
    return f"{scheme}://{host}" if _HOST.fullmatch(host) else "http://127.0.0.1:8080"
