"""The forms of the HTTP interfaces, read off the OpenAPI document (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.forms.form import Form, form, schema_lines, types_of

_METHODS = ("get", "post", "put", "delete", "patch")


def api_form(document: Mapping[str, Any], *, is_admin: bool) -> Form:
    """Return the form of the admin calls, or that of all others; schemas belong to the calls that reach them."""
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in _METHODS and path.startswith("/admin/") is is_admin
    ]
    given = _reached([each.get("requestBody", {}) for _, each in operations], document)
    answered = _reached([each["responses"] for _, each in operations], document)
    lines = [line for name, operation in operations for line in _operation(name, operation, document)]
    for name in sorted(given | answered):
        schema = document["components"]["schemas"][name]
        lines += schema_lines(schema, name, given=name in given, answered=name in answered)
    return form(lines)


def _operation(name: str, operation: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    yield False, f"{name}: is {operation['operationId']}"
    for service in operation.get("x-services", ()):
        yield False, f"{name}: at {service}"
    for each in operation.get("parameters", ()):
        parameter = _resolved(each, document)
        what = f"{parameter['in']} {parameter['name']}"
        yield False, f"{name}: {what} {types_of(parameter['schema'])}"
        if parameter.get("required"):
            yield True, f"{name}: {what}"
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        yield False, f"{name}: takes {media} {types_of(content.get('schema', {}))}"
    for status, each in operation["responses"].items():
        response = _resolved(each, document)
        yield False, f"{name}: {status}"
        for header in response.get("headers", {}):
            yield False, f"{name}: {status} header {header}"
        for media, content in response.get("content", {}).items():
            yield False, f"{name}: {status} {media} {types_of(content.get('schema', {}))}"


def _resolved(part: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in part:
        found: Any = document
        for step in part["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        part = found
    return part


def _reached(parts: list[Any], document: Mapping[str, Any]) -> set[str]:
    """Return the names of the schemas that parts of the document refer to, by whatever way."""
    found: set[str] = set()
    seen: set[str] = set()
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, Mapping):
            reference = part.get("$ref")
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                if reference.startswith("#/components/schemas/"):
                    found.add(reference.rpartition("/")[2])
                parts.append(_resolved(part, document))
            parts += part.values()
    return found
