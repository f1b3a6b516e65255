"""A call of a service as the OpenAPI document describes it: what it takes, every status, every problem (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from understudy_shared.http.openapi.json_schema import Json, exactly, ref
from understudy_shared.http.problems import AUTHENTICATE, ProblemType

JSON = "application/json"
PROBLEM_JSON = "application/problem+json"

LOOKUPS, STORES, OPERATIONS, DOCUMENTS = "Lookups", "Stores", "Operations", "Documents"

OF_EVERY_CALL = (
    ProblemType.BAD_REQUEST,
    ProblemType.REQUEST_TIMEOUT,
    ProblemType.TARGET_TOO_LONG,
    ProblemType.OVERLOADED,
    ProblemType.HEADERS_TOO_LARGE,
    ProblemType.INTERNAL,
)
"""Problems that any request may meet: it does not parse, comes too slowly, is too large, or there are too many."""

OF_A_CREDENTIAL = (ProblemType.UNAUTHENTICATED, ProblemType.FORBIDDEN, ProblemType.RATE_LIMITED)
"""Problems of a call that is not open to everybody, where the service asks for credentials."""

OF_A_CHANGE = (ProblemType.CROSS_SITE, ProblemType.NOT_JSON, ProblemType.TOO_LARGE)
"""Problems of a call that changes something."""

_AUTHENTICATE: Json = {
    "WWW-Authenticate": {
        "description": "How to send a credential",
        "required": True,
        "schema": exactly(AUTHENTICATE.decode()),
    }
}

_RETRY_AFTER: Json = {
    "Retry-After": {
        "description": "Seconds to wait before the next try",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    }
}


class Answer(NamedTuple):
    """What a call answers when it did what was asked; `example` fits `schema`. Without a schema there is no body."""

    status: int
    description: str
    schema: Json | None
    example: object = None
    content_type: str = JSON
    headers: Json | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One method of one path. `sample` is a curl command that works when `$url` is the service's address. `is_open`: it
    needs no credential.
    """

    method: str
    path: str
    name: str
    tag: str
    summary: str
    answers: tuple[Answer, ...]
    sample: str
    problems: tuple[ProblemType, ...] = ()
    description: str = ""
    parameters: tuple[Json, ...] = ()
    body: Json | None = None
    is_open: bool = False

    @property
    def by_status(self) -> dict[int, list[ProblemType]]:
        """Its problems, those of every call included."""
        found: dict[int, list[ProblemType]] = {}
        credential = () if self.is_open else OF_A_CREDENTIAL
        for problem in dict.fromkeys((*self.problems, *credential, *OF_EVERY_CALL)):
            found.setdefault(problem.status, []).append(problem)
        return dict(sorted(found.items()))

    def operation(self) -> Json:
        """The call as an OpenAPI operation."""
        return {
            "operationId": self.name,
            "tags": [self.tag],
            "summary": self.summary,
            **({"description": self.description} if self.description else {}),
            **({"parameters": list(self.parameters)} if self.parameters else {}),
            **({} if self.body is None else {"requestBody": self.body}),
            **({"security": []} if self.is_open else {}),
            "responses": self._responses(),
            "x-codeSamples": [{"lang": "Shell", "label": "curl", "source": self.sample}],
        }

    def _responses(self) -> Json:
        responses: dict[int, Json] = {}
        for answer in self.answers:
            response = responses.setdefault(answer.status, {"description": answer.description})
            if answer.headers is not None:
                response["headers"] = answer.headers
            if answer.schema is not None:
                example = {} if answer.example is None else {"example": answer.example}
                response.setdefault("content", {})[answer.content_type] = {"schema": answer.schema, **example}
        for status, types in self.by_status.items():
            if status in responses:
                problem = problem_response(types)
                responses[status]["description"] += f". As a problem: {problem['description']}"
                responses[status].setdefault("content", {}).update(problem["content"])
            else:
                responses[status] = {"$ref": f"#/components/responses/{_name_of(types)}"}
        return {str(status): response for status, response in sorted(responses.items())}


def problem_responses(calls: Iterable[Call]) -> Json:
    """The shared responses of calls: one for each status and set of problem types, by name."""
    found: Json = {}
    for call in calls:
        answered = {answer.status for answer in call.answers}
        for status, types in call.by_status.items():
            if status not in answered:
                found.setdefault(_name_of(types), problem_response(types))
    return dict(sorted(found.items()))


def problem_response(types: Sequence[ProblemType]) -> Json:
    """A response with one of these problems, which have one status."""
    status = types[0].status
    known = {"type": {"enum": [each.slug for each in types]}, "status": {"const": status}}
    return {
        "description": "; ".join(f"{each.title} (`{each.slug}`)" for each in types),
        **({"headers": _RETRY_AFTER} if status in (429, 503) else {}),
        **({"headers": _AUTHENTICATE} if status == 401 else {}),
        "content": {PROBLEM_JSON: {"schema": ref("Problem", dependentSchemas={"type": {"properties": known}})}},
    }


def path_parameter(name: str, description: str, example: str, **schema: object) -> Json:
    """A parameter in the path. A name there has no slash, escaped or not."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string", "minLength": 1, **schema},
        "example": example,
    }


def query_parameter(name: str, description: str, schema: Json, *, is_required: bool = False) -> Json:
    return {"name": name, "in": "query", "required": is_required, "description": description, "schema": schema}


def json_body(schema: Json, example: object) -> Json:
    """A body that must be there."""
    return {"required": True, "content": {JSON: {"schema": schema, "example": example}}}


def _name_of(types: Sequence[ProblemType]) -> str:
    return "-".join((str(types[0].status), *(each.slug for each in types)))
