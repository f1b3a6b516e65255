"""The request for a snapshot lease, from a JSON object (pure): the same at nodes and routers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from understudy_shared.base.texts import clipped
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.reads.bound_parsing import VERSION_PARAMETERS
from understudy_shared.reads.bounds import WAIT_WITH_POSITION_MS
from understudy_shared.reads.tokens import DEFAULT_TTL_S, MAX_TTL_S

MAX_LEASED_STORES: Final = 64
"""Limit on the stores that a request names."""

_OF_THE_BOUND: Final = ("min_position", "wait_ms", *VERSION_PARAMETERS)
_MEMBERS: Final = frozenset(("stores", "ttl_s", *_OF_THE_BOUND))
_FORM: Final = 'Send for example {"ttl_s": 60}, or {"version": 12, "stores": ["a"]}'


class SnapshotRequest(NamedTuple):
    """A request. `stores` is None where it names no store. `params` name the version, or say what is waited for."""

    stores: tuple[str, ...] | None
    ttl_s: int
    params: Mapping[str, object]


def parse_snapshot_request(body: bytes) -> SnapshotRequest:
    """Parse a request; an empty body asks for the newest version. Raises a bad-request problem."""
    try:
        given = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as error:
        raise _bad(f"the body is not JSON: {error}", "body") from None
    if not isinstance(given, dict):
        raise _bad("the body is not a JSON object", "body")
    members = {name: value for name, value in given.items() if value is not None}
    unknown = sorted(given.keys() - _MEMBERS)
    if unknown:
        raise _bad(f"the member {clipped(unknown[0])} is unknown", "body", f"Known are: {', '.join(sorted(_MEMBERS))}")
    params = {name: members[name] for name in _OF_THE_BOUND if name in members}
    params.setdefault("wait_ms", WAIT_WITH_POSITION_MS)
    return SnapshotRequest(_stores(members), _ttl_s(members), params)


def _stores(members: Mapping[str, Any]) -> tuple[str, ...] | None:
    stores = members.get("stores")
    if stores is None:
        return None
    is_list = isinstance(stores, list) and 0 < len(stores) <= MAX_LEASED_STORES
    if is_list and all(isinstance(each, str) for each in stores):
        return tuple(dict.fromkeys(stores))
    what = f"stores is {clipped(stores)}, not a list of 1 to {MAX_LEASED_STORES} names"
    raise _bad(what, "stores", "Leave it out for all stores")


def _ttl_s(members: Mapping[str, Any]) -> int:
    ttl_s = members.get("ttl_s", DEFAULT_TTL_S)
    if isinstance(ttl_s, float) and ttl_s.is_integer():  # some JSON writers write every number as 5.0
        ttl_s = int(ttl_s)
    if type(ttl_s) is int and 1 <= ttl_s <= MAX_TTL_S:
        return ttl_s
    what = f"ttl_s={clipped(ttl_s)} is not a whole number of seconds from 1 to {MAX_TTL_S}"
    raise _bad(what, "ttl_s", "Each use of the snapshot renews it, so a short time will do")


def _bad(what: str, where: str, fix: str = _FORM) -> ProblemError:
    return ProblemError(Problem(ProblemType.BAD_REQUEST, what, where=where, fix=fix))
