"""The page of problems: type, status, and which calls answer with it, of the code and its OpenAPI document."""

from __future__ import annotations

from tools.reference.markdown import GENERATED, code, page, plain, table
from tools.reference.openapi_calls import calls

from understudy_shared.http.problems import ProblemType

_OF_MOST = 0.6
"""A problem of more than this part of the calls is shown as one of most."""

_SOME = 4
"""More calls than these are counted, not named: the page of calls has the problems of each."""


def problems_page() -> str:
    """Render a row for each type of problem."""
    return page(
        "# Problems",
        GENERATED.format(source="the types of problems and the OpenAPI document"),
        "A failure is `application/problem+json` (RFC 9457): `type` is stable, `detail` says what was wrong, `where` "
        "where, and `fix` what to do. Only a `404` of `application/json` with `found: false` means that a key is "
        "absent. [What each means for an operator, and what to do](../operations.md#problems-that-readers-see).",
        table(
            ("type", "status", "is", "answered by"),
            ((code(each.slug), str(each.status), plain(each.title), _where(each.slug)) for each in ProblemType),
        ),
        "`429` and `503` have `Retry-After`. The Python client raises an [error of its own](../client.md#errors) for "
        "each kind.",
    )  # fmt: skip


def _where(slug: str) -> str:
    """Return the calls whose document names this problem."""
    named = [call.name for call in calls() if slug in call.problems]
    if not named:
        return "the server, for calls between services or before it knows the call"
    if len(named) > _OF_MOST * len(calls()):
        return "most calls"
    return f"{len(named)} calls" if len(named) > _SOME else ", ".join(map(code, named))
