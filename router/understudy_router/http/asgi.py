"""The hot path: lookups as plain ASGI in front of the FastAPI application, which serves everything else.

Nothing here decides anything: `Reads` parses, `Forwarder` asks, this sends. A reader that leaves while it waits for
long is noticed by the `Forwarder`, and counted here as cancelled: there is no reader to answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.forward import Forwarder
from understudy_router.forwarding.read import ReaderLeftError, Result
from understudy_router.http.reads import Reads, keyed
from understudy_shared.bounds import Bound
from understudy_shared.errors import UnderstudyError
from understudy_shared.hop import FOUND, HopKey
from understudy_shared.http.edge import (
    JSON_TYPE,
    App,
    Receive,
    Scope,
    Send,
    bug,
    not_allowed,
    read_body,
    send_problem,
    send_reply,
    without_body,
)
from understudy_shared.http.lookup_requests import batch_longs, longs_as_text, parse_batch
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.http.target import split_path

PARSE_SLICE_KEYS = 200
"""Keys parsed and hashed between two turns of the event loop: about 2 ms."""

_PREFIX = b"/v1/stores/"
_CALLS = (b"keys", b"lookup")


class LookupsFirst:
    """ASGI application. `requests` counts by (operation, outcome) for the metrics."""

    def __init__(self, app: App, reads: Reads, forwarder: Forwarder, *, max_in_flight: int) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.in_flight = 0
        self._app = app
        self._reads = reads
        self._forwarder = forwarder
        self._max_in_flight = max_in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw_path: bytes = scope["raw_path"]
            if raw_path.startswith(_PREFIX):
                call = raw_path[len(_PREFIX) :].partition(b"/")[2]
                if call.startswith(b"keys/") or call in _CALLS:
                    if scope["method"] == "GET":
                        return await self._lookup(raw_path, scope["query_string"], receive, send)
                    if scope["method"] == "HEAD":
                        return await self._lookup(raw_path, scope["query_string"], receive, without_body(send))
                    if scope["method"] == "POST" and call == b"lookup":
                        return await self._batch(raw_path, scope["query_string"], receive, send)
                    allow = "GET, HEAD, POST" if call == b"lookup" else "GET, HEAD"
                    return await self._refuse("lookup", not_allowed(scope["method"], allow), send)
        return await self._app(scope, receive, send)

    async def _lookup(self, raw_path: bytes, query: bytes, receive: Receive, send: Send) -> None:
        self.in_flight += 1
        try:
            self._refuse_one_too_many()
            request = self._reads.parse(raw_path, query)
            result = await self._forwarder.look_up(request.route, request.bound, request.keys, receive)
        except UnderstudyError as error:
            result = problem_of(error)
        except ReaderLeftError:
            self.requests["lookup", "cancelled"] += 1
            return None
        except Exception as error:
            result = bug(error)
        finally:
            self.in_flight -= 1
        if isinstance(result, Problem):
            return await self._refuse("lookup", result, send)
        body = request.head + result.body
        if request.longs_as_text:
            body = longs_as_text(body)
        if result.kind == FOUND:
            self.requests["lookup", "found"] += 1
            return await send_reply(send, 200, body, JSON_TYPE)
        self.requests["lookup", "absent"] += 1
        return await send_reply(send, 404, body, JSON_TYPE)

    async def _batch(self, raw_path: bytes, query: bytes, receive: Receive, send: Send) -> None:
        self.in_flight += 1
        try:
            self._refuse_one_too_many()
            longs = batch_longs(query)
            body = await self._answer_batch(raw_path, receive)
            if longs:
                body = longs_as_text(body)
        except UnderstudyError as error:
            return await self._refuse("batch", problem_of(error), send)
        except ReaderLeftError:
            self.requests["batch", "cancelled"] += 1
            return None
        except Exception as error:
            return await self._refuse("batch", bug(error), send)
        finally:
            self.in_flight -= 1
        self.requests["batch", "answered"] += 1
        return await send_reply(send, 200, body, JSON_TYPE)

    def _refuse_one_too_many(self) -> None:
        """For a request that was counted in."""
        if self.in_flight > self._max_in_flight:
            detail = f"{self._max_in_flight} requests are in flight"
            raise ProblemError(Problem(ProblemType.OVERLOADED, detail, fix="Retry after a second"))

    async def _answer_batch(self, raw_path: bytes, receive: Receive) -> bytes:
        match split_path(raw_path):
            case ["v1", "stores", name, "lookup"]:
                route = self._reads.route(name)
            case _:
                raise ProblemError(Problem(ProblemType.UNKNOWN_PATH, "batches go to /v1/stores/{store}/lookup"))
        keys, params = parse_batch(await read_body(receive))
        parsed = await parsed_keys(route, keys, self._reads.max_key_bytes)
        results = await batch_results(self._forwarder, route, self._reads.bound(route, params), parsed, receive)
        return b'{"results":[' + b",".join(results) + b"]}\n"

    async def _refuse(self, operation: str, problem: Problem, send: Send) -> None:
        self.requests[operation, problem.type.slug] += 1
        await send_problem(send, problem)


Parsed = tuple[HopKey, bytes] | Problem
"""A key of a batch and the beginning of its answer; or why it is none."""


async def parsed_keys(route: StoreRoute, keys: Sequence[object], max_key_bytes: int) -> list[Parsed]:
    """The keys of a batch, parsed, encoded and placed, a bounded slice at a time."""
    parsed: list[Parsed] = []
    for start in range(0, len(keys), PARSE_SLICE_KEYS):
        parsed += [_parsed(route, key, max_key_bytes) for key in keys[start : start + PARSE_SLICE_KEYS]]
        await asyncio.sleep(0)
    return parsed


async def batch_results(
    forwarder: Forwarder, route: StoreRoute, bound: Bound, parsed: Sequence[Parsed], receive: Receive
) -> list[bytes]:
    """The results of a batch as JSON objects, in the order of its keys; a key that does not parse has its problem as
    result.
    """
    asked = [item[0] for item in parsed if not isinstance(item, Problem)]
    answers = iter(await forwarder.look_up_many(route, bound, asked, receive) if asked else ())
    return [item.body().rstrip() if isinstance(item, Problem) else _result(item[1], next(answers)) for item in parsed]


def _parsed(route: StoreRoute, key: object, max_key_bytes: int) -> Parsed:
    try:
        return keyed(route, route.codec.parse_json(key), max_key_bytes)
    except UnderstudyError as error:
        return problem_of(error)


def _result(head: bytes, result: Result) -> bytes:
    if isinstance(result, Problem):
        return result.body().rstrip()
    return b'{"status":%d,%b%b' % (200 if result.kind == FOUND else 404, head[1:], result.body.rstrip())
