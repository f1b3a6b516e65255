"""The first attempt of each lookup: that of a single key needs no bookkeeping, and nearly every lookup has a single
key.

Everything else is a `Read`, which sends keys to nodes until each is answered or no candidate is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.attempts import Reader
from understudy_router.forwarding.context import ReadContext
from understudy_router.forwarding.read import NO_PROBLEMS, Read
from understudy_router.forwarding.recorded import traced
from understudy_router.forwarding.results import Result, Results
from understudy_router.forwarding.served import StoreReads
from understudy_router.routing.choose import Choice
from understudy_router.transport.node_client import NodeClient
from understudy_router.transport.node_requests import NodeRequest, Reply
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import bug
from understudy_shared.http.problems import Problem, problem_of
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.hop_columns import PROBLEM, HopKey, HopKeys, HopOutcome
from understudy_shared.server.direct import ReaderLeftError

Done = Callable[[Result | None, float], None]
"""A callback that is called on the event loop, once, with a key's result and how long it took in ms; with `None` as the
result when the reader left. It must not raise."""


class KeyLookup(NamedTuple):
    """The lookup of one key: `keys` holds just that; `served` are the counts of its store."""

    route: StoreRoute
    bound: Bound
    keys: tuple[HopKey]
    served: StoreReads


class Forwarder:
    """The entry for lookups: it sends them to nodes, and counts what readers got."""

    def __init__(self, context: ReadContext) -> None:
        self.context = context
        self._clock = context.clock
        self._first_limit_ms = min(context.hop_timeout_ms, context.deadline_ms)
        self._lookups: set[asyncio.Task[None]] = set()

    def look_up(self, asked: KeyLookup, reader: Reader, done: Done) -> None:
        """Look one key up. `done` may be called before this returns."""
        context = self.context
        route, bound, keys, _ = asked
        began_ms = self._clock.monotonic_ms()
        context.budget.asked(1)
        lookup = _SingleLookup(self, asked, reader, done)
        choice = lookup.choice = context.choices.choose(route, keys[0].partition, bound)
        if not choice.order:
            self._finish_later(Read(context, route, bound, keys, reader, began_ms=began_ms), lookup)
            return
        first = choice.order[0]
        client = lookup.client = context.clients.to(first.node_id, first.endpoint)
        request = lookup.request = NodeRequest(
            route, bound, keys, lookup.on_reply, began_ms, began_ms + self._first_limit_ms, first.role == "active"
        )
        if reader.trace is not None:
            request = lookup.request = traced(request, reader.trace, first, client)
        client.submit(request)

    async def look_up_many(
        self,
        route: StoreRoute,
        bound: Bound,
        keys: HopKeys,
        reader: Reader | None = None,
        problems: Mapping[int, Problem] = NO_PROBLEMS,
    ) -> Results:
        """Look many keys up; the keys of a partition go to one node together. A key in `problems`, by its index, has
        NO_PARTITION and is not sent.

        Raises ReaderLeftError when the reader disconnects.
        """
        context, began_ms = self.context, self._clock.monotonic_ms()
        context.budget.asked(len(keys) - len(problems))
        results = await Read(context, route, bound, keys, reader, began_ms=began_ms, problems=problems).run()
        context.served.answered_many(results, bound, context.served.of(route.name))
        return results

    def after_first(self, lookup: _SingleLookup, reply: Reply) -> None:
        """Go on with a single lookup whose first attempt failed or is delayed."""
        request = lookup.request
        began_ms = request.asked_ms
        read = Read(self.context, request.route, request.bound, request.keys, lookup.reader, began_ms=began_ms)
        read.go_on(lookup.choice, lookup.client, request, reply)
        self._finish_later(read, lookup)

    def _finish_later(self, read: Read, lookup: _SingleLookup) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(read, lookup), name="a lookup")
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)

    async def _finish(self, read: Read, lookup: _SingleLookup) -> None:
        """Run the read of one key, count its result and report it."""
        asked = lookup.asked
        result: Result | None
        try:
            result = (await read.run())[0]
            if isinstance(result, HopOutcome):
                self.context.served.answered(result, asked.bound, asked.served)
        except ReaderLeftError:
            result = None
        except UnderstudyError as error:
            result = problem_of(error)
        except Exception as error:
            result = bug(error)
        if isinstance(result, Problem):
            asked.served.failed(result)
        lookup.done(result, self._clock.monotonic_ms() - read.began_ms)


class _SingleLookup:
    """The first attempt of a single key. An answer ends it; the rest of the work is done in a `Read`."""

    __slots__ = ("asked", "choice", "client", "done", "forwarder", "reader", "request")

    choice: Choice
    client: NodeClient
    request: NodeRequest

    def __init__(self, forwarder: Forwarder, asked: KeyLookup, reader: Reader, done: Done) -> None:
        self.forwarder = forwarder
        self.asked = asked
        self.reader = reader
        self.done = done

    def on_reply(self, reply: Reply) -> None:
        outcome = reply[0]
        try:
            if type(outcome) is HopOutcome and outcome[0] != PROBLEM:
                asked = self.asked
                self.forwarder.context.served.answered(outcome, asked.bound, asked.served)
                self.done(outcome, self.client.heard_ms - self.request.asked_ms)  # the reply came just now
            else:
                self.forwarder.after_first(self, reply)
        except Exception as error:
            self.done(bug(error), 0.0)
