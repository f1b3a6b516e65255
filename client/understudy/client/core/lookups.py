"""Reads of one key, of many, and of several stores at one version; leases, lists of stores, and the lag (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import repeat
from operator import itemgetter
from typing import Any

import orjson

from understudy.client.core.call import call, require
from understudy.client.core.exchange import Request, Steps
from understudy.client.core.reader import BoundStore, Given, Reader
from understudy.client.core.values import (
    MAX_TARGET_CHARS,
    are_plain,
    bound_members,
    json_of,
    key_json,
    key_target,
    keys_json,
    parts_of,
    query_of,
    wait_s,
)
from understudy.client.errors import (
    OverloadedError,
    UnavailableError,
    UnreachableError,
    UsageError,
    WrongKeyError,
    problem_error,
)
from understudy.client.pages import Reads
from understudy.client.results import Binding, Result, StoreInfo, Stores, errors_of

MAX_BATCH_KEYS = 1000
"""Keys of one request: the server's limit."""

_KEY = itemgetter("key")
_RETRYABLE = (429, 502, 503, 504)


def get(store: BoundStore, parts: Sequence[Any], bounds: Mapping[str, Any], deadline_s: float) -> Steps[Result[Any]]:
    """Look one key up."""
    binding: Binding | None = None
    if store.is_bound:
        binding = yield from store.binding(deadline_s)
        parts = store.key(binding, parts)
    reader = store.reader
    given = reader.bounds(bounds)
    if not are_plain(parts):
        parts = yield from store.exact(parts, deadline_s)
    target, has_query = key_target(parts)
    if len(target) > MAX_TARGET_CHARS:
        (result,) = yield from _many(store, [json_of(parts)], given, deadline_s, binding)
        if result.error is not None:
            raise result.error
        return result

    def where(members: Mapping[str, Any]) -> str:
        return f"{store.path}/{target}{query_of(members, begun=has_query) if members else ''}"

    direct = reader.direct
    answer = None
    if direct is not None:
        answer = yield from direct.get(store.name, parts, given.members, where, deadline_s)
    if answer is None:
        request = Request("GET", where(given.members), None, given.wait_s)
        answer = yield from store.read(request, given.session, deadline_s)
        require(
            type(answer.get("found")) is bool and "position" in answer and type(answer.get("key")) is dict,
            "it is not the answer to a lookup",
        )
        if tuple(answer["key"].values()) != parts:  # as most keys are: texts, in a path
            yield from store.check_key(parts, answer["key"], deadline_s)
        reader.state.position.observe(answer["position"])
    return Result(answer, answer, binding)


def get_many(
    store: BoundStore, keys: Sequence[Any], bounds: Mapping[str, Any], deadline_s: float
) -> Steps[list[Result[Any]]]:
    """Look many keys up, a thousand per request. Keys that a server could not read are asked for once more; they keep
    their errors if no server answers that request.
    """
    if "cursor" in bounds:
        raise UsageError(
            "a batch takes no cursor", where="cursor", fix="Ask for the rest of a key by get(..., cursor=)"
        )
    binding = yield from store.binding(deadline_s)
    wanted = keys_json(keys if binding is None else [store.key(binding, [key])[0] for key in keys])
    state, found = store.reader.state, list[Result[Any]]()
    for start in range(0, len(wanted), MAX_BATCH_KEYS):
        given = store.reader.bounds(bounds)
        part = wanted[start : start + MAX_BATCH_KEYS]
        results = yield from _many(store, part, given, deadline_s, binding)
        failed = [at for at, error in errors_of(results) if error.status in _RETRYABLE]
        if failed and state.settings.retries and state.budget.try_spend(1, state.now_s() * 1000):
            try:
                again = yield from _batch(store, [part[at] for at in failed], given, deadline_s, binding)
            except WrongKeyError:
                raise
            except (OverloadedError, UnavailableError, UnreachableError):
                again = [results[at] for at in failed]  # with the errors of the first request
            for at, result in zip(failed, again, strict=True):
                results[at] = result
        found += results
    return found


def _many(
    store: BoundStore, keys: Sequence[Any], given: Given, deadline_s: float, binding: Binding | None
) -> Steps[list[Result[Any]]]:
    """Look up the keys of one request: at their nodes where routing is direct, and the others through a router."""
    direct = store.reader.direct
    if direct is None:
        return (yield from _batch(store, keys, given, deadline_s, binding))

    def batch(some: Sequence[Any], members: Mapping[str, Any], waits_s: float) -> Request:
        return _request(store, some, members, waits_s)

    items = yield from direct.get_many(store.name, keys, given.members, batch, deadline_s)
    made: list[Result[Any]] = [Result(result, read, binding) for result, read in items.values()]
    found = dict(zip(items, made, strict=True))
    if len(found) < len(keys):
        rest = [at for at in range(len(keys)) if at not in found]
        routed = yield from _batch(store, [keys[at] for at in rest], given, deadline_s, binding)
        found.update(zip(rest, routed, strict=True))
    return [found[at] for at in range(len(keys))]


def _request(store: BoundStore, keys: Sequence[Any], members: Mapping[str, Any], waits_s: float) -> Request:
    body = orjson.dumps({"keys": keys, "bounds": members} if members else {"keys": keys})
    return Request("POST", f"{store.path}/lookup?compact=true", body, waits_s)


def _batch(
    store: BoundStore, keys: Sequence[Any], given: Given, deadline_s: float, binding: Binding | None
) -> Steps[list[Result[Any]]]:
    request = _request(store, keys, given.members, given.wait_s)
    answer = yield from store.read(request, given.session, deadline_s)
    reads, items = answer.get("reads"), answer.get("results")
    require(isinstance(reads, list) and isinstance(items, list), "it is not the answer to a batch")
    require({*map(type, reads), *map(type, items)} <= {dict}, "its reads and results are not objects")
    require(len(items) == len(keys), f"it has {len(items)} results for {len(keys)} keys")
    for each in reads:
        store.reader.state.position.observe(each.get("position"))
    yield from check_keys(store, keys, items, deadline_s)
    places = [item.get("read") for item in items]
    if {*map(type, places)} == {int} and min(places) >= 0 and max(places) < len(reads):
        return list(map(Result, items, map(reads.__getitem__, places), repeat(binding)))
    return [result_of(item, reads, binding) for item in items]


def check_keys(store: BoundStore, keys: Sequence[Any], items: Sequence[Any], deadline_s: float) -> Steps[None]:
    """Raise WrongKeyError unless each result is of the key in its place. Problems name no key."""
    if _are_printed(keys, items):
        return
    for key, item in zip(keys, items, strict=True):
        if "found" in item:
            require(type(item.get("key")) is dict, "a result has no key")
            yield from store.check_key(parts_of(key), item["key"], deadline_s)


def _are_printed(keys: Sequence[Any], items: Sequence[Any]) -> bool:
    """Whether all results repeat their keys exactly as they were sent, lists of texts or numbers, as nearly all do."""
    try:
        column, *others = items[0]["key"]
        if others:
            return [[*item["key"].values()] for item in items] == keys
        return [*map(itemgetter(column), map(_KEY, items))] == [key[0] for key in keys]
    except (ValueError, LookupError, TypeError, AttributeError):
        return False  # an object by column, or a problem among the results


def result_of(item: Mapping[str, Any], reads: Sequence[Mapping[str, Any]], binding: Binding | None) -> Result[Any]:
    """Return the result of one key of a compact batch: what was found, or the problem in its place."""
    at = item.get("read")
    if at is None:
        return Result(item, item, binding, problem_error(item, item.get("status", 0)))
    require(type(at) is int and 0 <= at < len(reads), "a result names a read that is not there")
    return Result(item, reads[at], binding)


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
        yield from check_keys(BoundStore(reader, each["store"]), asked["keys"], each["results"], deadline_s)
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


def stores(reader: Reader, deadline_s: float, *, estimate: bool) -> Steps[Stores]:
    """List the stores that can be asked."""
    answer = yield from call(
        reader.state, Request("GET", f"/v1/stores{'?estimate=true' if estimate else ''}"), deadline_s
    )
    found = answer.get("stores")
    require(isinstance(found, list) and all(_is_store(each) for each in found), "it does not list stores")
    return Stores(answer)


def info(store: BoundStore, deadline_s: float) -> Steps[StoreInfo]:
    """Describe one store."""
    answer = yield from store.read(Request("GET", store.path), None, deadline_s)
    require(_is_store(answer), "it describes no store")
    return StoreInfo(answer)


def lag(reader: Reader, store: str | None, deadline_s: float) -> Steps[Mapping[str, Any]]:
    """Report the lag of each replica, as the server's JSON."""
    query = query_of({} if store is None else {"store": store})
    answer = yield from call(reader.state, Request("GET", f"/admin/v1/lag{query}"), deadline_s)
    require("stores" in answer, "it does not report lag")
    report: Mapping[str, Any] = answer
    return report


def _is_store(each: object) -> bool:
    return isinstance(each, dict) and {"store", "kind", "key", "value"} <= each.keys()
