"""What services accept as bounds beyond the types in their document, in which generators of clients need one type each.

Numbers and booleans are accepted as texts, booleans in the words of Python and SQL, too, and `none` takes back the
default of the store.
"""

from __future__ import annotations

from typing import Any

from understudy_shared.reads.bounds import MAX_WAIT_MS

Json = dict[str, Any]
_NO_BOUNDS = ("compact", "estimate_stores")
"""Booleans that have no default of a store, so that `none` means nothing."""
_TRUTHS = ["true", "True", "TRUE", "1", "false", "False", "FALSE", "0"]
_AS_TEXT = {
    "max_lag": "[0-9]{1,18}",
    "max_staleness_ms": "[0-9]{1,18}",
    "wait_ms": f"[0-9]{{1,4}}|[12][0-9]{{4}}|{MAX_WAIT_MS}",
    "require_active": "|".join(_TRUTHS),
    "limit": "0{0,15}([1-9][0-9]{0,2}|1000)",
    "include_expired": "|".join(_TRUTHS),
}


def in_a_body(name: str, described: Json) -> Json:
    """All that is accepted as a bound of a batch."""
    if name not in _AS_TEXT:
        return described
    return {"anyOf": [described, {"type": "string", "pattern": f"^({_AS_TEXT[name]}|none)$"}]}


def in_a_query(name: str, described: Json) -> Json:
    """All that is accepted as a parameter."""
    if described["type"] == "boolean":
        return {"anyOf": [described, {"type": "string", "enum": [*_TRUTHS, *([] if name in _NO_BOUNDS else ["none"])]}]}
    if name in _AS_TEXT:
        return {"anyOf": [described, {"type": "string", "const": "none"}]}
    return described
