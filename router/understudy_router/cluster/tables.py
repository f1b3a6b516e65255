"""What a router knows of its nodes: heartbeats, the assignment, their health (no I/O, no clock, one thread).

Each kind of event has one method; time is passed in. Ages are this machine's monotonic time since a report arrived,
plus the age that a key read from the bus had by its expiry. `version` grows with every change that may alter a choice.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from understudy_router.cluster.health import Change, Health, HealthTable
from understudy_router.cluster.known_end import KnownEnd
from understudy_router.cluster.known_forks import KnownForks
from understudy_router.cluster.promotions import promotions
from understudy_router.cluster.reports import DeadNode, NodeReport, TableEvent
from understudy_shared.base.plausible import (
    MAX_JUMP,
    Order,
    Succession,
    highest_plausible,
    is_later,
    is_plausible,
    is_plausible_order,
    succession,
)
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS
from understudy_shared.bus.messages import Assignment, Farewell, Heartbeat
from understudy_shared.cluster.admission import MemberAdmission
from understudy_shared.cluster.sanitizing import sanitized
from understudy_shared.cluster.silence import Silence

MAX_EVENTS = 256
MAX_DEAD = 256
DEAD_KEPT_MS = 10 * 60 * 1000
"""How long a dead node stays in reports."""


class _HopEnd(NamedTuple):
    """The newest end version that came with a hop's reply instead of a heartbeat."""

    lineage: str | None
    version: int
    said_ms: float


class Tables:
    """`nodes` are the live nodes, by node id."""

    def __init__(
        self,
        *,
        end_expiry_ms: float = 10_000,
        suspect_after_ms: float = 200,
        refuse: Callable[[str, str], None] = lambda kind, why: None,
    ) -> None:
        """`end_expiry_ms`: an older confirmation of the end does not count. `suspect_after_ms`: see `HealthTable`.

        `refuse(kind, why)` counts a document that is not used, or only partly used.
        """
        self.end_expiry_ms = end_expiry_ms
        self.health = HealthTable(suspect_after_ms=suspect_after_ms)
        self.nodes: dict[str, NodeReport] = {}
        self.silence = Silence()
        self.dead: dict[str, DeadNode] = {}
        self.assignment: Assignment | None = None
        self.previous: Assignment | None = None
        """The assignment before, which nodes follow until they receive the next."""
        self.bus_lost_why: str | None = "not connected yet"
        self.events: deque[TableEvent] = deque(maxlen=MAX_EVENTS)
        self.version = 0
        self.changes = 0
        """Grows as `version` does, but not with the heartbeats of known nodes: those alter few choices."""
        self._refuse = refuse
        self._admission = MemberAdmission()
        self._holders: frozenset[str] = frozenset()
        """The nodes that the assignment names."""
        self._forks = KnownForks()
        self._hop_end: _HopEnd | None = None
        self._had_bus = False
        self._ages_reset_ms = float("-inf")
        self._end = KnownEnd(lambda: (self._assigned_nodes(), self.lineage))
        self._catalogue: tuple[str | None] | None = None
        """The cached `catalogue_digest`; None when it must be found again."""

    @property
    def lineage(self) -> str | None:
        """The lineage in use: the assignment's, else that of most live nodes."""
        if self.assignment is not None:
            return self.assignment.lineage
        counts = Counter(node.heartbeat.lineage for node in self.nodes.values() if node.heartbeat.lineage is not None)
        return min(counts, key=lambda lineage: (-counts[lineage], lineage), default=None)

    @property
    def order(self) -> Order:
        """(term, epoch) of the assignment; (0, 0) before there is one."""
        return (0, 0) if self.assignment is None else self.assignment.order

    def highest(self) -> Order:
        """The highest (term, epoch) in any heartbeat that can be true."""
        orders = ((node.heartbeat.term, node.heartbeat.epoch) for node in self.nodes.values())
        return highest_plausible(orders, self.order)

    @property
    def holders(self) -> frozenset[str]:
        """The nodes that the assignment names."""
        return self._holders

    @property
    def forks(self) -> Mapping[str, str]:
        """The nodes that follow another history of the checkpoint, with how that shows: they are not read."""
        return self._forks.found

    @property
    def catalogue_digest(self) -> str | None:
        """The catalogue to encode keys by: in the lineage in use, that of most live nodes. Nodes that the assignment
        does not name count only while none of the named ones lives.
        """
        if self._catalogue is not None:
            return self._catalogue[0]
        lineage = self.lineage
        counts: Counter[str] = Counter()
        ends: dict[str, int] = {}
        for beat in (node.heartbeat for node in self._assigned_nodes()):
            if beat.catalogue is not None and beat.lineage == lineage:
                counts[beat.catalogue] += 1
                ends[beat.catalogue] = max(ends.get(beat.catalogue, 0), beat.end_version)
        chosen = min(counts, key=lambda digest: (-counts[digest], -ends[digest], digest), default=None)
        if len(counts) < 2:  # else ends decide a tie, and each heartbeat may move one
            self._catalogue = (chosen,)
        return chosen

    @property
    def end_version(self) -> int:
        """The newest end version that any node reported for the lineage in use; 0 before any report."""
        end = self._end.version()
        if self._hop_end is not None and self._hop_end.lineage == self.lineage:
            end = max(end, self._hop_end.version)
        return end

    def end_confirmed(self, now_ms: float) -> bool:
        """Whether any node confirmed the end recently enough."""
        confirmed_ms = self._end.confirmed_ms()
        return confirmed_ms is not None and now_ms - confirmed_ms <= self.end_expiry_ms

    def heard(self, heartbeat: Heartbeat, *, age_ms: float, now_ms: float) -> bool:
        """Take a heartbeat in; False when it is too old, or there is no room for its node."""
        said_ms = now_ms - age_ms
        if age_ms > heartbeat.heartbeat_ms * EXPIRY_HEARTBEATS or self._is_old(heartbeat, said_ms):
            return False
        if not self._has_room(heartbeat, now_ms):
            return False
        heartbeat = self._sanitized(heartbeat)
        known, had_assigned = self.nodes.get(heartbeat.node_id), self._has_assigned_nodes
        self.nodes[heartbeat.node_id] = report = NodeReport(heartbeat, said_ms)
        self.dead.pop(heartbeat.node_id, None)
        self.silence.answered(heartbeat.node_id)
        is_assigned = heartbeat.node_id in self._holders
        decides = is_assigned or not had_assigned
        if self.assignment is None or (is_assigned and not had_assigned):
            self._end.forget()  # another lineage, or only assigned nodes count now
        elif decides:
            self._end.heard(report)
        if decides and (known is None or _catalogue_inputs(known.heartbeat) != _catalogue_inputs(heartbeat)):
            self._catalogue = None
        if known is None:
            endpoint = heartbeat.endpoint
            self._event(now_ms, "joined", f"{heartbeat.node_id} at {endpoint.host}:{endpoint.port}")
        elif known.heartbeat.incarnation != heartbeat.incarnation:
            self.health.forget(heartbeat.node_id)
            self._event(now_ms, "restarted", heartbeat.node_id)
        if self._forks.heard(heartbeat):
            self._judge_forks(now_ms)
        self.version += decides  # thousands of other nodes must not have every choice made again
        goes_on = known is not None and known.heartbeat.incarnation == heartbeat.incarnation
        self.changes += decides and not (goes_on and is_assigned == had_assigned)
        return True

    def left(self, farewell: Farewell, now_ms: float = 0.0) -> None:
        """A node said farewell."""
        known = self.nodes.get(farewell.node_id)
        if known is not None and known.heartbeat.incarnation == farewell.incarnation:
            self._mark_dead(farewell.node_id, now_ms, "it said farewell", "left")

    def assigned(self, assignment: Assignment, now_ms: float = 0.0, place: Callable[[str], str] = str) -> bool:
        """Take an assignment in; False unless its (term, epoch) is above the present one and can be true. `place` names
        a task in the events.
        """
        if assignment.order <= self.order:
            return False
        if not is_plausible_order(assignment.order, self.order):
            self._refuse("assignment", "assignment {}.{}, where {}.{} is known".format(*assignment.order, *self.order))
            return False
        for line in promotions(self.assignment or assignment, assignment, place):
            self._event(now_ms, "promoted", line)
        self.previous, self.assignment = self.assignment, assignment
        self._holders = assignment.holders
        self._judge_forks(now_ms)
        self._catalogue = None
        self._end.forget()
        self._changed()
        return True

    def bus_lost(self, now_ms: float, why: str) -> None:
        """The bus is away: silence on it does not show that a node died."""
        if self.bus_lost_why is None:
            self._event(now_ms, "bus-lost", why)
        self.bus_lost_why = why
        self._changed()

    def bus_back(self, now_ms: float) -> None:
        """The bus is reachable again, and its keys were read or will be."""
        if self.bus_lost_why is not None:
            self._event(now_ms, "bus-back", "")
        self.bus_lost_why = None
        if self._had_bus:
            self.reset_heartbeat_ages(now_ms)
        self._had_bus = True
        self._changed()

    def reset_heartbeat_ages(self, now_ms: float) -> None:
        """The bus stood still until now, so silence before now does not count."""
        self._ages_reset_ms = now_ms

    def did_not_answer(self, node_id: str, asked_ms: float) -> None:
        """A node did not answer a request of that time. This does not count if a later heartbeat arrived."""
        node = self.nodes.get(node_id)
        if node is None or node.said_ms <= asked_ms:
            self.silence.did_not_answer(node_id, asked_ms)

    def _assigned_nodes(self) -> Collection[NodeReport]:
        """The live nodes that the assignment names, without forks; all nodes while none of these lives."""
        found = [self.nodes[node_id] for node_id in self._holders - self.forks.keys() if node_id in self.nodes]
        return found or self.nodes.values()

    def _judge_forks(self, now_ms: float) -> None:
        new = self._forks.judge((node.heartbeat for node in self.nodes.values()), self.lineage, self._holders)
        if new is not None:
            for why in new:
                self._event(now_ms, "fork-found", why)
            self._end.forget()
            self._catalogue = None
            self._changed()

    @property
    def _has_assigned_nodes(self) -> bool:
        return any(node_id in self.nodes for node_id in self._holders)

    def others_heard_since(self, node_id: str, since_ms: float) -> bool:
        """Whether a node of the assignment other than this one was heard, on the bus or by its answer, since then."""
        return any(
            node.said_ms >= since_ms for other, node in self.nodes.items() if other != node_id and self.is_known(other)
        )

    def heartbeat_ms(self, *, default_ms: int) -> int:
        """The shortest heartbeat of the nodes that the assignment names, else of all nodes; `default_ms` without any.

        A node that no assignment names does not set the pace while others do: it may be forged.
        """
        return min((node.heartbeat.heartbeat_ms for node in self._assigned_nodes()), default=default_ms)

    def is_known(self, node_id: str) -> bool:
        """Whether the assignment names a node; while there is no assignment every node counts."""
        return self.assignment is None or node_id in self.holders or node_id in self.assignment.members

    def is_silent(self, node: NodeReport, now_ms: float) -> bool:
        """Whether a node was silent for its expiry: it is dead unless it answers the router's request."""
        silent_ms = now_ms - max(node.said_ms, self._ages_reset_ms)
        return self.bus_lost_why is None and silent_ms > node.heartbeat.heartbeat_ms * EXPIRY_HEARTBEATS

    def expire(self, now_ms: float) -> None:
        """Declare nodes dead that were silent for three of their heartbeats and did not answer a request.

        An end version from a hop's reply expires as well, because a history that was rewound ends earlier.
        """
        if self._hop_end is not None and now_ms - self._hop_end.said_ms > self.end_expiry_ms:
            self._hop_end = None
            self._changed()
        if self.bus_lost_why is None:
            for node_id, node in list(self.nodes.items()):
                is_asked = self.is_known(node_id)
                if self.is_silent(node, now_ms) and (self.silence.is_unanswered(node_id) or not is_asked):
                    expiry_ms = node.heartbeat.heartbeat_ms * EXPIRY_HEARTBEATS
                    why = f"silent for more than {expiry_ms} ms"
                    why += ", and it did not answer when asked" if is_asked else ", and no assignment names it"
                    self._mark_dead(node_id, now_ms, why, "died")
        for node_id, dead in list(self.dead.items()):
            if now_ms - dead.died_ms > DEAD_KEPT_MS:
                del self.dead[node_id]

    def hop_failed(self, node_id: str, now_ms: float, why: str) -> None:
        """A request to a node failed."""
        if node_id in self.nodes:
            self._health_changed(node_id, now_ms, self.health.failed(node_id, now_ms, why))

    def hop_silent(self, node_id: str, now_ms: float, for_ms: float) -> None:
        """A node answered no hop for `for_ms`, while other nodes did."""
        if node_id in self.nodes:
            self._health_changed(node_id, now_ms, self.health.silent(node_id, now_ms, for_ms))

    def hop_answered(
        self, node_id: str, now_ms: float, *, took_ms: float, term: int, epoch: int, end_version: int
    ) -> bool:
        """A node answered a hop. True when it follows a later assignment than the one known here."""
        node = self.nodes.get(node_id)
        if node is not None:
            change = self.health.answered(node_id, now_ms, took_ms)
            if change is not None:
                self._health_changed(node_id, now_ms, change)
            if node.heartbeat.lineage == self.lineage and end_version > self.end_version:
                if is_plausible(end_version, self.end_version):
                    self._hop_end = _HopEnd(self.lineage, end_version, now_ms)
                    self._changed()
                else:
                    self._refuse("reply", f"end {end_version} in a reply of {node_id}, {self.end_version} is known")
        return self.assignment is None or is_later((term, epoch), self.order)

    def _health_changed(self, node_id: str, now_ms: float, change: Change | None) -> None:
        """Record a change of health, and make choices anew."""
        if change is not None:
            event = "recovered" if change.health is Health.OK else str(change.health)
            self._event(now_ms, event, f"{node_id}: {change.why}" if change.why else node_id)
            self._changed()

    def _is_old(self, heartbeat: Heartbeat, said_ms: float) -> bool:
        """Whether a newer heartbeat of the same process, or of a later process with this node id, is known."""
        dead = self.dead.get(heartbeat.node_id)
        if dead is not None and dead.heartbeat.incarnation == heartbeat.incarnation:
            # The key may have been read before its node said farewell.
            return not self._follows(heartbeat, dead.heartbeat.sequence, said_ms - dead.died_ms)
        known = self.nodes.get(heartbeat.node_id)
        if known is None:
            return False
        if known.heartbeat.incarnation == heartbeat.incarnation:
            return not self._follows(heartbeat, known.heartbeat.sequence, said_ms - known.said_ms)
        return said_ms < known.said_ms

    def _follows(self, heartbeat: Heartbeat, known: int, later_ms: float) -> bool:
        """Whether a heartbeat comes after number `known` of the same process."""
        found = succession(heartbeat.sequence, known, later_ms=later_ms, heartbeat_ms=heartbeat.heartbeat_ms)
        if found is Succession.ABSURD:
            self._refuse("heartbeat", f"a heartbeat of {heartbeat.node_id} numbered {heartbeat.sequence} after {known}")
        return found is Succession.NEWER

    def _has_room(self, heartbeat: Heartbeat, now_ms: float) -> bool:
        """Whether its node is admitted beside the others."""
        admitted, leaves = self._admission.admit(heartbeat, self.nodes, self._holders, now_ms)
        if leaves is not None:
            self._mark_dead(leaves, now_ms, "there are too many nodes that no assignment names", "left out")
        if not admitted:
            self._refuse("stranger", f"a heartbeat of {heartbeat.node_id}: too many nodes that no assignment names")
        return admitted

    def _sanitized(self, heartbeat: Heartbeat) -> Heartbeat:
        """The heartbeat without numbers that cannot be true."""
        if heartbeat.end_version <= MAX_JUMP and is_plausible_order((heartbeat.term, heartbeat.epoch), self.order):
            return heartbeat  # the usual case, without a search for the end among all nodes
        end_version, lineage = self._end.last, self.lineage
        if not is_plausible(heartbeat.end_version, end_version):
            end_version = self.end_version
        taken, why = sanitized(heartbeat, order=self.order, end_version=end_version, lineage=lineage)
        if why:
            self._refuse("heartbeat", why)
        return taken

    def _mark_dead(self, node_id: str, now_ms: float, why: str, event: str) -> None:
        node = self.nodes.pop(node_id)
        self.health.forget(node_id)
        self._admission.forget(node_id)
        self._forks.left(node_id)
        self._judge_forks(now_ms)
        self._catalogue = None
        if node_id in self._holders or not self._has_assigned_nodes:
            self._end.forget()
        self._changed()
        if event == "died" and not self.is_known(node_id) and len(self.dead) >= MAX_DEAD:
            return  # the dead nodes of the assignment keep their room
        while len(self.dead) >= MAX_DEAD:
            del self.dead[min(self.dead, key=lambda dead: self.dead[dead].died_ms)]
        self.dead[node_id] = DeadNode(node.heartbeat, now_ms, why, said_farewell=event == "left")
        self._event(now_ms, event, f"{node_id}: {why}")

    def _changed(self) -> None:
        self.version, self.changes = self.version + 1, self.changes + 1

    def _event(self, at_ms: float, event: str, detail: str) -> None:
        self.events.append(TableEvent(at_ms, event, detail))


def _catalogue_inputs(heartbeat: Heartbeat) -> tuple[str | None, str | None]:
    """The parts of a heartbeat that decide the catalogue in use."""
    return (heartbeat.lineage, heartbeat.catalogue)
