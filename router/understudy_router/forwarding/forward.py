"""Sends keys to nodes until each is answered or no candidate is left: thin awaits around `choose` and `fallback`.

The first attempt of a single key needs no bookkeeping; that is nearly every lookup. Everything else is a `Read`: the
keys of each partition go to its next candidate, and what goes to one node at a time goes in one request. A reply, a
failure or a delay moves only the partitions that it is about.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.budget import RetryBudget
from understudy_router.forwarding.fallback import (
    Rejection,
    ReplicaPlan,
    Step,
    is_catalogue_outdated,
    is_outdated,
)
from understudy_router.forwarding.read import NO_PROBLEMS, Attempt, Read, Reader
from understudy_router.forwarding.read_log import ReadLog
from understudy_router.forwarding.recorded import traced
from understudy_router.forwarding.results import Result, Results
from understudy_router.routing.candidates import Candidate
from understudy_router.routing.choose import Choice
from understudy_router.transport.node_client import NodeClient
from understudy_router.transport.node_clients import NodeClients
from understudy_router.transport.node_requests import (
    Delay,
    HopFailure,
    NodeRequest,
    Outcomes,
    Reply,
    parts_that_fit,
)
from understudy_router.transport.wire import WireError
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import bug
from understudy_shared.http.problems import Problem, problem_of
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.hop_columns import PROBLEM, HopKey, HopKeys, HopOutcome
from understudy_shared.server.direct import ReaderLeftError
from understudy_shared.telemetry.trace import Trace

PLAN_AGAIN_MS = 20
"""Between two plans of a read that waits for a position: a commit is normally visible within that time."""

RESTORE_WAIT_MS, ASK_AGAIN_MS = 1_000, 50
"""How long a read waits for replicas that open their state, and how often it asks them: opening takes a moment, and all
replicas of a task open it at once when the query was rewound.
"""

Done = Callable[[Result | None, float], None]
"""Called on the event loop with a key's result and how long it took in ms, once; with None when the reader left. It
must not raise.
"""

Moves = dict[tuple[str, str, int], tuple[Candidate, dict[int, None]]]
"""The next attempts: candidate and partitions, each once, by node id, host and port."""


class Chooser(Protocol):
    """Chooses among the candidates of a partition."""

    def choose(self, route: StoreRoute, partition: int, bound: Bound) -> Choice: ...
    def refresh(self) -> None: ...
    def doubt_catalogue(self) -> None: ...


class Forwarder:
    """Sends lookups to nodes.

    Counters for the metrics: `fallbacks` counts failed attempts by reason; `steps` counts keys sent to one more node,
    by what that cost; `not_paid` counts keys that were not sent because the retry budget was spent.
    """

    def __init__(
        self,
        clients: NodeClients,
        chooser: Chooser,
        budget: RetryBudget,
        *,
        hop_timeout_ms: int,
        deadline_ms: int,
        hedges: bool,
        clock: Clock,
    ) -> None:
        """`hedges`: whether a slow read may be sent to another node too."""
        self.fallbacks: Counter[str] = Counter()
        self.steps: Counter[Step] = Counter()
        self.not_paid = 0
        self.budget = budget
        self._clients = clients
        self._chooser = chooser
        self._hop_timeout_ms = hop_timeout_ms
        self._deadline_ms = deadline_ms
        self._hedges = hedges
        self._clock = clock
        self._first_limit_ms = min(hop_timeout_ms, deadline_ms)
        self._lookups: set[asyncio.Task[None]] = set()
        self._log = ReadLog()

    def look_up(self, route: StoreRoute, bound: Bound, keys: Sequence[HopKey], reader: Reader, done: Done) -> None:
        """Look one key up; `keys` holds just that. `done` may be called before this returns."""
        began_ms = self._clock.monotonic_ms()
        self.budget.asked(1)
        choice = self._chooser.choose(route, keys[0].partition, bound)
        if not choice.order:
            self._go_on(self._new_read(route, bound, keys, began_ms, trace=reader.trace), [], reader, done)
            return
        first = choice.order[0]
        client = self._clients.to(first.node_id, first.endpoint)
        lookup = _SingleLookup(self, choice, client, reader, done)
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
        self.budget.asked(len(keys) - len(problems))
        trace = None if reader is None else reader.trace
        read = self._new_read(route, bound, keys, self._clock.monotonic_ms(), trace=trace, problems=problems)
        return await self._run(read, [], reader)

    def after_first(self, lookup: _SingleLookup, reply: Reply) -> None:
        """Go on with a single lookup whose first attempt failed or is delayed."""
        request = lookup.request
        read = self._new_read(request.route, request.bound, request.keys, request.asked_ms, trace=lookup.reader.trace)
        read.plans[request.keys[0].partition] = ReplicaPlan(lookup.choice)
        attempt = Attempt(lookup.choice.order[0], lookup.client, request, (0,))
        read.sent(attempt)
        if request.is_wanted:
            request.on_reply = read.arrive_by(attempt)
        self._go_on(read, [(attempt, reply)], lookup.reader, lookup.done)

    def _go_on(self, read: Read, arrived: list[tuple[Attempt, Reply]], reader: Reader, done: Done) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(read, arrived, reader, done), name="a lookup")
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)

    async def _finish(self, read: Read, arrived: list[tuple[Attempt, Reply]], reader: Reader, done: Done) -> None:
        """Run the read of one key and report its result."""
        result: Result | None
        try:
            result = (await self._run(read, arrived, reader))[0]
        except ReaderLeftError:
            result = None
        except UnderstudyError as error:
            result = problem_of(error)
        except Exception as error:
            result = bug(error)
        done(result, self._clock.monotonic_ms() - read.began_ms)

    def _new_read(
        self,
        route: StoreRoute,
        bound: Bound,
        keys: Sequence[HopKey],
        began_ms: float,
        *,
        trace: Trace | None,
        problems: Mapping[int, Problem] = NO_PROBLEMS,
    ) -> Read:
        deadline_ms = began_ms + self._deadline_ms + bound.wait_ms
        return Read(route, bound, keys, began_ms=began_ms, deadline_ms=deadline_ms, trace=trace, problems=problems)

    async def _run(self, read: Read, arrived: list[tuple[Attempt, Reply]], reader: Reader | None) -> Results:
        """Run a read until each key has a result. `arrived` came before the read was made."""
        moves: Moves = {}
        if not arrived:
            self._plan(read, read.partitions, moves)
        try:
            while True:
                for attempt, reply in arrived:
                    self._on_reply(read, attempt, reply, moves)
                self._send(read, moves)
                moves.clear()
                if not read.results.is_open:
                    return read.results
                read.drop_answered()
                if reader is not None and (read.again or _has_delay(arrived)):
                    read.watch(reader)
                arrived, is_time = await read.news()
                if is_time:
                    again, read.again = read.again, set()
                    self._plan(read, again, moves)
        finally:
            read.close()

    def _plan(self, read: Read, partitions: Iterable[int], moves: Moves) -> None:
        """Make a plan for each of these partitions, or a new one from what is known now."""
        for partition in partitions:
            before = read.plans.get(partition)
            if before is not None and (before.is_hopeful or not read.open_keys((partition,))):
                continue
            choice = self._chooser.choose(read.route, partition, read.bound)
            plan = read.plans[partition] = ReplicaPlan(choice) if before is None else before.again(choice)
            candidate = plan.next()
            if candidate is not None:
                _move(moves, candidate, partition)
            else:
                self._no_candidate_left(read, partition)

    def _send(self, read: Read, moves: Moves) -> None:
        """Send each candidate the open keys of its partitions in one request."""
        for candidate, partitions in moves.values():
            indexes = read.open_keys(partitions)
            for part in parts_that_fit(read.keys, indexes) if indexes else ():
                self._send_to(read, candidate, part)

    def _send_to(self, read: Read, candidate: Candidate, indexes: Sequence[int], *, alone: bool = False) -> None:
        now_ms = self._clock.monotonic_ms()
        until_ms = min(now_ms + self._hop_timeout_ms, read.deadline_ms)
        keys = read.keys_at(indexes)
        client = self._clients.to(candidate.node_id, candidate.endpoint)
        request = NodeRequest(read.route, read.bound, keys, None, now_ms, until_ms, candidate.role == "active")
        if read.trace is not None:
            request = traced(request, read.trace, candidate, client)
        request.alone = alone
        attempt = Attempt(candidate, client, request, indexes)
        request.on_reply = read.arrive_by(attempt)
        read.sent(attempt)
        client.submit(request)

    def _on_reply(self, read: Read, attempt: Attempt, reply: Reply, moves: Moves) -> None:
        """Handle a reply: keep answers, and try another candidate for the rest."""
        if isinstance(reply, Delay):
            for partition in attempt.partitions:
                read.plans[partition].waits(attempt, reply)
            failed: dict[int, Rejection] = {}
            reasons = dict.fromkeys(attempt.partitions, str(reply))
        elif self._is_too_large_together(read, attempt, reply):
            self._halve(read, attempt)
            return
        else:
            read.ended(attempt)
            failed = read.keep(attempt, reply)
            for partition in attempt.partitions:
                read.plans[partition].ended(attempt, failed.get(partition))
            reasons = _reasons(read, attempt, failed)
        for partition, rejection in failed.items():
            self.fallbacks[rejection.reason] += 1
            self._log.rejected(read, partition, attempt.candidate, rejection, self._clock.monotonic_ms())
            if is_outdated(rejection.reason):
                self._chooser.refresh()
            if is_catalogue_outdated(rejection.reason):
                self._chooser.doubt_catalogue()
        for partition, reason in reasons.items():
            self._try_next(read, partition, reason, moves)

    def _try_next(self, read: Read, partition: int, reason: str, moves: Moves) -> None:
        """After a failure or a delay: try the next candidate, wait for attempts in flight, or give up."""
        keys = len(read.open_keys((partition,)))
        plan = read.plans[partition]
        is_planned = any(partition in partitions for _, partitions in moves.values())
        if not keys or plan.is_hopeful or is_planned:  # of two failures in one turn the first has chosen the next
            return
        if self._clock.monotonic_ms() < read.deadline_ms:
            if reason == Delay.SILENT:
                plan.reorder(self._chooser.choose(read.route, partition, read.bound))
            candidate = plan.after(reason, lambda step: self._may_send(step, keys))
            if candidate is not None:
                _move(moves, candidate, partition)
                return
            for other in plan.rest if reason == Delay.SLOW else ():
                self._clients.probe_if_quiet(other.node_id, other.endpoint)
        self._no_candidate_left(read, partition)

    def _may_send(self, step: Step, keys: int) -> bool:
        """Whether so many keys may be sent to one more node; if so it is counted and paid for."""
        if step is Step.HEDGE and not self._hedges:
            return False
        if step in {Step.HEDGE, Step.RETRY} and not self.budget.try_spend(keys, self._clock.monotonic_ms()):
            self.not_paid += keys
            return False
        self.steps[step] += keys
        return True

    def _no_candidate_left(self, read: Read, partition: int) -> None:
        """No candidate can be asked now: plan again if time may help, else wait for attempts in flight, else report
        why.
        """
        plan = read.plans[partition]
        now_ms = self._clock.monotonic_ms()
        wait_ms, pause_ms = read.bound.wait_ms, PLAN_AGAIN_MS
        if plan.is_restoring:
            wait_ms, pause_ms = max(wait_ms, RESTORE_WAIT_MS), ASK_AGAIN_MS
        left_ms = min(read.began_ms + wait_ms, read.deadline_ms) - now_ms
        if not plan.rest and not plan.is_over:
            read.prolong(partition)
        if left_ms > 0 and (plan.may_pass or plan.is_restoring):
            read.again.add(partition)
            read.wake_in(min(pause_ms, left_ms))
        elif plan.is_over:
            late = now_ms >= read.deadline_ms
            problem = plan.refused(read.bound, late=late, after_ms=now_ms - read.began_ms)
            self._log.unanswered(read, partition, problem, now_ms)
            read.results.refuse(read.open_keys((partition,)), problem)

    def _is_too_large_together(self, read: Read, attempt: Attempt, reply: Outcomes) -> bool:
        """Whether the reply was too large but smaller parts may fit."""
        if not isinstance(reply, HopFailure) or reply.reason != WireError.TOO_LARGE or len(attempt.indexes) == 1:
            return False
        return self._clock.monotonic_ms() < read.deadline_ms

    def _halve(self, read: Read, attempt: Attempt) -> None:
        """Send each half of the keys to the same candidate again."""
        read.ended(attempt)
        for partition in attempt.partitions:
            read.plans[partition].ended(attempt)
        middle = len(attempt.indexes) // 2
        for half in (attempt.indexes[:middle], attempt.indexes[middle:]):
            self._send_to(read, attempt.candidate, half, alone=True)


class _SingleLookup:
    """The first attempt of a single key. An answer ends it; the rest of the work is done in a `Read`."""

    __slots__ = ("choice", "client", "done", "forwarder", "reader", "request")

    request: NodeRequest

    def __init__(self, forwarder: Forwarder, choice: Choice, client: NodeClient, reader: Reader, done: Done) -> None:
        self.forwarder = forwarder
        self.choice = choice
        self.client = client
        self.reader = reader
        self.done = done

    def on_reply(self, reply: Reply) -> None:
        outcome = reply[0]
        if type(outcome) is HopOutcome and outcome[0] != PROBLEM:
            self.done(outcome, self.client.heard_ms - self.request.asked_ms)  # it was heard in this very moment
            return
        try:
            self.forwarder.after_first(self, reply)
        except Exception as error:
            self.done(bug(error), 0.0)


def _reasons(read: Read, attempt: Attempt, failed: Mapping[int, Rejection]) -> dict[int, str]:
    """Why keys need another candidate after an attempt has ended, by partition."""
    reasons = {partition: rejection.reason for partition, rejection in failed.items()}
    for partition in attempt.partitions:
        plan = read.plans[partition]
        if partition not in reasons and plan.asked and plan.is_over and read.open_keys((partition,)):
            # Another part of its keys failed while this one, to the same node, was on its way.
            reasons[partition] = plan.asked[-1][1].reason
    return reasons


def _move(moves: Moves, candidate: Candidate, partition: int) -> None:
    place = (candidate.node_id, candidate.endpoint.host, candidate.endpoint.port)
    moves.setdefault(place, (candidate, {}))[1][partition] = None


def _has_delay(arrived: Iterable[tuple[Attempt, Reply]]) -> bool:
    return any(isinstance(reply, Delay) for _, reply in arrived)
