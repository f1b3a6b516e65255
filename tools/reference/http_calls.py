"""The pages of HTTP calls, made of the OpenAPI document: one for readers, one for operators."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from tools.reference.markdown import GENERATED, code, fence, page, plain, table
from tools.reference.openapi_calls import SERVICES, Call, calls, tags

Row = tuple[str, str, str, str]
"""A parameter in a table: name, place, type, meaning."""

_FOR_OPERATORS = ("Operations", "Documents")
_INTRODUCTION = GENERATED.format(source="the OpenAPI document that every service has at `/openapi.json`")
_AS_PROBLEM = re.compile(r" As a problem: .*")
_PARAMETER = ("parameter", "in", "type", "is")
_SHARED = 3
"""A parameter that so many calls have with the same words is described once."""

_OF_A_FLEET = " of several applications"

_KEY = ("`store`", "`key`")
"""Parameters that a path or an example shows by itself."""

_OF_EVERY_CALL = 0.8
"""A problem of more than this part of the calls is named once, not at each."""


def http_page() -> str:
    """Render the calls that read state."""
    shown = [tag for tag in tags() if tag not in _FOR_OPERATORS]
    return page(
        "# HTTP calls",
        _INTRODUCTION,
        "[HTTP API](../api.md) explains keys, answers and bounds. [Admin calls](admin.md) are for operators. "
        "`$url` is a router, a node, or `understudy serve`.",
        f"{_common_problems()} They are those of a router; nodes and `understudy serve` answer reads also with "
        "`not-owner` and `store-error`.",
        *_groups(shown),
        "## Parameters of several calls",
        _parameters(call for call in calls() if call.tag in shown),
    )


def admin_page() -> str:
    """Render the calls for operators, probes and dashboards."""
    return page(
        "# Admin calls",
        _INTRODUCTION,
        "[Admin API](../admin.md) explains the reports. The page for people is [the admin page](../page.md). "
        "Calls that several services have are described as a router has them: `GET /admin/v1/lag` of a node takes "
        "`store` alone, and answers JSON.",
        _common_problems(),
        *_groups(_FOR_OPERATORS),
    )


def _groups(shown: Sequence[str]) -> Iterator[str]:
    for tag in shown:
        found = [call for call in calls() if call.tag == tag]
        yield f"## {tag}"
        rows = ((f"[{code(f'{each.method} {each.path}')}](#{each.name})", plain(_summary(each))) for each in found)
        yield table(("call", "does"), rows)
        for before, each in pairwise([None, *found]):
            assert each is not None
            yield from _call(each, before)


def _summary(call: Call) -> str:
    return str(call.operation["summary"])


def _call(call: Call, before: Call | None) -> Iterator[str]:
    """Yield the section of a call. What is that of the call before it, such as its other form, is not said again."""
    yield f"### {call.name}"
    yield f"**`{call.method} {call.path}`**, at {_services(call.services)}{_OF_A_FLEET if call.is_of_a_fleet else ''}"
    yield plain(call.operation.get("description", ""))
    yield fence(call.operation["x-codeSamples"][0]["source"], "text")
    parts = list(_parts(call))
    if before is not None and parts == list(_parts(before)):
        yield f"Parameters, answers and problems are those of [{before.name}](#{before.name})."
    else:
        yield from parts


def _parts(call: Call) -> Iterator[str]:
    rows = [row for row in _rows(call) if row[0] not in _KEY]
    yield table(_PARAMETER, (row for row in rows if row not in _shared_rows()))
    shared = [row[0] for row in rows if row in _shared_rows()]
    if shared:
        yield f"And [parameters of several calls](#parameters-of-several-calls): {', '.join(shared)}."
    yield _body(call)
    yield table(("status", "answer"), _answers(call))
    problems = sorted(call.problems - _common())
    if problems:
        yield f"[Problems](problems.md): {', '.join(map(code, problems))}."


@cache
def _common() -> frozenset[str]:
    """Return the problems that nearly every call may answer."""
    counted = Counter(slug for call in calls() for slug in call.problems)
    return frozenset(slug for slug, number in counted.items() if number > _OF_EVERY_CALL * len(calls()))


def _common_problems() -> str:
    named = ", ".join(map(code, sorted(_common())))
    return f"Every call may answer the [problems](problems.md) {named}; its own are named at each."


def _services(services: Sequence[str]) -> str:
    named = [SERVICES[each] for each in services]
    return "every service" if len(named) == len(SERVICES) else " and ".join(named)


def _rows(call: Call) -> list[Row]:
    found = [call.resolved(each) for each in call.operation.get("parameters", [])]
    return [
        (code(each["name"]), _place(each), call.type_text(each["schema"]), plain(each.get("description", "")))
        for each in found
    ]


def _place(parameter: Mapping[str, Any]) -> str:
    place: str = parameter["in"]
    return f"{place}, required" if parameter.get("required") and place != "path" else place


@cache
def _shared_rows() -> frozenset[Row]:
    """Return the parameters that several calls for readers have in the same words."""
    counted = Counter(row for call in calls() if call.tag not in _FOR_OPERATORS for row in _rows(call))
    return frozenset(row for row, number in counted.items() if number >= _SHARED)


def _parameters(found: Iterable[Call]) -> str:
    return table(_PARAMETER, {row: None for call in found for row in _rows(call) if row in _shared_rows()})


def _body(call: Call) -> str:
    if "requestBody" not in call.operation:
        return ""
    schema = call.resolved(call.operation["requestBody"]["content"]["application/json"]["schema"])
    required = schema.get("required", [])
    return table(
        ("member of the body", "type", "is"),
        (
            (
                code(name) + (" (required)" if name in required else ""),
                call.type_text(part),
                plain(part.get("description") or call.resolved(part).get("description", "")),
            )
            for name, part in schema.get("properties", {}).items()
        ),
    )


def _answers(call: Call) -> Iterator[tuple[str, str]]:
    """Yield what it answers besides problems, which have a page of their own."""
    for status, answer in call.operation["responses"].items():
        found = call.resolved(answer)
        kinds = [kind for kind in found.get("content", {}) if kind != "application/problem+json"]
        text = plain(_AS_PROBLEM.sub("", found["description"]))
        if kinds or status.startswith("2"):
            yield status, text + (f" ({', '.join(map(code, kinds))})" if kinds else "")
