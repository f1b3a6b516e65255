"""Asks nodes for keys until each is answered or nobody is left: thin awaits around `choose` and `fallback`.

The first candidate of a single key is asked without any bookkeeping; that is nearly every lookup. All else is an
errand: each partition's keys to its next candidate, all that goes to one node at a time in one ask, and whatever comes
back, or does not come back in time, moves its own partitions only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.forwarding.budget import RetryBudget
from understudy_router.forwarding.fallback import (
    Rejection,
    ReplicaPlan,
    Step,
    is_catalogue_outdated,
    is_outdated,
    next_step,
    readers_mistake,
    rejection_by_failure,
    rejection_by_problem,
)
from understudy_router.forwarding.read import Attempt, Read, Result
from understudy_router.routing.candidates import Candidate
from understudy_router.routing.choose import Choice
from understudy_router.transport.node_clients import NodeClients
from understudy_router.transport.node_requests import (
    Delay,
    HopFailure,
    NodeRequest,
    Outcomes,
    Reply,
    StillWaiting,
    parts_that_fit,
)
from understudy_router.transport.wire import WireError
from understudy_shared.bounds import Bound
from understudy_shared.clock import Clock
from understudy_shared.hop import PROBLEM, HopKey, HopOutcome
from understudy_shared.http.edge import Receive

PLAN_AGAIN_MS = 20
"""Between two walks of a reader that waits for a position: a commit is normally visible within that time."""

Moves = dict[tuple[str, str, int], tuple[Candidate, list[int]]]
"""Whom to ask next, by node id, host and port, and for which partitions."""


class Chooser(Protocol):
    """Who knows the candidates."""

    def choose(self, route: StoreRoute, partition: int, bound: Bound) -> Choice: ...
    def refresh(self) -> None: ...
    def doubt_catalogue(self) -> None: ...


class Forwarder:
    """Sends lookups to nodes.

    Totals for the metrics: `fallbacks` are candidates that did not answer, by reason; `steps` are keys that were asked
    of one more node, by what that cost; `not_paid` are keys that were not, because the budget was spent.
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
        """`hedges`: whether what is slow may be asked of another node too."""
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

    async def look_up(
        self, route: StoreRoute, bound: Bound, keys: Sequence[HopKey], receive: Receive | None = None
    ) -> Result:
        """One key: `keys` holds just that. Raises ReaderLeftError when `receive` tells so, if it takes long."""
        began_ms = self._clock.monotonic_ms()
        self.budget.asked(1)
        partition = keys[0].partition
        choice = self._chooser.choose(route, partition, bound)
        if not choice.order:
            return (await self._run(self._new_read(route, bound, keys, began_ms), [], receive))[0]
        first = choice.order[0]
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        request = NodeRequest(
            route, bound, keys, future, began_ms, began_ms + self._first_limit_ms, first.role == "active"
        )
        client = self._clients.to(first.node_id, first.endpoint)
        client.submit(request)
        reply = await future
        outcome = reply[0]
        if type(outcome) is HopOutcome and outcome[0] != PROBLEM:
            return outcome
        read = self._new_read(route, bound, keys, began_ms)
        read.plans[partition] = ReplicaPlan(choice)
        attempt = Attempt(first, client, request, (0,))
        read.sent(attempt)
        return (await self._run(read, [(attempt, reply)], receive))[0]

    async def look_up_many(
        self, route: StoreRoute, bound: Bound, keys: Sequence[HopKey], receive: Receive | None = None
    ) -> list[Result]:
        """Many keys, results in their order; the keys of a partition are asked together, of one node."""
        self.budget.asked(len(keys))
        read = self._new_read(route, bound, keys, self._clock.monotonic_ms())
        return await self._run(read, [], receive)

    def _new_read(self, route: StoreRoute, bound: Bound, keys: Sequence[HopKey], began_ms: float) -> Read:
        deadline_ms = began_ms + self._deadline_ms + bound.wait_ms
        return Read(route, bound, keys, began_ms=began_ms, deadline_ms=deadline_ms)

    async def _run(self, read: Read, arrived: list[tuple[Attempt, Reply]], receive: Receive | None) -> list[Result]:
        """Until each key has a result. `arrived` came before it was an errand."""
        moves: Moves = {}
        if not arrived:
            self._plan(read, read.partitions, moves)
        try:
            while True:
                for attempt, reply in arrived:
                    self._take(read, attempt, reply, moves)
                self._send(read, moves)
                moves.clear()
                if not read.is_open:
                    return [read.results[index] for index in range(len(read.keys))]
                read.drop_answered()
                if receive is not None and (read.again or _has_delay(arrived)):
                    read.watch(receive)
                arrived, is_time = await read.news()
                if is_time:
                    again, read.again = read.again, set()
                    self._plan(read, again, moves)
        finally:
            read.close()

    def _plan(self, read: Read, partitions: Iterable[int], moves: Moves) -> None:
        """Begin a walk for each of these partitions, or a new one by what is known now."""
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
                self._nobody_left(read, partition)

    def _send(self, read: Read, moves: Moves) -> None:
        """Each node's partitions, whatever of them is open, in one ask."""
        for candidate, partitions in moves.values():
            indexes = read.open_keys(partitions)
            for part in parts_that_fit(read.keys, indexes) if indexes else ():
                self._send_to(read, candidate, part)

    def _send_to(self, read: Read, candidate: Candidate, indexes: Sequence[int], *, alone: bool = False) -> None:
        now_ms = self._clock.monotonic_ms()
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        until_ms = min(now_ms + self._hop_timeout_ms, read.deadline_ms)
        keys = [read.keys[index] for index in indexes]
        request = NodeRequest(read.route, read.bound, keys, future, now_ms, until_ms, candidate.role == "active")
        request.alone = alone
        client = self._clients.to(candidate.node_id, candidate.endpoint)
        attempt = Attempt(candidate, client, request, indexes)
        read.sent(attempt)
        read.await_reply(attempt, future)
        client.submit(request)

    def _take(self, read: Read, attempt: Attempt, reply: Reply, moves: Moves) -> None:
        """What came of a leg: keep what was answered; what was not may be asked of somebody else."""
        if isinstance(reply, StillWaiting):
            read.await_reply(attempt, reply.future)
            for partition in attempt.partitions:
                read.plans[partition].waits(attempt, reply.why)
            failed: dict[int, Rejection] = {}
            reasons = dict.fromkeys(attempt.partitions, str(reply.why))
        elif self._is_too_large_together(read, attempt, reply):
            self._halve(read, attempt)
            return
        else:
            read.ended(attempt)
            failed = _keep(read, attempt, reply)
            for partition in attempt.partitions:
                read.plans[partition].ended(attempt, failed.get(partition))
            reasons = _reasons(read, attempt, failed)
        for rejection in failed.values():
            self.fallbacks[rejection.reason] += 1
            if is_outdated(rejection.reason):
                self._chooser.refresh()
            if is_catalogue_outdated(rejection.reason):
                self._chooser.doubt_catalogue()
        for partition, reason in reasons.items():
            self._go_on(read, partition, reason, moves)

    def _go_on(self, read: Read, partition: int, reason: str, moves: Moves) -> None:
        """After a failure or a delay: ask the next candidate, wait for those on their way, or give up."""
        keys = len(read.open_keys((partition,)))
        plan = read.plans[partition]
        if not keys or plan.is_hopeful:
            return
        if self._clock.monotonic_ms() < read.deadline_ms:
            if reason == Delay.SILENT:
                plan.reorder(self._chooser.choose(read.route, partition, read.bound))
            candidate = plan.after(reason, lambda step: self._may(step, keys))
            if candidate is not None:
                _move(moves, candidate, partition)
                return
            for other in plan.rest if reason == Delay.SLOW else ():
                self._clients.probe_if_quiet(other.node_id, other.endpoint)
        self._nobody_left(read, partition)

    def _may(self, step: Step, keys: int) -> bool:
        """Whether so many keys may be asked of one more node; counted, and paid for, if so."""
        if step is Step.HEDGE and not self._hedges:
            return False
        if step in {Step.HEDGE, Step.RETRY} and not self.budget.try_spend(keys, self._clock.monotonic_ms()):
            self.not_paid += keys
            return False
        self.steps[step] += keys
        return True

    def _nobody_left(self, read: Read, partition: int) -> None:
        """Nobody else is asked now: walk again if time may help, else wait for who is on the way, else say why not."""
        plan = read.plans[partition]
        now_ms = self._clock.monotonic_ms()
        left_ms = read.began_ms + read.bound.wait_ms - now_ms
        if not plan.rest and not plan.is_over:
            read.prolong(partition)
        if left_ms > 0 and plan.may_pass:
            read.again.add(partition)
            read.wake_in(min(PLAN_AGAIN_MS, left_ms))
        elif plan.is_over:
            late = now_ms >= read.deadline_ms
            problem = plan.refused(read.bound, late=late, after_ms=now_ms - read.began_ms)
            read.results.update(dict.fromkeys(read.open_keys((partition,)), problem))

    def _is_too_large_together(self, read: Read, attempt: Attempt, reply: Outcomes) -> bool:
        """Whether its values may come in smaller parts."""
        if not isinstance(reply, HopFailure) or reply.reason != WireError.TOO_LARGE or len(attempt.indexes) == 1:
            return False
        return self._clock.monotonic_ms() < read.deadline_ms

    def _halve(self, read: Read, attempt: Attempt) -> None:
        """Ask the same candidate again for each half of the keys."""
        read.ended(attempt)
        for partition in attempt.partitions:
            read.plans[partition].ended(attempt)
        middle = len(attempt.indexes) // 2
        for half in (attempt.indexes[:middle], attempt.indexes[middle:]):
            self._send_to(read, attempt.candidate, half, alone=True)


def _keep(read: Read, attempt: Attempt, reply: Outcomes) -> dict[int, Rejection]:
    """Keep what was answered; why the rest was not, by partition."""
    failed: dict[int, Rejection] = {}
    outcomes: Sequence[HopOutcome | HopFailure] = (
        [reply] * len(attempt.indexes) if isinstance(reply, HopFailure) else reply
    )
    for index, outcome in zip(attempt.indexes, outcomes, strict=True):
        if type(outcome) is HopOutcome and outcome[0] != PROBLEM:
            read.results.setdefault(index, outcome)
            continue
        rejection = _rejection(outcome)
        if next_step(rejection.reason) is Step.STOP:
            read.results.setdefault(index, readers_mistake(rejection))
        else:
            failed.setdefault(read.keys[index].partition, rejection)
    return failed


def _reasons(read: Read, attempt: Attempt, failed: Mapping[int, Rejection]) -> dict[int, str]:
    """Why keys are left to ask somebody else for, by partition, after a leg has ended."""
    reasons = {partition: rejection.reason for partition, rejection in failed.items()}
    for partition in attempt.partitions:
        plan = read.plans[partition]
        if partition not in reasons and plan.asked and plan.is_over and read.open_keys((partition,)):
            # Another part of its keys failed while this one, to the same node, was on its way.
            reasons[partition] = plan.asked[-1][1].reason
    return reasons


def _rejection(outcome: HopOutcome | HopFailure) -> Rejection:
    return rejection_by_failure(outcome) if isinstance(outcome, HopFailure) else rejection_by_problem(outcome.body)


def _move(moves: Moves, candidate: Candidate, partition: int) -> None:
    place = (candidate.node_id, candidate.endpoint.host, candidate.endpoint.port)
    moves.setdefault(place, (candidate, []))[1].append(partition)


def _has_delay(arrived: Iterable[tuple[Attempt, Reply]]) -> bool:
    return any(isinstance(reply, StillWaiting) for _, reply in arrived)
