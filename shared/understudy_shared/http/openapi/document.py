"""`/openapi.json` and `/docs` of a service, made from the `openapi.json` beside this module.

That file describes every call of every service. `x-services` names the services that have a part; without it all do.
`x-router` has the members of a part that differ at a router. Neither is in the document that a service serves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import orjson
from fastapi import FastAPI, Request, Response

from understudy_shared.http.openapi.page import HEADERS, Json, page

Service = Literal["serve", "node", "router"]

SOURCE = Path(__file__).with_name("openapi.json")
_COMPONENTS = "#/components/"
_HOST = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?")


def add_document(http: FastAPI, service: Service, *, is_guarded: bool = False) -> None:
    """Serve `/openapi.json` and `/docs`, made at their first request.

    `is_guarded`: the service requires credentials.
    """

    def complete() -> dict[str, Any]:
        if http.openapi_schema is None:
            http.openapi_schema = document(service, is_guarded=is_guarded)
        return http.openapi_schema

    http.openapi = complete  # type: ignore[method-assign]  # FastAPI's documented way to replace it

    @http.get("/docs")
    async def docs(request: Request) -> Response:
        address = _address(request.url.scheme, request.headers.get("host", ""))
        return Response(page(complete(), address), media_type="text/html", headers=HEADERS)


def document(service: Service, *, is_guarded: bool = False) -> Json:
    """Return the document of a service: its calls, and only the components that they refer to."""
    found: Json = _cut(orjson.loads(SOURCE.read_bytes()), service)
    info, components = found["info"], found["components"]
    info["version"] = version("understudy")
    info["description"] = "\n\n".join(info["description"]).format(role=info.pop("x-role"))
    found["paths"] = {path: methods for path, methods in found["paths"].items() if methods}
    if not is_guarded:
        del found["security"], components["securitySchemes"]
    needed = _reached(found["paths"], components)
    for kind, parts in components.items():
        if kind != "securitySchemes":
            components[kind] = {name: part for name, part in parts.items() if f"{kind}/{name}" in needed}
    return found


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


def _cut(part: Any, service: Service) -> Any:
    """Return the part as one service has it."""
    if isinstance(part, list):
        return [_cut(each, service) for each in part]
    if not isinstance(part, dict):
        return part
    of_a_router = part.get("x-router", {}) if service == "router" else {}
    return {
        name: _cut(value, service)
        for name, value in (part | of_a_router).items()
        if name not in {"x-services", "x-router"} and _has(service, value)
    }


def _has(service: Service, part: object) -> bool:
    return not isinstance(part, dict) or service in part.get("x-services", (service,))


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
