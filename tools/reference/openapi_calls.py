"""The calls of the OpenAPI document, as the pages of the reference need them (pure but for reading the document)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from understudy_shared.http.openapi.document import Service, document, read_source

SERVICES = {"serve": "`understudy serve`", "node": "nodes", "router": "routers"}
_FORMS = {"only": (True,), True: (False, True), False: (False,)}
"""Whether each form of a call is that of a fleet, by what the document says of fleets."""

_SLUG = re.compile(r"\(`([a-z-]+)`\)")


@dataclass(frozen=True, slots=True)
class Call:
    """One operation, in the document of a service that has it."""

    method: str
    path: str
    services: Sequence[str]
    is_of_a_fleet: bool
    """Whether only services of several applications have it, or have another at its path."""
    document: dict[str, Any]

    @property
    def operation(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["paths"][self.path][self.method.lower()]
        return found

    @property
    def name(self) -> str:
        """The operation's id, as a heading and its anchor have it."""
        return str(self.operation["operationId"]).replace("_", "-")

    @property
    def tag(self) -> str:
        return str(self.operation["tags"][0])

    @property
    def problems(self) -> frozenset[str]:
        """The types of problems that it may answer."""
        answers = map(self.resolved, self.operation["responses"].values())
        return frozenset(slug for answer in answers for slug in _SLUG.findall(answer["description"]))

    def resolved(self, part: dict[str, Any]) -> dict[str, Any]:
        """Return what a part refers to, or the part itself."""
        target = part.get("$ref")
        if target is None:
            return part
        found: Any = self.document
        for name in str(target).removeprefix("#/").split("/"):
            found = found[name]
        return dict(found)

    def type_text(self, schema: dict[str, Any]) -> str:
        """Return the type of a parameter or member, with what limits it."""
        found = self.resolved(schema)
        if "enum" in found:
            return ", ".join(f"`{value}`" for value in found["enum"])
        kind = found.get("type", "any")
        text = " or ".join(kind) if isinstance(kind, list) else str(kind)
        text = f"{text}, {found['format']}" if found.get("format") else text
        limits = [f"{word} {found[name]:,}" for name, word in (("minimum", "from"), ("maximum", "to")) if name in found]
        return " ".join([text, *limits])


@cache
def tags() -> Sequence[str]:
    """Return the groups of calls, in the order of the document."""
    return [tag["name"] for tag in read_source()["tags"]]


@cache
def calls() -> Sequence[Call]:
    """Return every call in the order of the document, as a router has it, or else a node; a fleet's follows that of a
    service of one application.
    """
    return [
        Call(method.upper(), path, services, is_fleet, _served("router" if "router" in services else "node", is_fleet))
        for path, methods in read_source()["paths"].items()
        for method, operation in methods.items()
        for services in [operation.get("x-services", [*SERVICES])]
        for is_fleet in _FORMS["only" if operation.get("x-fleet") == "only" else "x-fleet" in operation]
    ]


@cache
def _served(service: Service, is_fleet: bool) -> dict[str, Any]:
    return document(service, is_fleet=is_fleet)
