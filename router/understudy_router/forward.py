"""Asks nodes for keys until each is answered or nobody is left: thin awaits around `choose` and `fallback`.

The first candidate of a single key is asked without any bookkeeping; that is nearly every lookup. Batches go in rounds:
each partition's keys to its next candidate, all that goes to one node in one ask.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from understudy_router.asks import Ask, HopFailure, Outcomes
from understudy_router.candidates import Candidate
from understudy_router.catalogue import StoreRoute
from understudy_router.choose import Choice
from understudy_router.fallback import (
    Step,
    Told,
    Walk,
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
from understudy_shared.problems import Problem

ASK_AGAIN_MS = 20
"""Between two rounds of a reader that waits for a position: a commit is normally visible within that time."""

Place = tuple[str, str, int]
"""Node id, host, port."""

Result = HopOutcome | Problem
"""FOUND or ABSENT, or why there is neither."""


class Chooser(Protocol):
    """Who knows the candidates."""

    def choose(self, route: StoreRoute, partition: int, bound: Bound) -> Choice: ...
    def refresh(self) -> None: ...


class Forwarder:
    """Sends lookups to nodes. `fallbacks` counts by reason the candidates that did not answer."""

    def __init__(self, lanes: Lanes, chooser: Chooser, *, hop_timeout_ms: int, deadline_ms: int, clock: Clock) -> None:
        self.fallbacks: Counter[str] = Counter()
        self._lanes = lanes
        self._chooser = chooser
        self._hop_timeout_ms = hop_timeout_ms
        self._deadline_ms = deadline_ms
        self._clock = clock
        self._first_limit_ms = min(hop_timeout_ms, deadline_ms)

    async def look_up(self, route: StoreRoute, bound: Bound, keys: Sequence[HopKey]) -> Result:
        """One key: `keys` holds just that."""
        began_ms = self._clock.monotonic_ms()
        partition = keys[0].partition
        choice = self._chooser.choose(route, partition, bound)
        walk: Walk | None = None
        if choice.order:
            first = choice.order[0]
            future: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
            until_ms = began_ms + self._first_limit_ms
            self._lanes.to(first.node_id, first.endpoint).ask(Ask(route, bound, keys, future, until_ms))
            outcomes = await future
            outcome = outcomes if isinstance(outcomes, HopFailure) else outcomes[0]
            if type(outcome) is HopOutcome and outcome[0] != PROBLEM:
                return outcome
            told = _told(outcome)
            if next_step(told.reason) is Step.STOP:
                return readers_mistake(told)
            walk = Walk(choice)
            self._note(walk, walk.next() or first, told)
        errand = self._errand(route, bound, keys, began_ms=began_ms)
        errand.walks[partition] = walk or Walk(choice)
        return (await self._finish(errand))[0]

    async def look_up_many(self, route: StoreRoute, bound: Bound, keys: Sequence[HopKey]) -> list[Result]:
        """Many keys, results in their order; the keys of a partition are asked together, of one node."""
        errand = self._errand(route, bound, keys, began_ms=self._clock.monotonic_ms())
        self._begin_walks(errand, range(len(keys)))
        return await self._finish(errand)

    def _errand(self, route: StoreRoute, bound: Bound, keys: Sequence[HopKey], *, began_ms: float) -> _Errand:
        return _Errand(route, bound, keys, began_ms, began_ms + self._deadline_ms + bound.wait_ms)

    def _begin_walks(self, errand: _Errand, indexes: Iterable[int]) -> None:
        """New walks for the partitions of these keys."""
        for partition in dict.fromkeys(errand.keys[index].partition for index in indexes):
            errand.walks[partition] = Walk(self._chooser.choose(errand.route, partition, errand.bound))

    async def _finish(self, errand: _Errand) -> list[Result]:
        """Walk on; while a position may still come, and the reader waits for it, walk again."""
        patience_end_ms = errand.began_ms + errand.bound.wait_ms
        while True:
            while open_keys := errand.open():
                await self._round(errand, open_keys)
            left_ms = patience_end_ms - self._clock.monotonic_ms()
            again = errand.may_pass() if left_ms > 0 else []
            if not again:
                return [errand.results[index] for index in range(len(errand.keys))]
            await asyncio.sleep(min(ASK_AGAIN_MS, left_ms) / 1000)
            for index in again:
                del errand.results[index]
            self._begin_walks(errand, again)

    async def _round(self, errand: _Errand, open_keys: dict[int, list[int]]) -> None:
        """Each open partition's keys to its next candidate, all at the same time."""
        now_ms = self._clock.monotonic_ms()
        late = now_ms >= errand.deadline_ms
        by_node: dict[Place, tuple[Candidate, list[int]]] = {}
        for partition, indexes in open_keys.items():
            walk = errand.walks[partition]
            candidate = None if late else walk.next()
            if candidate is None:
                problem = walk.refused(errand.bound, late=late, after_ms=now_ms - errand.began_ms)
                errand.results.update(dict.fromkeys(indexes, problem))
            else:
                place = (candidate.node_id, candidate.endpoint.host, candidate.endpoint.port)
                by_node.setdefault(place, (candidate, []))[1].extend(indexes)
        until_ms = min(now_ms + self._hop_timeout_ms, errand.deadline_ms)
        asked = [
            (candidate, indexes, self._ask(candidate, errand, indexes, until_ms))
            for candidate, indexes in by_node.values()
        ]
        for candidate, indexes, future in asked:
            self._take(errand, candidate, indexes, await self._whole(candidate, errand, indexes, await future))

    def _ask(
        self, candidate: Candidate, errand: _Errand, indexes: Sequence[int], until_ms: float
    ) -> asyncio.Future[Outcomes]:
        future: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
        keys = [errand.keys[index] for index in indexes]
        lane = self._lanes.to(candidate.node_id, candidate.endpoint)
        lane.ask(Ask(errand.route, errand.bound, keys, future, until_ms))
        return future

    async def _whole(
        self, candidate: Candidate, errand: _Errand, indexes: Sequence[int], outcomes: Outcomes
    ) -> Sequence[HopOutcome | HopFailure]:
        """An outcome per key. Values that are together too large for one reply are asked for again in halves."""
        if not isinstance(outcomes, HopFailure):
            return outcomes
        now_ms = self._clock.monotonic_ms()
        if outcomes.reason != WireError.TOO_LARGE or len(indexes) == 1 or now_ms >= errand.deadline_ms:
            return [outcomes] * len(indexes)
        middle = len(indexes) // 2
        both: list[HopOutcome | HopFailure] = []
        for half in (indexes[:middle], indexes[middle:]):
            until_ms = min(self._clock.monotonic_ms() + self._hop_timeout_ms, errand.deadline_ms)
            both += await self._whole(candidate, errand, half, await self._ask(candidate, errand, half, until_ms))
        return both

    def _take(
        self,
        errand: _Errand,
        candidate: Candidate,
        indexes: Sequence[int],
        outcomes: Sequence[HopOutcome | HopFailure],
    ) -> None:
        """Keep what was answered; what was not goes on with the next candidate of its partition."""
        failed: dict[int, Told] = {}
        for index, outcome in zip(indexes, outcomes, strict=True):
            if type(outcome) is HopOutcome and outcome[0] != PROBLEM:
                errand.results[index] = outcome
                continue
            told = _told(outcome)
            if next_step(told.reason) is Step.STOP:
                errand.results[index] = readers_mistake(told)
            else:
                failed.setdefault(errand.keys[index].partition, told)
        for partition, told in failed.items():
            self._note(errand.walks[partition], candidate, told)

    def _note(self, walk: Walk, candidate: Candidate, told: Told) -> None:
        self.fallbacks[told.reason] += 1
        walk.failed(candidate, told)
        if is_outdated(told.reason):
            self._chooser.refresh()


@dataclass(slots=True)
class _Errand:
    """Keys of one store on their way. `walks` by partition; `results` by the key's index."""

    route: StoreRoute
    bound: Bound
    keys: Sequence[HopKey]
    began_ms: float
    deadline_ms: float
    walks: dict[int, Walk] = field(default_factory=dict)
    results: dict[int, Result] = field(default_factory=dict)

    def open(self) -> dict[int, list[int]]:
        """The keys without a result, by partition."""
        by_partition: dict[int, list[int]] = {}
        if len(self.results) < len(self.keys):
            for index, key in enumerate(self.keys):
                if index not in self.results:
                    by_partition.setdefault(key[0], []).append(index)
        return by_partition

    def may_pass(self) -> list[int]:
        """The keys whose refusal time may cure."""
        return [
            index
            for index, result in self.results.items()
            if isinstance(result, Problem) and self.walks[self.keys[index].partition].may_pass
        ]


def _told(outcome: HopOutcome | HopFailure) -> Told:
    return told_by_failure(outcome) if isinstance(outcome, HopFailure) else told_by_problem(outcome.body)
