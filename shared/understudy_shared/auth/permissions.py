"""The right that a request needs, by its decoded route; whether a principal has it; and what it sees (pure).

The path is split first, and then each segment is decoded, as in all later code. A path that a framework might read in
another way is refused before any decision. A route that is not in the table needs `admin`, so a new call is closed
until it gets a line here; `tests/contract/shared/auth/test_access_matrix.py` requires that line.

A principal without the right to monitor sees no file paths, no names of other stores and no internal reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any, NamedTuple

import orjson

from understudy_shared.auth.principals import Action, Authorization, KeyScope, Principal
from understudy_shared.auth.rates import Limited
from understudy_shared.http.lookup_requests import unknown_path
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.http.target import (
    LISTS_OF_APPLICATIONS,
    application_target,
    named_store,
    refuse_unroutable,
    split_path,
    unknown_application,
)
from understudy_shared.tls.trouble import TlsTrouble

_READING = frozenset(("GET", "HEAD"))


class NeedKind(Enum):
    """The kind of a need."""

    NOTHING = auto()
    """A need of any client."""
    IDENTITY = auto()
    """A need of any client with a credential; the answer shows what it may see."""
    STORE = auto()
    APPLICATION = auto()
    """A need of any client that sees the application, and may do the action there if there is one."""
    SERVICE = auto()
    OVERVIEW = auto()
    """A need of any client that may monitor the service, or an application of a fleet; the answer shows only these."""
    PEER = auto()
    """A need of another service of the application."""
    UNLISTED = auto()


class Need(NamedTuple):
    """The need of a route. A `STORE` without an action must only be visible. `peers`: other services of the application
    are allowed, too.

    `store` is the name of the store, or of the application.
    """

    kind: NeedKind
    action: Action | None = None
    store: str = ""
    peers: bool = False


_NOTHING, _IDENTITY, _UNLISTED = Need(NeedKind.NOTHING), Need(NeedKind.IDENTITY), Need(NeedKind.UNLISTED)
_OVERVIEW = Need(NeedKind.OVERVIEW)
_MONITOR, _ADMIN = Need(NeedKind.SERVICE, Action.MONITOR), Need(NeedKind.SERVICE, Action.ADMIN)


def need_of(method: str, raw_path: bytes) -> Need:
    """Return the need of a request within its application. Raises a problem if the path is ambiguous, or names an
    application within another.
    """
    refuse_unroutable(raw_path)
    if raw_path.startswith(b"//"):
        return _UNLISTED
    named, inner = application_target(raw_path)
    need = _of_a_path(method, inner)
    if named is None:
        return need
    if inner.startswith(LISTS_OF_APPLICATIONS) or application_target(inner)[0] is not None:
        raise ProblemError(unknown_path(raw_path))
    return _IDENTITY if need.kind is NeedKind.NOTHING else need  # else strangers could guess names of applications


def _of_a_path(method: str, raw_path: bytes) -> Need:
    match split_path(raw_path):
        case ["v1", "applications"]:
            return _IDENTITY
        case ["v1", "applications", name]:
            return Need(NeedKind.APPLICATION, None, name)
        case ["v1", "stores", store, *call]:
            return _of_a_store(store, call)
        case ["admin", *rest]:
            return _of_admin(method, rest)
        case ["internal", *_]:
            return Need(NeedKind.PEER)
        case ["livez"] | ["healthz"] | ["readyz"] | [""]:
            return _NOTHING
        case ["openapi.json"] | ["docs"] | ["v1", "stores"] | ["v1", "read"] | ["v1", "snapshots", *_]:
            return _IDENTITY
        case ["metrics"]:
            return _MONITOR
        case _:
            return _UNLISTED


def _of_a_store(store: str, call: list[str]) -> Need:
    match call:
        case []:
            name, ending = named_store(store)
            return Need(NeedKind.STORE, Action.EXPORT if ending else None, name)
        case ["keys" | "lookup" | "history" | "metadata", *_]:
            return Need(NeedKind.STORE, Action.POINT, store)
        case ["scan" | "count" | "windows", *_]:
            return Need(NeedKind.STORE, Action.SCAN, store)
        case ["export" | "changes", *_]:
            return Need(NeedKind.STORE, Action.EXPORT, store)
        case ["watch", *_]:
            return Need(NeedKind.STORE, Action.WATCH, store)
        case _:
            return _UNLISTED


def _of_admin(method: str, rest: list[str]) -> Need:
    match rest:
        case [] | ["login"] | ["logout"] | ["static" | "runbooks", *_]:
            return _NOTHING
        case [""] | ["v1", "applications"] if method in _READING:
            return _OVERVIEW
        case ["v1", "applications", name] if method == "DELETE":
            return Need(NeedKind.APPLICATION, Action.ADMIN, name, peers=True)
        case ["v1", "drain"]:
            return Need(NeedKind.SERVICE, Action.ADMIN, peers=True)
        case _:
            return _MONITOR if method in _READING else _ADMIN


def granted(principal: Principal, need: Need, raw_path: bytes) -> Authorization | Problem:
    """Return the grant of a principal for this need, or the problem that it has no right.

    For a store that is hidden from the principal, the answer is the same as for one that does not exist.
    """
    match need:
        case Need(NeedKind.NOTHING | NeedKind.IDENTITY):
            return Authorization(principal)
        case Need(NeedKind.STORE, action, store):
            return granted_in(principal, store, action)
        case Need(NeedKind.APPLICATION, action, name, peers):
            if not principal.sees_application(name):
                return unknown_application(name)
            there = principal.within(name)
            is_allowed = action is None or there.may(action) or (peers and principal.is_peer)
            return _granted_if(is_allowed, there, f"needs the action {action}")
        case Need(NeedKind.OVERVIEW):
            is_allowed = principal.may_somewhere(Action.MONITOR)
            return _granted_if(is_allowed, principal, f"needs the action {Action.MONITOR}")
        case Need(NeedKind.SERVICE, Action() as action, _, peers):
            is_allowed = principal.may(action) or (peers and principal.is_peer)
            return _granted_if(is_allowed, principal, f"needs the action {action}")
        case Need(NeedKind.PEER):
            return _granted_if(principal.is_peer, principal, "is for the nodes and routers of this application")
        case _:
            return Authorization(principal) if principal.may(Action.ADMIN) else unknown_path(raw_path)


def _granted_if(is_allowed: bool, principal: Principal, needs: str) -> Authorization | Problem:
    return Authorization(principal) if is_allowed else _forbidden(needs)


def granted_in(principal: Principal, store: str, action: Action | None) -> Authorization | Problem:
    """Return the grant of a principal in a store, or the problem that it has no right."""
    if not principal.sees(store):
        return hidden_store(store)
    if action is None:
        return Authorization(principal)
    keys = principal.keys_of(store, action)
    if keys is None:
        return _forbidden(f"needs the action {action} on the store {store!r}")
    return Authorization(principal, keys)


def hidden_store(store: str) -> Problem:
    """Return the problem for a store that the principal may not see, and for one that does not exist."""
    return Problem(ProblemType.UNKNOWN_STORE, f"there is no store {store!r}", "path", HIDDEN_FIX)


HIDDEN_FIX = "GET /v1/stores lists the stores that your credential shows"


def forbidden_key() -> Problem:
    """Return the problem for a key outside of the credential's grant; its existence was not checked."""
    return Problem(
        ProblemType.FORBIDDEN,
        "the credential does not cover this key",
        "key",
        "Ask for a key that begins as your grant says, or have the grant changed",
    )


def no_peer(trouble: TlsTrouble) -> Problem:
    """Return the problem for an internal call on a connection whose certificate is not a peer's."""
    return Problem(
        ProblemType.FORBIDDEN,
        f"this call is for the routers and nodes of this application: {trouble.why}",
        "the certificate of the connection",
        "Connect with the certificate of a router or node, signed by the authority of its --peer-ca-file",
    )


def rate_limited(limited: Limited, wait_s: int) -> Problem:
    """Return the problem for a principal that sends too many requests, or an application that gets too many."""
    is_of_principal = limited is Limited.PRINCIPAL
    return Problem(
        ProblemType.RATE_LIMITED,
        f"this principal asks {_TOO_OFTEN}" if is_of_principal else f"this application is asked {_TOO_OFTEN}",
        "header Authorization" if is_of_principal else "path",
        f"Retry after {wait_s} s; ask for many keys in one batch",
        retry_after_s=wait_s,
    )


_TOO_OFTEN = "more often than the service's limits allow"


def _forbidden(what: str) -> Problem:
    return Problem(
        ProblemType.FORBIDDEN,
        f"this call {what}, which your credential does not have",
        "header Authorization",
        "Use a key whose role has it; the operator gives roles to keys in the file of credentials",
    )


_INSIDE = {
    ProblemType.STORE_ERROR: "the state of this key could not be read",
    ProblemType.NOT_INITIALISED: "this service is not ready yet",
    ProblemType.INTERNAL: "the request failed by a bug",
}
"""Problems whose texts may name files, hosts or code, with the texts that replace them."""

_INSIDE_BY_SLUG = {problem.slug: text for problem, text in _INSIDE.items()}

_MARKS = (b'"candidates"', *(b'"%b"' % slug.encode() for slug in _INSIDE_BY_SLUG))
"""Marks in the answer to a batch. If it has none of them, it has nothing to hide."""

_ASK = "Retry; the service's log, and a credential that may monitor, show why"
_HIDDEN = "a credential that may monitor shows why"


def shown_problem(principal: Principal, problem: Problem) -> Problem:
    """Return the problem with only the details that this principal may see."""
    if principal.may(Action.MONITOR):
        return problem
    if problem.type is ProblemType.UNKNOWN_STORE and not principal.sees_every_store:
        problem = replace(problem, fix=HIDDEN_FIX)
    text = _INSIDE.get(problem.type)
    if text is not None:
        problem = replace(problem, detail=text, where="", fix=_ASK)
    return replace(problem, extra=_without_details(problem.extra)) if problem.extra else problem


def shown_batch(principal: Principal, body: bytes) -> bytes:
    """Return the answer to a batch with only the details that this principal may see."""
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
    """Return the document of a probe. Only principals that may monitor see the reasons."""
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
    """Return the document of `GET /v1/stores`. Unserved stores often have no name, so only principals that see all
    stores see them.
    """
    return {
        "stores": [each for each in described if principal.sees(each["store"])],
        "not_served": list(not_served) if principal.sees_every_store else [],
    }


def require_key(authorization: Authorization, key: Mapping[str, object]) -> None:
    """Raise a problem if a key is not granted."""
    if not authorization.keys.allows(key):
        raise ProblemError(forbidden_key())


def require_printed_key(keys: KeyScope, printed: bytes) -> None:
    """Raise the same problem for a key given as its JSON."""
    if keys.prefixes is not None and not keys.allows(orjson.loads(printed)):
        raise ProblemError(forbidden_key())
