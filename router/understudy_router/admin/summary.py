"""The sums over a snapshot's replicas: counts and worst lags by operator, tasks without an open replica (pure, in
slices).

Nodes whose replicas are all alike are counted at once. Only tasks with a replica that is not well are examined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from understudy_router.admin.facts import RUNNING, Facts, NodeView, Standing
from understudy_router.admin.replica_index import WARMUP, ReplicaIndex

MAX_ERRORS = 100


@dataclass(slots=True)
class Summary:
    """The sums of one operator. Lags are those of live replicas that are not warm-ups; `None`: all of these are
    unknown.
    """

    by_role: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Live replicas by role."""
    running: int = 0
    restoring: int = 0
    """Live replicas that are far behind, or not open yet."""
    dead: int = 0
    unknown: int = 0
    """Live replicas of unknown lag, without warm-ups."""
    unserved: int = 0
    thin: int = 0
    broken: int = 0
    """Live replicas with an error."""
    worst_lag: int | None = None
    worst_lag_ms: int | None = None
    worst: int | None = None
    """A replica that has the worst lag."""

    @property
    def replicas(self) -> int:
        return sum(self.by_role) + self.dead

    @property
    def known_lag(self) -> int | None:
        """The worst lag in versions; `None` while any lag is unknown."""
        return None if self.unknown else self.worst_lag

    @property
    def known_lag_ms(self) -> int | None:
        """The worst lag in time; `None` while any lag is unknown."""
        return None if self.unknown else self.worst_lag_ms


class Totals(NamedTuple):
    """The sums of all operators by id, and the tasks that are not well, ascending."""

    summaries: Mapping[int, Summary]
    unserved: tuple[int, ...]
    """Tasks without an open replica."""
    thin: tuple[int, ...]
    """Tasks that more than one node should have, with an open replica, but with fewer than two that are caught up."""
    unsettled: Collection[int]
    """Tasks that several nodes have, of which fewer than two are caught up and stay."""
    errors: tuple[str, ...] = ()
    """The errors of live replicas: the first MAX_ERRORS."""


def summed(index: ReplicaIndex, holders: Sequence[NodeView]) -> Generator[None, None, Totals]:
    """Sum all replicas up."""
    sums = _Sums(index)
    for number, view in enumerate(holders):
        yield from sums.add(number, view)
        yield
    totals = yield from _examined(index, holders, sums.doubtful, sums.summaries)
    return totals._replace(errors=tuple(sums.errors))


class _Sums:
    """The sums so far, and the tasks with a replica that is not well."""

    def __init__(self, index: ReplicaIndex) -> None:
        self.summaries = {operator_id: Summary() for operator_id in index.tasks_of}
        self.doubtful: set[int] = set()
        self.errors: list[str] = []
        self._index = index

    def add(self, number: int, view: NodeView) -> Iterator[None]:
        """Add the replicas of a node: those that differ one by one, all others by their number."""
        index = self._index
        own: Counter[tuple[int, int]] = Counter()
        for replica, facts in view.own.items():
            task = index.task[replica]
            kind = (index.operator_id[task], index.role[replica])
            own[kind] += 1
            self._count(kind, facts, 1, replica)
            if facts.standing is not Standing.CAUGHT_UP:
                self.doubtful.add(task)
            yield
        for kind, replicas in index.duties[number].items():
            alike = len(replicas) - own[kind]
            if alike:
                first = next(replica for replica in replicas if replica not in view.own)
                self._count(kind, view.facts, alike, first)
        if view.facts.standing is not Standing.CAUGHT_UP:
            self.doubtful.update(index.task[replica] for replica in index.of_node[number])

    def _count(self, kind: tuple[int, int], facts: Facts, count: int, first: int) -> None:
        """Add so many replicas of an operator and a role that have these facts. `first` is one of them."""
        operator_id, role = kind
        summary = self.summaries[operator_id]
        if not facts.standing.is_live:
            summary.dead += count
            return
        summary.by_role[role] += count
        summary.running += count * (facts.state == RUNNING)
        summary.restoring += count * (facts.state in {"RESTORING", "CREATED"})
        if facts.error:
            self._broken(summary, facts.error, count, first)
        if role == WARMUP:
            return
        if facts.offset_lag is None:
            summary.unknown += count
        elif summary.worst_lag is None or facts.offset_lag > summary.worst_lag:
            summary.worst_lag, summary.worst = facts.offset_lag, first
        if facts.time_lag_ms is not None:
            summary.worst_lag_ms = max(facts.time_lag_ms, summary.worst_lag_ms or 0)

    def _broken(self, summary: Summary, error: str, count: int, first: int) -> None:
        summary.broken += count
        if len(self.errors) < MAX_ERRORS:
            index = self._index
            stores = " and ".join(index.stores_of[index.operator_id[index.task[first]]])
            partition, node_id = index.name(first)
            self.errors.append(f"{stores} {partition} on {node_id}: {error}")


def _examined(
    index: ReplicaIndex, holders: Sequence[NodeView], doubtful: Collection[int], summaries: Mapping[int, Summary]
) -> Generator[None, None, Totals]:
    """Return the tasks that are not well, among those with a replica that is not well. Count them in `summaries`, too.

    There are few kinds of tasks, by the standings of their replicas, so each kind is judged once: when a bus is lost,
    no replica of the cluster is well.
    """
    unserved: list[int] = []
    thin: list[int] = []
    unsettled: list[int] = []
    judged: dict[tuple[tuple[Standing, ...], bytes], tuple[bool, bool, bool]] = {}
    for task in chain(index.unheld, doubtful):
        replicas = index.holders(task)
        standings = tuple(holders[index.node[replica]].of(replica).standing for replica in replicas)
        kind = (standings, bytes(index.role[replicas.start : replicas.stop]))
        if kind not in judged:
            judged[kind] = _judged(*kind)
        is_unserved, is_thin, is_unsettled = judged[kind]
        if is_unserved:
            unserved.append(task)
            summaries[index.operator_id[task]].unserved += 1
        elif is_thin:
            thin.append(task)
            summaries[index.operator_id[task]].thin += 1
        if is_unsettled:
            unsettled.append(task)
        yield
    unserved.sort()
    yield
    thin.sort()
    yield
    return Totals(summaries, tuple(unserved), tuple(thin), unsettled)


def _judged(standings: Sequence[Standing], roles: bytes) -> tuple[bool, bool, bool]:
    """Return whether a task is unserved, thin and unsettled, by the standings and the roles of its replicas."""
    wanted = len(roles) - roles.count(WARMUP)
    is_unserved = not any(standing.is_open for standing in standings)
    is_thin = wanted > 1 and sum(standing >= Standing.DOUBTFUL for standing in standings) < 2
    return is_unserved, is_thin, len(standings) > 1 and standings.count(Standing.CAUGHT_UP) < 2
