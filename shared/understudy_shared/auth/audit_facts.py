"""The facts of a request in the audit log (pure): its route, its store, and a mark of its key, never the key."""

from __future__ import annotations

import hmac
from typing import NamedTuple

from understudy_shared.auth.principals import ANONYMOUS, ANYBODY, Principal
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.texts import printable
from understudy_shared.http.target import (
    application_name,
    application_target,
    parse_query,
    refuse_unroutable,
    split_path,
)

MAX_SHOWN_CHARS = 200
"""Limit on the characters of a path or a name in a line, which so has a bounded length."""

_CALLS = frozenset(("keys", "lookup", "history", "metadata", "scan", "count", "export", "watch"))
_FIXED = frozenset(("livez", "healthz", "readyz", "metrics", "openapi.json", "docs"))
UNKNOWN_ROUTE = "unknown"


class Asked(NamedTuple):
    """The subject of a request. `key` is its key as it was sent: it goes into no line. `application`: if the path names
    it.
    """

    route: str
    store: str = ""
    key: str = ""
    application: str = ""


def asked_of(raw_path: bytes, query: bytes = b"") -> Asked:
    """Read a path. An unknown path is not shown, because it may hold a key."""
    try:
        refuse_unroutable(raw_path)
        named, inner = application_target(raw_path)
        if named is not None:
            return asked_of(inner, query)._replace(application=shown(application_name(named)))
        match split_path(raw_path):
            case ["v1", "stores" | "read" as call]:
                return Asked(f"/v1/{call}")
            case ["v1", "stores", store]:
                return Asked("/v1/stores/{store}", shown(store))
            case ["v1", "stores", store, call, *key] if call in _CALLS:
                rest = "/{key}" if key else ""
                return Asked(f"/v1/stores/{{store}}/{call}{rest}", shown(store), "/".join(key) or _key_in(query))
            case ["admin", *rest]:
                return Asked(shown("/".join(["/admin", *rest])))
            case ["internal", "v1", call, *_]:
                return Asked(f"/internal/v1/{shown(call)[:40]}")
            case [name] if name in _FIXED:
                return Asked(f"/{name}")
            case _:
                return Asked(UNKNOWN_ROUTE)
    except UnderstudyError:
        return Asked(UNKNOWN_ROUTE)


def _key_in(query: bytes) -> str:
    try:
        return parse_query(query).get("key", "")
    except UnderstudyError:
        return ""


def mark_of(secret: bytes, asked: Asked) -> str:
    """Return the mark of a key: equal for equal keys of a store, and of no use without the secret."""
    said = f"{asked.store}\0{asked.key}".encode("utf-8", "surrogatepass")
    return hmac.digest(secret, said, "sha256")[:16].hex()


def shown(text: str) -> str:
    """Make a text that a client wrote fit for a line."""
    return printable(text[:MAX_SHOWN_CHARS])


def name_of(principal: Principal) -> str:
    return "anonymous" if principal in (ANONYMOUS, ANYBODY) else shown(principal.name)
