"""The OpenAPI document of a service as the judge of its answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from understudy_shared.reads.tokens import PageCursor, decode_position

Json = dict[str, Any]


def strict(part: Any) -> Any:
    """A part of a document in which an object has the members that are described, and no others."""
    if isinstance(part, list):
        return [strict(each) for each in part]
    if not isinstance(part, dict):
        return part
    copy = {name: value if name == "example" else strict(value) for name, value in part.items()}
    if copy.get("type") == "object" and isinstance(copy.get("properties"), dict):
        copy.setdefault("additionalProperties", False)
    return copy


def resolved(document: Json, part: Json) -> Json:
    """What a part stands for, if it is a reference."""
    while "$ref" in part:
        _, *names = part["$ref"].split("/")
        part = document
        for name in names:
            part = part[name]
    return part


def validator(document: Json, schema: Json) -> Draft202012Validator:
    """A validator for a schema of the document, whose references lead into it."""
    return Draft202012Validator({**schema, "components": document["components"]})


def judge(document: Json, call: str, status: int, content_type: str, body: bytes) -> None:
    """Fails unless the document describes such an answer of a call, `GET /v1/stores` say, member by member."""
    method, _, path = call.partition(" ")
    responses = document["paths"][path][method.lower()]["responses"]
    assert str(status) in responses, f"{call}: {status} is not in {list(responses)}: {body[:300]!r}"
    content = resolved(document, responses[str(status)]).get("content", {})
    kind = content_type.partition(";")[0]
    assert kind in content, f"{call}: {status} with {kind}, not {list(content)}"
    if kind.endswith(("/json", "+json")):
        close = strict(document)
        validator(close, strict(content[kind]["schema"])).validate(orjson.loads(body))


def described_answers(document: Json) -> Iterator[tuple[str, Json, object]]:
    """Each example in the document: where it stands, its schema, and the example."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            contents = {"body": operation.get("requestBody", {}).get("content", {})}
            contents |= {
                status: resolved(document, response).get("content", {})
                for status, response in operation["responses"].items()
            }
            for name, content in contents.items():
                for kind, each in content.items():
                    if "example" in each:
                        yield f"{method} {path} {name} {kind}", each["schema"], each["example"]


def cursor_at(position: str) -> str:
    """A cursor of the version of a position."""
    seen = decode_position(position)
    return PageCursor("op0", seen.lineage, "", seen.version, seen.committed_at_us, 1).encode()
