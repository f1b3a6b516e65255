"""Sends lookups to nodes. The first attempt of a single key, which is nearly every lookup, needs no bookkeeping.

Everything else is a `Read`: it sends, hedges, retries and falls back until each key is answered or no candidate is
left. The keys of each partition go to its next candidate, in one request per node. A reply, a failure or a delay
advances only the partitions that it is about. A read ends when each key has a result; attempts still in flight are
cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import NamedTuple

from understudy_router.cluster.candidates import Candidate
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.answer_ages import StoreReads
from understudy_router.forwarding.context import ReadContext
from understudy_router.forwarding.fallback import (
    Rejection,
    ReplicaPlan,
    Result,
    Results,
    Step,
    next_step,
    readers_mistake,
    rejection_by,
    rejection_by_problem,
)
from understudy_router.routing.choose import Choice
from understudy_router.transport.node_client import NodeClient
from understudy_router.transport.node_requests import Delay, NodeRequest, Outcomes, Reply, parts_that_fit
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.cluster.wire import HopFailure, WireError
from understudy_shared.http.edge import bug
from understudy_shared.http.problems import Problem, problem_of
from understudy_shared.questions.lookup.batches import Unsettled, answer_of, at_one_version
from understudy_shared.questions.lookup.hop import (
    NO_PARTITION,
    OPEN,
    PATH,
    PROBLEM,
    HopKey,
    HopKeys,
    HopOutcome,
    HopOutcomes,
    indexes_by_partition,
)
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.tokens import Position
from understudy_shared.server.direct import Exchange, ReaderLeftError
from understudy_shared.telemetry.spans import Attributes, Kind, RecordedTrace, Span, Trace, ids_of


class NodeAttempt:
    """Keys sent to one candidate. `indexes` are their places in the read, `partitions` the partitions they are in."""

    __slots__ = ("candidate", "client", "indexes", "partitions", "request")

    def __init__(self, candidate: Candidate, client: NodeClient, request: NodeRequest, indexes: Sequence[int]) -> None:
        self.candidate = candidate
        self.client = client
        self.request = request
        self.indexes = indexes
        self.partitions = list(dict.fromkeys(HopKeys.of(request.keys).partitions))


class Arrivals:
    """The unprocessed replies of one read, and whether its timer fired or its reader left."""

    def __init__(self, reader: Exchange | None) -> None:
        self._reader = reader
        self._replies: list[tuple[NodeAttempt, Reply]] = []
        self._wake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_time = self._is_left = self._is_watched = False

    def add(self, attempt: NodeAttempt, reply: Reply) -> None:
        """Take in a reply, and wake the read."""
        self._replies.append((attempt, reply))
        self._wake_up()

    async def wait(self) -> tuple[list[tuple[NodeAttempt, Reply]], bool]:
        """Wait for replies or the timer. Return the replies, and whether the timer fired."""
        while not (self._replies or self._is_time or self._is_left):
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        if self._is_left:
            raise ReaderLeftError
        replies, self._replies = self._replies, []
        is_time, self._is_time = self._is_time, False
        return replies, is_time

    def wake_in(self, ms: float) -> None:
        """Make `wait` return after so long at the latest. Of several calls the first counts."""
        self.watch()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ms / 1000, self._time_is_up)

    def watch(self) -> None:
        """Make `wait` raise when the reader disconnects. It may cost a task, so only long reads call it."""
        if self._reader is not None and not self._is_watched:
            self._is_watched = True
            self._reader.when_left(self._reader_left)

    def close(self) -> None:
        """Cancel the timer, and forget the reader."""
        if self._timer is not None:
            self._timer.cancel()
        if self._reader is not None and self._is_watched:
            self._reader.forget()

    def _time_is_up(self) -> None:
        self._timer = None
        self._is_time = True
        self._wake_up()

    def _reader_left(self) -> None:
        self._is_left = True
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class RecordedRequest(NodeRequest):
    """A request to a node, with the span of this attempt. The node's own spans are below it."""

    __slots__ = ("_span",)

    def __init__(self, request: NodeRequest, span: Span) -> None:
        super().__init__(
            request.route,
            request.bound,
            request.keys,
            request.on_reply,
            request.asked_ms,
            request.until_ms,
            request.is_active,
        )
        self.trace = span.trace
        self._span = span

    def finish(self, outcomes: Outcomes) -> None:
        if self.is_wanted:
            self._end(outcomes)
        super().finish(outcomes)

    def drop(self) -> None:
        if self.is_wanted:
            self._span.end(error="cancelled")
        super().drop()

    def _end(self, outcomes: Outcomes) -> None:
        if self.delay is not None:
            self._span.note({"understudy.delay": str(self.delay)})
        if isinstance(outcomes, HopFailure):
            self._span.end(error=str(outcomes.reason))
            return
        problem = next((outcome.body for outcome in outcomes if outcome.kind == PROBLEM), None)
        if problem is not None:
            self._span.note({"understudy.outcome": str(rejection_by_problem(problem).reason)})
        self._span.end()


def traced(request: NodeRequest, trace: Trace, candidate: Candidate, client: NodeClient) -> NodeRequest:
    """Give a request the trace of its reader, and a span of its own where the reader's trace is recorded."""
    if isinstance(trace, RecordedTrace):
        asked: Attributes = {
            "server.address": client.host.host,
            "server.port": client.host.port,
            "understudy.node_id": candidate.node_id,
            "understudy.role": candidate.role,
            "understudy.store": request.route.name,
            "understudy.keys": len(request.keys),
        }
        span = trace.spans.begin("POST", PATH, Kind.CLIENT, trace, asked)
        if span is not None:
            return RecordedRequest(request, span)
    request.trace = trace
    return request


MAX_SPREAD = 10_000
"""Limit on the keys of a read times the partitions that each is asked of: beyond it, keys are read in turns."""

Problems = Mapping[int, Problem]
"""The problems of keys that are not sent, by their index."""


def turns(keys: HopKeys, problems: Problems, partitions: int) -> Iterator[tuple[HopKeys, Problems]]:
    """Yield keys that are read together, each with its problem if it has one."""
    step = max(1, MAX_SPREAD // partitions)
    for start in range(0, len(keys), step):
        own = {at - start: problem for at, problem in problems.items() if start <= at < start + step}
        yield keys[start : start + step], own


def spread(keys: HopKeys, problems: Problems, partitions: int) -> tuple[HopKeys, Problems]:
    """Return the keys once for each partition, the first partition's first. A key with a problem has no partition."""
    count = len(keys)
    places = [NO_PARTITION if at in problems else each for each in range(partitions) for at in range(count)]
    own = {each * count + at: problem for each in range(partitions) for at, problem in problems.items()}
    return HopKeys(places, list(keys.rows) * partitions), own


def gathered(
    store: str, results: Results, partitions: int, problems: Problems
) -> tuple[Results, Mapping[Position, Sequence[int]]]:
    """Return the results of keys that were spread. `problems` are for keys that were not sent.

    Keys that must be asked again at one version stay without a result: return them too, by the position to ask at.
    """
    count = len(results.kinds) // partitions
    found, unsettled = Results(count, problems), dict[Position, list[int]]()
    for at in range(count):
        if at in problems:
            continue
        answer = answer_of(store, [results[each * count + at] for each in range(partitions)])
        if isinstance(answer, Unsettled):
            unsettled.setdefault(answer.oldest, []).append(at)
        elif isinstance(answer, Problem):
            found.refuse((at,), answer)
        else:
            found.keep(at, answer)
    return found, unsettled


Done = Callable[[Result | None, float], None]
"""A callback that is called on the event loop, once, with a key's result and how long it took in ms; with `None` as the
result when the reader left. It must not raise."""


PLAN_AGAIN_MS = 20
"""Milliseconds between two plans of a read that waits for a position: a commit is normally visible within that time."""

RESTORE_WAIT_MS, ASK_AGAIN_MS = 1_000, 50
"""The longest time that a read waits for replicas that open their state, and the time between two attempts, in ms, also
at a replica that opens an older version.
Opening takes a moment, and all replicas of a task open their state at once when the query was rewound."""

NO_PROBLEMS: Mapping[int, Problem] = MappingProxyType({})


class Read:
    """The keys of one reader, a replica plan for each of their partitions, and the attempts in flight.

    `results` are by index of the key; a key of a scattered store is one in each partition, until they are gathered. A
    key with a problem from the beginning has NO_PARTITION, and is never sent.
    """

    def __init__(
        self,
        context: ReadContext,
        route: StoreRoute,
        bound: Bound,
        keys: Sequence[HopKey],
        reader: Exchange | None,
        *,
        began_ms: float,
        problems: Mapping[int, Problem] = NO_PROBLEMS,
    ) -> None:
        self.route = route
        self.bound = bound
        self.keys = HopKeys.of(keys)
        self.began_ms = began_ms
        self.deadline_ms = began_ms + context.deadline_ms + bound.wait_ms
        self.trace = None if reader is None else reader.trace
        if self.keys.partitions.count(NO_PARTITION) != len(problems):
            raise ValueError("a key without a partition and without a problem would wait for ever")
        self._unsent, self._asked, self._reader = problems, self.keys, reader
        if route.codec.is_scattered:
            self.keys, problems = spread(self.keys, problems, route.partitions)
        self.results = Results(len(self.keys), problems)
        self._context = context
        self._plans: dict[int, ReplicaPlan] = {}
        self._again: set[int] = set()
        """The partitions that are planned again in a moment."""
        self._moves: dict[tuple[str, str, int], tuple[Candidate, dict[int, None]]] = {}
        """The next attempts by node id, host and port: the candidate, and its partitions, each once."""
        self._attempts: set[NodeAttempt] = set()
        self._arrivals = Arrivals(reader)

    def go_on(self, choice: Choice, client: NodeClient, request: NodeRequest, reply: Reply) -> None:
        """Take over the one request of a single lookup, which `choice` led to and which got `reply`."""
        self._plans[request.keys[0].partition] = ReplicaPlan(choice)
        attempt = self._begin(choice.order[0], client, request, (0,))
        if request.is_wanted:
            request.on_reply = partial(self._arrivals.add, attempt)
        self._arrivals.add(attempt, reply)

    async def run(self) -> Results:
        """Send until each key has a result. Raises ReaderLeftError when the reader disconnects."""
        results = await self._run()
        if not self.route.codec.is_scattered:
            return results
        results, unsettled = gathered(self.route.name, results, self.route.partitions, self._unsent)
        for position, indexes in unsettled.items():
            again = await self._ask_again(position, indexes)
            for at, index in enumerate(indexes):
                result = again[at]
                if isinstance(result, Problem):
                    results.refuse((index,), result)
                else:
                    results.keep(index, result)
        return results

    async def _ask_again(self, position: Position, indexes: Sequence[int]) -> Results:
        """Ask all partitions for these keys at one version, until the same deadline."""
        bound, keys = at_one_version(position, self.bound), self._asked.at(indexes)
        return await Read(self._context, self.route, bound, keys, self._reader, began_ms=self.began_ms).run()

    async def _run(self) -> Results:
        try:
            if not self._attempts:
                self._plan(self._partitions)
                self._send()
            while self.results.is_open:
                replies, is_time = await self._arrivals.wait()
                if is_time:
                    again, self._again = self._again, set()
                    self._plan(again)
                for attempt, reply in replies:
                    self._on_reply(attempt, reply)
                self._drop_answered()
                self._send()
            return self.results
        finally:
            self._arrivals.close()
            for attempt in self._attempts:
                attempt.client.drop(attempt.request)

    # ---- whom to ask

    def _plan(self, partitions: Iterable[int]) -> None:
        """Make a plan for each of these partitions; for one that has a plan, make a new one from what is known now."""
        for partition in partitions:
            before = self._plans.get(partition)
            if before is not None and (before.is_hopeful or not self._open_keys((partition,))):
                continue
            choice = self._choose(partition)
            plan = self._plans[partition] = ReplicaPlan(choice) if before is None else before.again(choice)
            self._move(plan.next(), partition)

    def _choose(self, partition: int) -> Choice:
        return self._context.choices.choose(self.route, partition, self.bound)

    def _move(self, candidate: Candidate | None, partition: int) -> None:
        """Ask this candidate next for the open keys of a partition."""
        if candidate is None:
            self._no_candidate_left(partition)
            return
        place = (candidate.node_id, candidate.endpoint.host, candidate.endpoint.port)
        self._moves.setdefault(place, (candidate, {}))[1][partition] = None

    def _try_next(self, partition: int, reason: str) -> None:
        """Try the next candidate after a failure or a delay, wait for attempts in flight, or give up."""
        keys = len(self._open_keys((partition,)))
        plan = self._plans[partition]
        is_planned = any(partition in partitions for _, partitions in self._moves.values())
        if not keys or plan.is_hopeful or is_planned:  # an earlier failure of this turn chose already
            return
        context, candidate = self._context, None
        if context.clock.monotonic_ms() < self.deadline_ms:
            if reason == Delay.SILENT:
                plan.reorder(self._choose(partition))
            else:
                plan.renew(self._choose(partition))
            candidate = plan.after(reason, lambda step: context.may_send(step, keys))
            if candidate is None and reason == Delay.SLOW:
                for other in plan.rest:
                    context.clients.probe_if_quiet(other.node_id, other.endpoint)
        self._move(candidate, partition)

    def _no_candidate_left(self, partition: int) -> None:
        """Plan a partition again if time may help, else wait for attempts in flight, else report its problem."""
        plan = self._plans[partition]
        now_ms = self._context.clock.monotonic_ms()
        wait_ms, pause_ms = self.bound.wait_ms, PLAN_AGAIN_MS
        if plan.is_opening:
            wait_ms, pause_ms = self._context.deadline_ms + wait_ms, ASK_AGAIN_MS
        elif plan.is_restoring:
            wait_ms, pause_ms = max(wait_ms, RESTORE_WAIT_MS), ASK_AGAIN_MS
        left_ms = min(self.began_ms + wait_ms, self.deadline_ms) - now_ms
        if not plan.rest and not plan.is_over:
            self._prolong(partition)
        if left_ms > 0 and (plan.may_pass or plan.is_restoring or plan.is_opening):
            self._again.add(partition)
            self._arrivals.wake_in(min(pause_ms, left_ms))
        elif plan.is_over:
            late, took_ms = now_ms >= self.deadline_ms, now_ms - self.began_ms
            problem = plan.refused(self.bound, late=late, after_ms=took_ms)
            self._context.log.unanswered(self._ids(partition), problem, took_ms, now_ms)
            self.results.refuse(self._open_keys((partition,)), problem)

    def _prolong(self, partition: int) -> None:
        """Let attempts in flight for this partition take until the deadline, because no other candidate is left."""
        for attempt in self._attempts:
            if partition in attempt.partitions:
                attempt.request.until_ms = self.deadline_ms

    # ---- attempts

    def _send(self) -> None:
        """Send each next candidate the open keys of its partitions in one request."""
        moves, self._moves = self._moves, {}
        for candidate, partitions in moves.values():
            indexes = self._open_keys(partitions)
            for part in parts_that_fit(self.keys, indexes) if indexes else ():
                self._send_to(candidate, part)

    def _send_to(self, candidate: Candidate, indexes: Sequence[int], *, alone: bool = False) -> None:
        now_ms = self._context.clock.monotonic_ms()
        until_ms = min(now_ms + self._context.hop_timeout_ms, self.deadline_ms)
        is_all = isinstance(indexes, range) and len(indexes) == len(self.keys)
        keys = self.keys if is_all else self.keys.at(indexes)
        client = self._context.clients.to(candidate.node_id, candidate.endpoint)
        request = NodeRequest(self.route, self.bound, keys, None, now_ms, until_ms, candidate.role == "active")
        if self.trace is not None:
            request = traced(request, self.trace, candidate, client)
        request.alone = alone
        attempt = self._begin(candidate, client, request, indexes)
        request.on_reply = partial(self._arrivals.add, attempt)
        client.submit(request)

    def _begin(
        self, candidate: Candidate, client: NodeClient, request: NodeRequest, indexes: Sequence[int]
    ) -> NodeAttempt:
        attempt = NodeAttempt(candidate, client, request, indexes)
        for partition in attempt.partitions:
            self._plans[partition].begin(attempt, candidate)
        self._attempts.add(attempt)
        return attempt

    def _on_reply(self, attempt: NodeAttempt, reply: Reply) -> None:
        """Handle a reply: keep answers, and try another candidate for the rest."""
        if isinstance(reply, Delay):
            self._arrivals.watch()
            for partition in attempt.partitions:
                self._plans[partition].waits(attempt, reply)
                self._try_next(partition, str(reply))
            return
        self._attempts.discard(attempt)
        if self._is_too_large_together(attempt, reply):
            self._halve(attempt)
            return
        failed = self._keep(attempt, reply)
        for partition in attempt.partitions:
            rejection = failed.get(partition)
            if rejection is not None:
                self._plans[partition].ended(attempt, rejection)
                self._count(partition, attempt.candidate, rejection)
                self._try_next(partition, rejection.reason)
            else:
                self._end_well(attempt, partition)

    def _keep(self, attempt: NodeAttempt, reply: Outcomes) -> Mapping[int, Rejection]:
        """Store answers and readers' mistakes; return why the other keys have no answer, by partition."""
        failed: dict[int, Rejection] = {}
        if type(reply) is HopOutcomes and PROBLEM not in reply.kinds:  # the usual case: no problem among the answers
            self.results.keep_all(attempt.indexes, reply)
            return failed
        outcomes: Iterable[HopOutcome | HopFailure] = (
            [reply] * len(attempt.indexes) if isinstance(reply, HopFailure) else reply
        )
        for index, outcome in zip(attempt.indexes, outcomes, strict=True):
            if type(outcome) is HopOutcome and outcome[0] != PROBLEM:
                self.results.keep(index, outcome)
                continue
            rejection = rejection_by(outcome)
            if next_step(rejection.reason) is Step.STOP:
                self.results.refuse((index,), readers_mistake(rejection))
            else:
                failed.setdefault(self.keys[index].partition, rejection)
        return failed

    def _count(self, partition: int, candidate: Candidate, rejection: Rejection) -> None:
        """Count and log a rejection."""
        context = self._context
        context.rejected(rejection.reason)
        context.log.rejected(self._ids(partition), candidate, rejection, context.clock.monotonic_ms())

    def _is_too_large_together(self, attempt: NodeAttempt, reply: Outcomes) -> bool:
        """Whether the reply was too large but smaller parts may fit."""
        if not isinstance(reply, HopFailure) or reply.reason != WireError.TOO_LARGE or len(attempt.indexes) == 1:
            return False
        return self._context.clock.monotonic_ms() < self.deadline_ms

    def _halve(self, attempt: NodeAttempt) -> None:
        """Send each half of the keys to the same candidate again."""
        for partition in attempt.partitions:
            self._plans[partition].ended(attempt)
        middle = len(attempt.indexes) // 2
        for half in (attempt.indexes[:middle], attempt.indexes[middle:]):
            self._send_to(attempt.candidate, half, alone=True)

    def _end_well(self, attempt: NodeAttempt, partition: int) -> None:
        """Note that an attempt needs no other one for its keys of a partition."""
        plan = self._plans[partition]
        plan.ended(attempt)
        if plan.asked and plan.is_over:  # other keys of the partition, in attempts of their own, failed before
            self._try_next(partition, plan.asked[-1][1].reason)

    def _drop_answered(self) -> None:
        """Cancel attempts if others answered all their keys."""
        kinds = self.results.kinds
        for attempt in list(self._attempts):
            if not any(kinds[index] == OPEN for index in attempt.indexes):
                attempt.client.drop(attempt.request)
                self._attempts.discard(attempt)
                for partition in attempt.partitions:
                    self._end_well(attempt, partition)

    def _ids(self, partition: int) -> Mapping[str, object]:
        return {"store": self.route.name, "partition": partition, **ids_of(self.trace)}

    # ---- its keys

    @cached_property
    def _partitions(self) -> Sequence[int]:
        """The partitions of the keys of this read, each once."""
        return [partition for partition in dict.fromkeys(self.keys.partitions) if partition != NO_PARTITION]

    @cached_property
    def _indexes(self) -> Mapping[int, Sequence[int]]:
        """The indexes of the keys of each partition."""
        return indexes_by_partition(self.keys.partitions)

    def _open_keys(self, partitions: Collection[int]) -> Sequence[int]:
        """Return the indexes of these partitions' keys without a result; a range if these are all. Name each once."""
        if len(partitions) == len(self._partitions) and self.results.is_untouched:
            return range(len(self.keys))
        kinds = self.results.kinds
        return [index for partition in partitions for index in self._indexes[partition] if kinds[index] == OPEN]


class KeyLookup(NamedTuple):
    """The lookup of one key: `keys` holds only that; `served` are the counts of its store."""

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

    def look_up(self, asked: KeyLookup, reader: Exchange, done: Done) -> None:
        """Look one key up. `done` may be called before this returns."""
        context = self.context
        route, bound, keys, _ = asked
        began_ms = self._clock.monotonic_ms()
        context.budget.asked(1)
        lookup = _SingleLookup(self, asked, reader, done)
        if route.codec.is_scattered:
            self._finish_later(Read(context, route, bound, keys, reader, began_ms=began_ms), lookup)
            return
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
        reader: Exchange | None = None,
        problems: Mapping[int, Problem] = NO_PROBLEMS,
    ) -> Results:
        """Look many keys up; the keys of a partition go to one node together. A key in `problems`, by its index, has
        NO_PARTITION and is not sent.

        Raises ReaderLeftError when the reader disconnects.
        """
        context, began_ms = self.context, self._clock.monotonic_ms()
        context.budget.asked(len(keys) - len(problems))
        if route.codec.is_scattered:
            results = Results(0, NO_PROBLEMS)
            for some, own in turns(keys, problems, route.partitions):
                began_ms = self._clock.monotonic_ms()
                results.append(await Read(context, route, bound, some, reader, began_ms=began_ms, problems=own).run())
        else:
            results = await Read(context, route, bound, keys, reader, began_ms=began_ms, problems=problems).run()
        context.served.answered_many(results, bound, context.served.of(route.name))
        return results

    def after_first(self, lookup: _SingleLookup, reply: Reply) -> None:
        """Continue a single lookup after its first attempt failed or is delayed."""
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

    def __init__(self, forwarder: Forwarder, asked: KeyLookup, reader: Exchange, done: Done) -> None:
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
