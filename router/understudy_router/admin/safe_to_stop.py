"""The answer to whether a node may be stopped: the loss for readers, by store partition (pure, in slices).

A store partition is lost if no other node has a caught-up replica of it that stays, or if this node's replica is inside
the store's bound and the best of the others is not. An active role may go if a caught-up standby takes it over; it is
listed. While Redis is away no standby takes it over, so a bound that requires the active is broken.

An overview of all nodes uses their last reports. A decision about one node rests on nodes that answered just now
(`nodes_to_ask`, `since_ms`): a report from a second ago does not show that a node lives. Unknown is never a yes, be it
the assignment, the catalogue, a later assignment that nodes follow and this router has not read, or, while Redis is
away, whether a node lives that this router does not reach. The exception is a node that says it waits for its
checkpoint: a query that cannot be opened must not hold up the nodes of a fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from understudy_router.admin.facts import ACTIVE, Facts, Standing
from understudy_router.admin.snapshot import ClusterSnapshot, Document
from understudy_shared.base.plausible import is_later
from understudy_shared.base.texts import named
from understudy_shared.base.words import HostInfo, LagInfo, Role
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
    """Whether the cost is known; False while there is no assignment or no catalogue here, or a later assignment."""
    is_reassigned: bool = True
    """Whether another replica becomes active when the node is gone; False while Redis is away."""
    may_live: bool = False
    """Whether the node may live though this router does not reach it: only Redis would show that it died."""
    unanswered: Sequence[str] = ()
    """The nodes that have replicas of its tasks, and did not answer."""
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
        return self.is_known and not (self.may_live or self.last_replica.count or self.bound.count)

    def why(self, node_id: str) -> str:
        """Return the reason as one sentence."""
        if not self.is_known:
            return "this router does not know yet which node holds what"
        if self.may_live:
            return f"{node_id} does not answer this router, and while Redis is away it is not known whether it lives"
        if self.last_replica.count:
            silent = f" ({named(self.unanswered)} did not answer)" if self.unanswered else ""
            what = f"{node_id} has the last replica of {_partitions(self.last_replica.count)}{silent}"
            if not self.is_reassigned:
                return f"{what}, and nothing is reassigned while Redis is away: bring Redis back first"
            return f"{what}: stop it when another node has caught up, or drain it first"
        if self.bound.count and not self.is_reassigned:
            what = (
                f"without {node_id} {_partitions(self.bound.count)} would not be answered within the bound of the store"
            )
            return f"{what}, and no other replica becomes active while Redis is away: bring Redis back first"
        if self.bound.count:
            return (
                f"without {node_id} {_partitions(self.bound.count)} would be answered later than the bound of the store"
                " allows: wait until the other replicas have caught up"
            )
        if not self.is_reassigned:
            kept = "every partition keeps a caught-up replica on another node"
            return f"{kept}; while Redis is away no other becomes active, and lost replicas are not replaced"
        if self.active.count:
            gets = "gets" if self.active.count == 1 else "get"
            return f"every partition stays within its bound; {_partitions(self.active.count)} {gets} another active"
        return "every partition stays within its bound, and no active role moves"


def nodes_to_ask(snapshot: ClusterSnapshot, node_id: str) -> Generator[None, None, Mapping[str, HostInfo]]:
    """Return the nodes that take over when this node stops, with their addresses; and it, if only it can say whether
    it lives.
    """
    index = snapshot.index
    number, found = index.number_of.get(node_id), set[int]()
    for replica in () if number is None else index.of_node[number]:
        found.update(index.node[other] for other in index.holders(index.task[replica]))
        yield
    views = [snapshot.holders[each] for each in found if each != number]
    hosts = {view.node_id: view.endpoint for view in views if view.facts.standing.is_live}
    if number is not None and not snapshot.is_reassigned:
        own = snapshot.holders[number]
        is_known = own.dead is not None or own.facts.standing.is_live
        hosts |= {node_id: own.endpoint} if is_known and not own.is_live else {}
    return hosts


def losses_of(
    snapshot: ClusterSnapshot, node_id: str, bound_of: BoundOf, *, since_ms: float | None = None
) -> Generator[None, None, Losses]:
    """Return the cost of a stop of this node now; a node that holds no task costs nothing.

    `since_ms`: replicas on nodes that said nothing since then do not count; None: what their nodes last said counts.
    """
    index = snapshot.index
    is_known = _is_known(snapshot, node_id) and (since_ms is None or not _is_outdated(snapshot))
    found = Losses(is_known=is_known, is_reassigned=snapshot.is_reassigned)
    reports = [view.report for view in snapshot.holders]
    answered = [since_ms is None or (report is not None and report.said_ms >= since_ms) for report in reports]
    unanswered = set[int]()
    number = index.number_of.get(node_id)
    found.may_live = _may_live(snapshot, number)
    bounds = {route.name: bound_of(route.name) for route in index.routes}
    partitions = {route.name: route.partitions for route in index.routes}
    for replica in () if number is None else index.of_node[number]:
        own = snapshot.facts(replica)
        if own.standing.is_live:
            task = index.task[replica]
            heirs = [other for other in index.holders(task) if other != replica]
            unanswered.update(index.node[other] for other in heirs if not answered[index.node[other]])
            others = [snapshot.facts(other) for other in heirs if answered[index.node[other]]]
            partition, is_active = index.partition[task], index.role[replica] == ACTIVE
            for store in index.stores_of[index.operator_id[task]]:
                if partition < partitions[store]:
                    _add(found, own, others, (store, partition), bounds[store], is_active=is_active)
        yield
    found.unanswered = [index.node_ids[each] for each in sorted(unanswered)]
    return found


def losses_of_all(snapshot: ClusterSnapshot, bound_of: BoundOf) -> Generator[None, None, Mapping[str, Losses]]:
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


def _is_known(snapshot: ClusterSnapshot, node_id: str) -> bool:
    """Whether the assignment and the catalogue are known here; a node that waits for its checkpoint has nothing."""
    view = snapshot.nodes.get(node_id)
    waits = view is not None and view.heartbeat is not None and view.heartbeat.standing == "waiting"
    return waits or (snapshot.assignment is not None and snapshot.index.stores is not None)


def _may_live(snapshot: ClusterSnapshot, number: int | None) -> bool:
    """Whether a node with tasks may live though this router holds it for dead, as it said no farewell to Redis."""
    if number is None or snapshot.is_reassigned:
        return False
    view = snapshot.holders[number]
    return not view.is_live and (view.dead is None or not view.dead.said_farewell)


def _is_outdated(snapshot: ClusterSnapshot) -> bool:
    """Whether a node follows a later assignment than the one known here: what others hold is not known then."""
    known = snapshot.assignment
    return known is not None and any(is_later((beat.term, beat.epoch), known.order) for beat in snapshot.heartbeats)


def _nodes_at_risk(snapshot: ClusterSnapshot, bound_of: BoundOf) -> Generator[None, None, Collection[int]]:
    """Return the numbers of the nodes that may not be free to stop; the others are safe to stop.

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


def _usual_losses(snapshot: ClusterSnapshot, node_id: str) -> Losses:
    """Return the cost of a stop of a node that is not at risk: its active roles, which others take over."""
    index = snapshot.index
    found = Losses(is_known=_is_known(snapshot, node_id), is_reassigned=snapshot.is_reassigned)
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
    role = Role.ACTIVE if found.is_reassigned or is_active else Role.STANDBY
    heir = Role.ACTIVE if found.is_reassigned else Role.STANDBY
    if _fits(own, bound, role) and not any(_fits(each, bound, heir) for each in answering):
        found.bound.add(*where)


def _is_replaced(own: Facts, others: list[Facts]) -> bool:
    """Whether a lagging replica has an equal that stays."""
    if own.standing is not Standing.BEHIND or own.version is None:
        return False
    return any(
        each.standing is Standing.BEHIND and each.version is not None and each.version >= own.version for each in others
    )


def _fits(facts: Facts, bound: Bound, role: Role) -> bool:
    """Whether a reader under this bound gets an answer of a replica in this role."""
    if not facts.standing.is_open or facts.version is None:
        return False
    lag = LagInfo(facts.version, None, facts.offset_lag, facts.time_lag_ms)
    return refusal(bound, lag=lag, role=role, version=facts.version, position_committed_at_us=None) is None


def _partitions(count: int) -> str:
    return f"{count} store partition{'' if count == 1 else 's'}"
