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

from understudy_router.asks import Ask, Delay, HopFailure, Outcomes, Reply, StillWaiting, parts_that_fit
from understudy_router.budget import RetryBudget
from understudy_router.candidates import Candidate
from understudy_router.catalogue import StoreRoute
from understudy_router.choose import Choice
from understudy_router.errand import Errand, Leg, Result
from understudy_router.fallback import (
    Step,
    Told,
    Walk,
    is_catalogue_outdated,
    is_outdated,
    next_step,
    readers_mistake,
    told_by_failure,
    told_by_problem,
)
from understudy_router.lanes import Lanes
from understudy_router.wire import WireError
from understudy_shared.bounds import Bound
from understudy_shared.clock import Clock
from understudy_shared.hop import PROBLEM, HopKey, HopOutcome
from understudy_shared.http_edge import Receive

ASK_AGAIN_MS = 20
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
        lanes: Lanes,
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
        self._lanes = lanes
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
            return (await self._run(self._errand(route, bound, keys, began_ms), [], receive))[0]
        first = choice.order[0]
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        ask = Ask(route, bound, keys, future, began_ms, began_ms + self._first_limit_ms, first.role == "active")
        lane = self._lanes.to(first.node_id, first.endpoint)
        lane.ask(ask)
        reply = await future
        outcome = reply[0]
        if type(outcome) is HopOutcome and outcome[0] != PROBLEM:
            return outcome
        errand = self._errand(route, bound, keys, began_ms)
        errand.walks[partition] = Walk(choice)
        leg = Leg(first, lane, ask, (0,))
        errand.sent(leg)
        return (await self._run(errand, [(leg, reply)], receive))[0]

    async def look_up_many(
        self, route: StoreRoute, bound: Bound, keys: Sequence[HopKey], receive: Receive | None = None
    ) -> list[Result]:
        """Many keys, results in their order; the keys of a partition are asked together, of one node."""
        self.budget.asked(len(keys))
        errand = self._errand(route, bound, keys, self._clock.monotonic_ms())
        return await self._run(errand, [], receive)

    def _errand(self, route: StoreRoute, bound: Bound, keys: Sequence[HopKey], began_ms: float) -> Errand:
        deadline_ms = began_ms + self._deadline_ms + bound.wait_ms
        return Errand(route, bound, keys, began_ms=began_ms, deadline_ms=deadline_ms)

    async def _run(self, errand: Errand, arrived: list[tuple[Leg, Reply]], receive: Receive | None) -> list[Result]:
        """Until each key has a result. `arrived` came before it was an errand."""
        moves: Moves = {}
        if not arrived:
            self._walk(errand, errand.partitions, moves)
        try:
            while True:
                for leg, reply in arrived:
                    self._take(errand, leg, reply, moves)
                self._send(errand, moves)
                moves.clear()
                if not errand.is_open:
                    return [errand.results[index] for index in range(len(errand.keys))]
                errand.drop_answered()
                if receive is not None and (errand.again or _has_delay(arrived)):
                    errand.watch(receive)
                arrived, is_time = await errand.news()
                if is_time:
                    again, errand.again = errand.again, set()
                    self._walk(errand, again, moves)
        finally:
            errand.close()

    def _walk(self, errand: Errand, partitions: Iterable[int], moves: Moves) -> None:
        """Begin a walk for each of these partitions, or a new one by what is known now."""
        for partition in partitions:
            before = errand.walks.get(partition)
            if before is not None and (before.is_hopeful or not errand.open_keys((partition,))):
                continue
            choice = self._chooser.choose(errand.route, partition, errand.bound)
            walk = errand.walks[partition] = Walk(choice) if before is None else before.again(choice)
            candidate = walk.next()
            if candidate is not None:
                _move(moves, candidate, partition)
            else:
                self._nobody_left(errand, partition)

    def _send(self, errand: Errand, moves: Moves) -> None:
        """Each node's partitions, whatever of them is open, in one ask."""
        for candidate, partitions in moves.values():
            indexes = errand.open_keys(partitions)
            for part in parts_that_fit(errand.keys, indexes) if indexes else ():
                self._ask(errand, candidate, part)

    def _ask(self, errand: Errand, candidate: Candidate, indexes: Sequence[int], *, alone: bool = False) -> None:
        now_ms = self._clock.monotonic_ms()
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        until_ms = min(now_ms + self._hop_timeout_ms, errand.deadline_ms)
        keys = [errand.keys[index] for index in indexes]
        ask = Ask(errand.route, errand.bound, keys, future, now_ms, until_ms, candidate.role == "active")
        ask.alone = alone
        lane = self._lanes.to(candidate.node_id, candidate.endpoint)
        leg = Leg(candidate, lane, ask, indexes)
        errand.sent(leg)
        errand.await_reply(leg, future)
        lane.ask(ask)

    def _take(self, errand: Errand, leg: Leg, reply: Reply, moves: Moves) -> None:
        """What came of a leg: keep what was answered; what was not may be asked of somebody else."""
        if isinstance(reply, StillWaiting):
            errand.await_reply(leg, reply.future)
            for partition in leg.partitions:
                errand.walks[partition].waits(leg, reply.why)
            failed: dict[int, Told] = {}
            reasons = dict.fromkeys(leg.partitions, str(reply.why))
        elif self._is_too_large_together(errand, leg, reply):
            self._halve(errand, leg)
            return
        else:
            errand.ended(leg)
            failed = _keep(errand, leg, reply)
            for partition in leg.partitions:
                errand.walks[partition].ended(leg, failed.get(partition))
            reasons = _reasons(errand, leg, failed)
        for told in failed.values():
            self.fallbacks[told.reason] += 1
            if is_outdated(told.reason):
                self._chooser.refresh()
            if is_catalogue_outdated(told.reason):
                self._chooser.doubt_catalogue()
        for partition, reason in reasons.items():
            self._go_on(errand, partition, reason, moves)

    def _go_on(self, errand: Errand, partition: int, reason: str, moves: Moves) -> None:
        """After a failure or a delay: ask the next candidate, wait for those on their way, or give up."""
        keys = len(errand.open_keys((partition,)))
        walk = errand.walks[partition]
        if not keys or walk.is_hopeful:
            return
        if self._clock.monotonic_ms() < errand.deadline_ms:
            if reason == Delay.SILENT:
                walk.reorder(self._chooser.choose(errand.route, partition, errand.bound))
            candidate = walk.after(reason, lambda step: self._may(step, keys))
            if candidate is not None:
                _move(moves, candidate, partition)
                return
            for other in walk.rest if reason == Delay.SLOW else ():
                self._lanes.ask_whether_others_answer(other.node_id, other.endpoint)
        self._nobody_left(errand, partition)

    def _may(self, step: Step, keys: int) -> bool:
        """Whether so many keys may be asked of one more node; counted, and paid for, if so."""
        if step is Step.HEDGE and not self._hedges:
            return False
        if step in {Step.HEDGE, Step.RETRY} and not self.budget.try_spend(keys, self._clock.monotonic_ms()):
            self.not_paid += keys
            return False
        self.steps[step] += keys
        return True

    def _nobody_left(self, errand: Errand, partition: int) -> None:
        """Nobody else is asked now: walk again if time may help, else wait for who is on the way, else say why not."""
        walk = errand.walks[partition]
        now_ms = self._clock.monotonic_ms()
        left_ms = errand.began_ms + errand.bound.wait_ms - now_ms
        if not walk.rest and not walk.is_over:
            errand.prolong(partition)
        if left_ms > 0 and walk.may_pass:
            errand.again.add(partition)
            errand.wake_in(min(ASK_AGAIN_MS, left_ms))
        elif walk.is_over:
            late = now_ms >= errand.deadline_ms
            problem = walk.refused(errand.bound, late=late, after_ms=now_ms - errand.began_ms)
            errand.results.update(dict.fromkeys(errand.open_keys((partition,)), problem))

    def _is_too_large_together(self, errand: Errand, leg: Leg, reply: Outcomes) -> bool:
        """Whether its values may come in smaller parts."""
        if not isinstance(reply, HopFailure) or reply.reason != WireError.TOO_LARGE or len(leg.indexes) == 1:
            return False
        return self._clock.monotonic_ms() < errand.deadline_ms

    def _halve(self, errand: Errand, leg: Leg) -> None:
        """Ask the same candidate again for each half of the keys."""
        errand.ended(leg)
        for partition in leg.partitions:
            errand.walks[partition].ended(leg)
        middle = len(leg.indexes) // 2
        for half in (leg.indexes[:middle], leg.indexes[middle:]):
            self._ask(errand, leg.candidate, half, alone=True)


def _keep(errand: Errand, leg: Leg, reply: Outcomes) -> dict[int, Told]:
    """Keep what was answered; why the rest was not, by partition."""
    failed: dict[int, Told] = {}
    outcomes: Sequence[HopOutcome | HopFailure] = [reply] * len(leg.indexes) if isinstance(reply, HopFailure) else reply
    for index, outcome in zip(leg.indexes, outcomes, strict=True):
        if type(outcome) is HopOutcome and outcome[0] != PROBLEM:
            errand.results.setdefault(index, outcome)
            continue
        told = _told(outcome)
        if next_step(told.reason) is Step.STOP:
            errand.results.setdefault(index, readers_mistake(told))
        else:
            failed.setdefault(errand.keys[index].partition, told)
    return failed


def _reasons(errand: Errand, leg: Leg, failed: Mapping[int, Told]) -> dict[int, str]:
    """Why keys are left to ask somebody else for, by partition, after a leg has ended."""
    reasons = {partition: told.reason for partition, told in failed.items()}
    for partition in leg.partitions:
        walk = errand.walks[partition]
        if partition not in reasons and walk.asked and walk.is_over and errand.open_keys((partition,)):
            # Another part of its keys failed while this one, to the same node, was on its way.
            reasons[partition] = walk.asked[-1][1].reason
    return reasons


def _told(outcome: HopOutcome | HopFailure) -> Told:
    return told_by_failure(outcome) if isinstance(outcome, HopFailure) else told_by_problem(outcome.body)


def _move(moves: Moves, candidate: Candidate, partition: int) -> None:
    place = (candidate.node_id, candidate.endpoint.host, candidate.endpoint.port)
    moves.setdefault(place, (candidate, []))[1].append(partition)


def _has_delay(arrived: Iterable[tuple[Leg, Reply]]) -> bool:
    return any(isinstance(reply, StillWaiting) for _, reply in arrived)
