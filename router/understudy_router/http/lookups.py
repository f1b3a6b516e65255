"""Lookups and batches of a router: `Reads` parses, `Forwarder` asks the nodes, this replies.

A reader that leaves while it waits for long is noticed by the `Forwarder`, and counted here as cancelled: there is no
reader to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.forward import Forwarder
from understudy_router.forwarding.read import Reader, Result
from understudy_router.http.reads import Reads, Request, keyed
from understudy_shared.bounds import Bound
from understudy_shared.errors import UnderstudyError
from understudy_shared.hop import FOUND, HopKey
from understudy_shared.http.direct import AsgiExchange, Exchange
from understudy_shared.http.edge import App, Receive, bug, read_body
from understudy_shared.http.lookup_requests import longs_as_text, parse_batch
from understudy_shared.http.lookups import LookupsFirst
from understudy_shared.http.problems import Problem, problem_of

PARSE_SLICE_KEYS = 200
"""Keys parsed and hashed between two turns of the event loop: about 2 ms."""


class RouterLookups(LookupsFirst):
    """Answers by asking the nodes."""

    def __init__(self, app: App, reads: Reads, forwarder: Forwarder, *, max_in_flight: int) -> None:
        super().__init__(app, max_in_flight=max_in_flight)
        self._reads = reads
        self._forwarder = forwarder

    def answer(self, target: bytes, exchange: Exchange) -> None:
        request = self._reads.parse(target)
        self.begin()
        done = partial(self._done, request, exchange)
        try:
            self._forwarder.look_up(request.route, request.bound, request.keys, exchange, done)
        except Exception as error:
            done(bug(error))

    def _done(self, request: Request, exchange: Exchange, result: Result | None) -> None:
        self.in_flight -= 1
        try:
            self._reply(request, exchange, result)
        except Exception as error:
            self.reply_problem(exchange, bug(error))

    def _reply(self, request: Request, exchange: Exchange, result: Result | None) -> None:
        if result is None:
            self.requests["lookup", "cancelled"] += 1
        elif isinstance(result, Problem):
            self.reply_problem(exchange, result)
        else:
            body = request.head + result[1]
            if request.longs_as_text:
                body = longs_as_text(body)
            if result[0] == FOUND:
                self.reply_found(exchange, body)
            else:
                self.reply_absent(exchange, body)

    async def batch_results(self, store: str, receive: Receive) -> list[bytes]:
        route = self._reads.route(store)
        keys, params = parse_batch(await read_body(receive))
        parsed = await parsed_keys(route, keys, self._reads.max_key_bytes)
        bound = self._reads.bound(route, params)
        return await batch_results(self._forwarder, route, bound, parsed, AsgiExchange(receive))


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
    forwarder: Forwarder, route: StoreRoute, bound: Bound, parsed: Sequence[Parsed], reader: Reader
) -> list[bytes]:
    """The results of a batch as JSON objects, in the order of its keys; a key that does not parse has its problem as
    result.
    """
    asked = [item[0] for item in parsed if not isinstance(item, Problem)]
    answers = iter(await forwarder.look_up_many(route, bound, asked, reader) if asked else ())
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
