"""Reads of several stores at one version, and leases of a version (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import orjson

from understudy.client.core.call import call, require
from understudy.client.core.exchange import Request, Steps
from understudy.client.core.lookups import MAX_BATCH_KEYS, check_keys
from understudy.client.core.reader import Reader, StoreReader
from understudy.client.core.values import bound_members, key_json, wait_s
from understudy.client.errors import UsageError, problem_error
from understudy.client.pages import Reads
from understudy.client.results import Result

_OF_KEYS = ("limit", "include_expired")
MAX_STORES = 64


def read(
    reader: Reader, keys: Mapping[str, Sequence[Any]], bounds: Mapping[str, Any], deadline_s: float
) -> Steps[Reads]:
    """Look keys of several stores up at one version."""
    number = sum(map(len, keys.values()))
    if not keys or len(keys) > MAX_STORES or number > MAX_BATCH_KEYS:
        what = f"{number} keys of {len(keys)} stores are asked for at one version"
        fix = f"Ask for at most {MAX_BATCH_KEYS} of 1 to {MAX_STORES} stores; snapshot() reads more at one version"
        raise UsageError(what, where="keys", fix=fix)
    given = reader.bounds(bounds)
    of_keys = {name: given.members[name] for name in _OF_KEYS if name in given.members}
    reads: list[dict[str, Any]] = [
        {"store": store, "keys": [key_json(key) for key in wanted], "bounds": of_keys} for store, wanted in keys.items()
    ]
    named = {name: value for name, value in given.members.items() if name not in of_keys}
    body = orjson.dumps({"reads": reads, **named})
    answer = yield from reader.read(Request("POST", "/v1/read", body, given.wait_s), given.session, deadline_s)
    found = answer.get("reads")
    require(isinstance(found, list) and [each.get("store") for each in found] == [*keys], "it has other stores")
    require(all(len(each["results"]) == len(keys[each["store"]]) for each in found), "it has other keys")
    for asked, each in zip(reads, found, strict=True):
        yield from check_keys(StoreReader(reader, each["store"]), asked["keys"], each["results"], deadline_s)
    reader.state.position.observe(answer.get("snapshot"))
    return Reads(answer, {each["store"]: [_result(item) for item in each["results"]] for each in found})


def _result(item: Mapping[str, Any]) -> Result[Any]:
    return Result(item, item, None, None if "found" in item else problem_error(item, item.get("status", 0)))


def lease(
    reader: Reader,
    *,
    stores: Sequence[str] | None,
    ttl: timedelta | None,
    bounds: Mapping[str, Any],
    deadline_s: float,
) -> Steps[Mapping[str, Any]]:
    """Lease one version of all stores, or of those that are named."""
    session = reader.state.position.token if reader.state.settings.session else None
    members = bound_members(bounds, session)
    if stores is not None:
        members["stores"] = [*stores]
    if ttl is not None:
        members["ttl_s"] = round(ttl.total_seconds())
    request = Request("POST", "/v1/snapshots", orjson.dumps(members), wait_s({"min_position": "", **members}))
    answer = yield from reader.read(request, session, deadline_s)
    require("snapshot" in answer and "version" in answer, "it is not a lease")
    reader.state.position.observe(answer.get("position"))
    held: Mapping[str, Any] = answer
    return held


def release(reader: Reader, snapshot: str, deadline_s: float) -> Steps[None]:
    """End a lease before its time."""
    yield from call(reader.state, Request("DELETE", f"/v1/snapshots/{snapshot}"), deadline_s)
