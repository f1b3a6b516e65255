"""The sums over a snapshot's replicas: counts and worst lags by operator, tasks without an open replica (pure, in
slices).

Nodes whose replicas are all alike are counted at once. Only tasks with a replica that is not well are examined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
        differing: set[int] = set()
        for key, facts in view.own.items():
            replica = index.replica_by_key(key, number)
            if replica is not None:
                task, role = index.task[replica], index.role[replica]
                operator_id = index.operator_id[task]
                own[operator_id, role] += 1
                differing.add(replica)
                self._count(operator_id, facts, role, 1, _always(replica))
                if facts.standing is not Standing.CAUGHT_UP:
                    self.doubtful.add(task)
            yield
        for (operator_id, role), count in index.duties[number].items():
            alike = count - own[operator_id, role]
            if alike:
                where = partial(_first, index, number, (operator_id, role), differing)
                self._count(operator_id, view.facts, role, alike, where)
        if view.facts.standing is not Standing.CAUGHT_UP:
            self.doubtful.update(index.task[replica] for replica in index.of_node[number])

    def _count(self, operator_id: int, facts: Facts, role: int, count: int, where: Callable[[], int]) -> None:
        """Add so many replicas of these facts. `where` finds the first of them."""
        summary = self.summaries[operator_id]
        if not facts.standing.is_live:
            summary.dead += count
            return
        summary.by_role[role] += count
        summary.running += count * (facts.state == RUNNING)
        summary.restoring += count * (facts.state in {"RESTORING", "CREATED"})
        if facts.error:
            self._broken(summary, facts.error, count, where)
        if role == WARMUP:
            return
        if facts.offset_lag is None:
            summary.unknown += count
        elif summary.worst_lag is None or facts.offset_lag > summary.worst_lag:
            summary.worst_lag, summary.worst = facts.offset_lag, where()
        if facts.time_lag_ms is not None:
            summary.worst_lag_ms = max(facts.time_lag_ms, summary.worst_lag_ms or 0)

    def _broken(self, summary: Summary, error: str, count: int, where: Callable[[], int]) -> None:
        summary.broken += count
        if len(self.errors) < MAX_ERRORS:
            index, replica = self._index, where()
            task, node_id = index.task[replica], index.node_ids[index.node[replica]]
            stores = " and ".join(index.stores_of[index.operator_id[task]])
            self.errors.append(f"{stores} {index.partition[task]} on {node_id}: {error}")


def _always(replica: int) -> Callable[[], int]:
    return lambda: replica


def _first(index: ReplicaIndex, number: int, kind: tuple[int, int], differing: Collection[int]) -> int:
    """Return the first replica of a node, in an operator and role, that is like the others of the node."""
    operator_id, role = kind
    tasks = index.tasks_of[operator_id]
    return next(
        replica
        for replica in index.of_node[number]
        if index.role[replica] == role and index.task[replica] in tasks and replica not in differing
    )


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
    judged: dict[tuple[tuple[Standing, ...], bytes], _Verdict] = {}
    for task in chain(index.unheld, doubtful):
        replicas = index.holders(task)
        standings = tuple(facts_of(index, holders, replica).standing for replica in replicas)
        kind = (standings, bytes(index.role[replicas.start : replicas.stop]))
        verdict = judged.get(kind)
        if verdict is None:
            verdict = judged[kind] = _judged(*kind)
        if verdict.is_unserved:
            unserved.append(task)
            summaries[index.operator_id[task]].unserved += 1
        elif verdict.is_thin:
            thin.append(task)
            summaries[index.operator_id[task]].thin += 1
        if verdict.is_unsettled:
            unsettled.append(task)
        yield
    unserved.sort()
    yield
    thin.sort()
    yield
    return Totals(summaries, tuple(unserved), tuple(thin), unsettled)


class _Verdict(NamedTuple):
    """The lists of Totals that a task is in."""

    is_unserved: bool
    is_thin: bool
    is_unsettled: bool


def _judged(standings: Sequence[Standing], roles: bytes) -> _Verdict:
    """Judge a task by the standings and the roles of its replicas."""
    wanted = len(roles) - roles.count(WARMUP)
    return _Verdict(
        is_unserved=not any(standing.is_open for standing in standings),
        is_thin=wanted > 1 and sum(standing >= Standing.DOUBTFUL for standing in standings) < 2,
        is_unsettled=len(standings) > 1 and standings.count(Standing.CAUGHT_UP) < 2,
    )


def facts_of(index: ReplicaIndex, holders: Sequence[NodeView], replica: int) -> Facts:
    """Return the facts of a replica: those of its node, unless it differs from the others of the node."""
    view = holders[index.node[replica]]
    if not view.own:
        return view.facts
    return view.own.get(index.key(index.task[replica]), view.facts)
