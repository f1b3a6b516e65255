"""The view of an answer for a principal (pure).

A principal without the right to monitor sees no paths, no names of other stores and no internal reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from understudy_shared.auth.permissions import HIDDEN_FIX, forbidden_key
from understudy_shared.auth.principals import Action, Authorization, KeyScope, Principal
from understudy_shared.http.problems import Problem, ProblemError, ProblemType

_INSIDE = {
    ProblemType.STORE_ERROR: "the state of this key could not be read",
    ProblemType.NOT_INITIALISED: "this service is not ready yet",
    ProblemType.INTERNAL: "the request failed by a bug",
}
"""Problems whose texts name files, hosts or code, and the texts that replace them."""

_INSIDE_BY_SLUG = {problem.slug: text for problem, text in _INSIDE.items()}

_MARKS = (b'"candidates"', *(b'"%b"' % slug.encode() for slug in _INSIDE_BY_SLUG))
"""Marks in a batch: without any of these texts it has nothing to hide."""

_ASK = "Retry; the service's log, and a credential that may monitor, show why"
_HIDDEN = "a credential that may monitor shows why"


def shown_problem(principal: Principal, problem: Problem) -> Problem:
    """Return the problem as this principal may read it."""
    if principal.may(Action.MONITOR):
        return problem
    if problem.type is ProblemType.UNKNOWN_STORE and not principal.sees_every_store:
        problem = replace(problem, fix=HIDDEN_FIX)
    text = _INSIDE.get(problem.type)
    if text is not None:
        problem = replace(problem, detail=text, where="", fix=_ASK)
    return replace(problem, extra=_without_details(problem.extra)) if problem.extra else problem


def shown_batch(principal: Principal, body: bytes) -> bytes:
    """Return the answer to a batch as this principal may read it."""
    if principal.may(Action.MONITOR) or not any(mark in body for mark in _MARKS):
        return body
    answer = orjson.loads(body)
    answer["results"] = [each if "found" in each else _shown_item(each) for each in answer["results"]]
    return orjson.dumps(answer, option=orjson.OPT_APPEND_NEWLINE)


def _shown_item(item: Mapping[str, Any]) -> dict[str, Any]:
    shown = _without_details(item)
    text = _INSIDE_BY_SLUG.get(shown.get("type", ""))
    if text is not None:
        shown.pop("where", None)
        shown |= {"detail": text, "fix": _ASK}
    return shown


def _without_details(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return members of a problem, without nodes' messages, which may name files."""
    candidates = members.get("candidates")
    if not isinstance(candidates, list):
        return dict(members)
    shown = [{name: value for name, value in each.items() if name != "detail"} for each in candidates]
    return {**members, "candidates": shown}


def shown_status(principal: Principal, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a probe: whether, and for principals that may monitor also why."""
    if principal.may(Action.MONITOR):
        return dict(document)
    return {name: _without_reason(value) for name, value in document.items()}


def _without_reason(value: object) -> object:
    if isinstance(value, list):
        return [_HIDDEN] if value else []
    return _HIDDEN if isinstance(value, str) else value


def shown_stores(
    principal: Principal, described: Iterable[Mapping[str, Any]], not_served: Sequence[Mapping[str, Any]]
) -> dict[str, object]:
    """Return the document of `GET /v1/stores`; unserved stores, often nameless, only to principals that see all."""
    return {
        "stores": [each for each in described if principal.sees(each["store"])],
        "not_served": list(not_served) if principal.sees_every_store else [],
    }


def require_key(authorization: Authorization, key: Mapping[str, object]) -> None:
    """Raise the problem of a key that was not granted."""
    if not authorization.keys.allows(key):
        raise ProblemError(forbidden_key())


def require_printed_key(keys: KeyScope, printed: bytes) -> None:
    """Raise the same problem for a key given as its JSON."""
    if keys.prefixes is not None and not keys.allows(orjson.loads(printed)):
        raise ProblemError(forbidden_key())
