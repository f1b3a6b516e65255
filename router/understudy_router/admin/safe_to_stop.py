"""The answer to whether a node may be stopped: the loss of readers, store partition by store partition (pure, in
slices).

A store partition is lost when no other node has a caught-up replica of it that stays, or when the best of the others is
not inside the store's bound although this node's is. A lost active role is no loss while a caught-up standby takes it
over; it is listed. The lag of the others is what they last reported, so it is up to a heartbeat old. While the
assignment or the catalogue is unknown, no node is safe to stop but one that says it waits for its checkpoint: a query
that cannot be opened must not hold up the nodes of a fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field

from understudy_router.admin.facts import Facts, Standing
from understudy_router.admin.replica_index import ACTIVE
from understudy_router.admin.snapshot import Document, Snapshot
from understudy_shared.base.words import LagInfo, Role
from understudy_shared.reads.bounds import NO_BOUND, Bound, refusal

MAX_LISTED = 1000
"""Most store partitions of each kind that are listed; the counts are of all."""

BoundOf = Callable[[str], Bound]
"""The function that returns the bound of a store for readers that give no bound."""


@dataclass(slots=True)
class Loss:
    """The store partitions of one kind of loss."""

    count: int = 0
    listed: list[Document] = field(default_factory=list)

    def add(self, store: str, partition: int) -> None:
        self.count += 1
        if len(self.listed) < MAX_LISTED:
            self.listed.append({"store": store, "partition": partition})


@dataclass(slots=True)
class Losses:
    """The cost of a stop of a node."""

    is_known: bool = True
    """Whether the cost is known; False while there is no assignment or no catalogue here."""
    last_replica: Loss = field(default_factory=Loss)
    active: Loss = field(default_factory=Loss)
    bound: Loss = field(default_factory=Loss)

    def document(self) -> Document:
        """Return the store partitions by kind, and how many there are of each."""
        kinds = {"last_replica": self.last_replica, "active": self.active, "bound": self.bound}
        listed = {kind: loss.listed for kind, loss in kinds.items()}
        return {**listed, "counts": {kind: loss.count for kind, loss in kinds.items()}}

    @property
    def is_safe(self) -> bool:
        return self.is_known and not (self.last_replica.count or self.bound.count)

    def why(self, node_id: str) -> str:
        """Return the reason as one sentence."""
        if not self.is_known:
            return "this router does not know yet which node holds what"
        if self.last_replica.count:
            what = f"{node_id} has the last replica of {_partitions(self.last_replica.count)}"
            return f"{what}: stop it when another node has caught up, or drain it first"
        if self.bound.count:
            return (
                f"without {node_id} {_partitions(self.bound.count)} would be answered later than the bound of the store"
                " allows: wait until the other replicas have caught up"
            )
        if self.active.count:
            gets = "gets" if self.active.count == 1 else "get"
            return f"every partition stays within its bound; {_partitions(self.active.count)} {gets} another active"
        return "every partition stays within its bound, and no active role moves"


def losses_of(snapshot: Snapshot, node_id: str, bound_of: BoundOf) -> Generator[None, None, Losses]:
    """Return the cost of a stop of this node now; a node that holds no task costs nothing."""
    index, found = snapshot.index, Losses(is_known=_is_known(snapshot, node_id))
    number = index.number_of.get(node_id)
    bounds = {route.name: bound_of(route.name) for route in index.routes}
    partitions = {route.name: route.partitions for route in index.routes}
    for replica in () if number is None else index.of_node[number]:
        own = snapshot.facts(replica)
        if own.standing.is_live:
            task = index.task[replica]
            others = [snapshot.facts(other) for other in index.holders(task) if other != replica]
            partition, is_active = index.partition[task], index.role[replica] == ACTIVE
            for store in index.stores_of[index.operator_id[task]]:
                if partition < partitions[store]:
                    _add(found, own, others, (store, partition), bounds[store], is_active=is_active)
        yield
    return found


def losses_of_all(snapshot: Snapshot, bound_of: BoundOf) -> Generator[None, None, Mapping[str, Losses]]:
    """Return the cost of a stop of each node. The tasks of nodes that are not at risk are not examined one by one."""
    at_risk = yield from _nodes_at_risk(snapshot, bound_of)
    found: dict[str, Losses] = {}
    for node_id in snapshot.nodes:
        number = snapshot.index.number_of.get(node_id)
        if number in at_risk:
            found[node_id] = yield from losses_of(snapshot, node_id, bound_of)
        else:
            found[node_id] = _usual_losses(snapshot, node_id)
        yield
    return found


def _is_known(snapshot: Snapshot, node_id: str) -> bool:
    """Whether the assignment and the catalogue are known here; a node that waits for its checkpoint has nothing."""
    view = snapshot.nodes.get(node_id)
    waits = view is not None and view.heartbeat is not None and view.heartbeat.standing == "waiting"
    return waits or (snapshot.assignment is not None and snapshot.index.stores is not None)


def _nodes_at_risk(snapshot: Snapshot, bound_of: BoundOf) -> Generator[None, None, Collection[int]]:
    """Return the numbers of the nodes whose stop may have a cost; the others are safe to stop.

    A node is safe when it is in step and each of its tasks has two caught-up replicas, as nearly all have: so only the
    tasks without these are examined.
    """
    index = snapshot.index
    if any(bound_of(route.name) != NO_BOUND for route in index.routes):
        return range(len(index.node_ids))
    found = set(index.alone)
    views = enumerate(snapshot.holders)
    found.update(number for number, view in views if view.own or view.facts.standing < Standing.DOUBTFUL)
    for task in snapshot.totals.unsettled:
        if len(found) == len(index.node_ids):
            break  # all nodes are at risk, as when the bus is lost
        found.update(index.node[replica] for replica in index.holders(task))
        yield
    return found


def _usual_losses(snapshot: Snapshot, node_id: str) -> Losses:
    """Return the cost of a stop of a node that is not at risk: its active roles, which others take over."""
    index, found = snapshot.index, Losses(is_known=_is_known(snapshot, node_id))
    number = index.number_of.get(node_id)
    if number is not None and snapshot.holders[number].is_live:
        found.active.count = sum(
            len(replicas) * len(index.stores_of[operator_id])
            for (operator_id, role), replicas in index.duties[number].items()
            if role == ACTIVE
        )
    return found


def _add(
    found: Losses,
    own: Facts,
    others: list[Facts],
    where: tuple[str, int],
    bound: Bound,
    *,
    is_active: bool,
) -> None:
    staying = [each for each in others if each.standing is Standing.CAUGHT_UP]
    if not own.standing.is_open and any(each.standing.is_open for each in others):
        return  # the other nodes serve all that it serves
    if not staying and not _is_replaced(own, others):
        found.last_replica.add(*where)
        return
    if is_active:
        found.active.add(*where)
    answering = [each for each in others if each.standing in {Standing.BEHIND, Standing.CAUGHT_UP}]
    if _fits(own, bound) and not any(_fits(each, bound) for each in answering):
        found.bound.add(*where)


def _is_replaced(own: Facts, others: list[Facts]) -> bool:
    """Whether a replica that is itself behind has an equal that stays."""
    if own.standing is not Standing.BEHIND or own.version is None:
        return False
    return any(
        each.standing is Standing.BEHIND and each.version is not None and each.version >= own.version for each in others
    )


def _fits(facts: Facts, bound: Bound) -> bool:
    """Whether a reader under this bound gets an answer. The active role moves to one of the remaining replicas."""
    if not facts.standing.is_open or facts.version is None:
        return False
    lag = LagInfo(facts.version, None, facts.offset_lag, facts.time_lag_ms)
    return refusal(bound, lag=lag, role=Role.ACTIVE, version=facts.version, position_committed_at_us=None) is None


def _partitions(count: int) -> str:
    return f"{count} store partition{'' if count == 1 else 's'}"
