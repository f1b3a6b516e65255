"""A router's knowledge of its cluster beyond `ClusterView`: the inputs of choices, the nodes' health, and events.

Each kind of event has one method; time is passed in (no I/O, no clock, one thread).

A thousand nodes send a heartbeat a second, and every choice needs the end of the history: the newest that any node
reports. So the maximum over all nodes is cached, and a heartbeat costs a comparison. All nodes are searched only after
the node with the maximum went back or away, when the number is next read. A heartbeat without forks, as nearly all are,
costs two comparisons for them.

A node that dies may have had thousands of actives. Their moves are one event for each pair of nodes: a line for each
task would push the death itself out of the report.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from understudy_router.cluster.health import Health, HealthChange, HealthTable
from understudy_shared.base.plausible import is_later, is_plausible
from understudy_shared.base.texts import named
from understudy_shared.base.words import FORKED
from understudy_shared.bus.messages import Assignment, Farewell, Heartbeat
from understudy_shared.cluster.view import AcceptedHeartbeat, ClusterView, Death, NodeReport, refused_forks

MAX_EVENTS = 256


MAX_LINES = 64


def promotions(before: Assignment, after: Assignment, place: Callable[[str], str] = str) -> Iterator[str]:
    """Yield a line for each pair of nodes where one took tasks over from the other, those with most tasks first.
    `place` names a task for people.
    """
    moved: dict[tuple[str | None, str | None], list[str]] = {}
    for task, duty in after.tasks.items():
        known = before.tasks.get(task, duty)
        if known is not duty and known.active != duty.active:
            moved.setdefault((duty.active, known.active), []).append(task)
    by_number = sorted(moved.items(), key=lambda each: -len(each[1]))
    for (active, old), tasks in islice(by_number, MAX_LINES):
        yield f"{active or 'nobody'} is active for {named(map(place, tasks))}, after {old or 'nobody'}"


class KnownForks:
    """The nodes that follow another history. `found` has them, with the evidence; the router does not read them."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._named: dict[str, frozenset[str]] = {}
        """The nodes with forks in their heartbeats, and the nodes that each of them names."""

    def heard(self, heartbeat: Heartbeat) -> bool:
        """Take a heartbeat in. Return True when `judge` may come to another result."""
        node_id = heartbeat.node_id
        was_speaking = self._named.pop(node_id, None) is not None
        if heartbeat.forks or FORKED in heartbeat.degraded:
            self._named[node_id] = frozenset(heartbeat.forks)
            return True
        return was_speaking or any(node_id in named for named in self._named.values())

    def left(self, node_id: str) -> None:
        """Forget a node that is gone, and its reports about other nodes."""
        self._named.pop(node_id, None)

    def judge(self, heartbeats: Iterable[Heartbeat], lineage: str | None, named: Collection[str]) -> list[str] | None:
        """Decide again which nodes follow a fork. Return why, for new ones; None: nothing changed."""
        if not self._named and not self.found:
            return None
        known = self.found
        beats = (beat for beat in heartbeats if beat.lineage == lineage)
        self.found = refused_forks(beats, named) if self._named else {}
        if self.found.keys() == known.keys():
            return None
        return [self.found[node_id] for node_id in sorted(self.found.keys() - known.keys())]


class Highest:
    """The numbers by node id. `value` is the highest of them, `None` without any."""

    def __init__(self) -> None:
        self._numbers: dict[str, float] = {}
        self._value: float | None = None
        self._is_found = True

    @property
    def value(self) -> float | None:
        if not self._is_found:
            self._value = max(self._numbers.values(), default=None)
            self._is_found = True
        return self._value

    def fill(self, numbers: Mapping[str, float]) -> None:
        """Start again from these numbers."""
        self._numbers = dict(numbers)
        self._is_found = False

    def put(self, node_id: str, number: float | None) -> None:
        """Set the node's number; `None` removes it."""
        before = self._numbers.pop(node_id, None)
        if number is not None:
            self._numbers[node_id] = number
        if not self._is_found:
            return
        if number is not None and (self._value is None or number >= self._value):
            self._value = number
        elif before is not None and before == self._value:
            self._is_found = False


class KnownEnd:
    """The newest end of the nodes that count. `counting` gives the reports that count now, and the lineage in use."""

    def __init__(self, counting: Callable[[], tuple[Iterable[NodeReport], str | None]]) -> None:
        self._counting = counting
        self._ends, self._confirmations = Highest(), Highest()
        self._lineage: str | None = None
        self._is_current = False

    def forget(self) -> None:
        """Drop the cached end: other nodes or lineages may count now. The next read computes it."""
        self._is_current = False

    def heard(self, report: NodeReport) -> None:
        """Take in a new report of a node that counts."""
        if not self._is_current:
            return
        is_same = report.heartbeat.lineage == self._lineage
        self._ends.put(report.heartbeat.node_id, report.heartbeat.end_version if is_same else None)
        self._confirmations.put(report.heartbeat.node_id, _confirmed_ms(report) if is_same else None)

    def version(self) -> int:
        """Return the newest end that any of the nodes reported; 0 before any report."""
        if not self._is_current:
            self._count()
        return int(self._ends.value or 0)

    def confirmed_ms(self) -> float | None:
        """Return when a node last confirmed the end, on this machine's clock; `None` when no node confirms it."""
        if not self._is_current:
            self._count()
        return self._confirmations.value

    def _count(self) -> None:
        reports, self._lineage = self._counting()
        counted = {each.heartbeat.node_id: each for each in reports if each.heartbeat.lineage == self._lineage}
        self._ends.fill({node_id: each.heartbeat.end_version for node_id, each in counted.items()})
        confirmed = {node_id: _confirmed_ms(each) for node_id, each in counted.items()}
        self._confirmations.fill({node_id: at_ms for node_id, at_ms in confirmed.items() if at_ms is not None})
        self._is_current = True


def _confirmed_ms(report: NodeReport) -> float | None:
    age_ms = report.heartbeat.end_age_ms
    return None if age_ms is None else report.said_ms - age_ms


class _HopEnd(NamedTuple):
    """The newest end version that came with a hop's reply instead of a heartbeat."""

    lineage: str | None
    version: int
    said_ms: float


class TableEvent(NamedTuple):
    """An event for reports, at this machine's monotonic time."""

    at_ms: float
    event: str
    detail: str


class Tables(ClusterView):
    """The view of one router. `version` grows with every change that may alter a choice."""

    def __init__(
        self,
        *,
        end_expiry_ms: float = 10_000,
        suspect_after_ms: float = 200,
        refuse: Callable[[str, str], None] = lambda kind, why: None,
    ) -> None:
        """Start with empty tables. `end_expiry_ms`: an older confirmation of the end does not count.
        `suspect_after_ms`: see `HealthTable`.
        """
        super().__init__(refuse, lambda: (self.lineage, self.end_version))
        self.end_expiry_ms = end_expiry_ms
        self.health = HealthTable(suspect_after_ms=suspect_after_ms)
        self.previous: Assignment | None = None
        """The assignment before the present one, which nodes follow until they receive the present one."""
        self.bus_lost_why: str | None = "not connected yet"
        self.events: deque[TableEvent] = deque(maxlen=MAX_EVENTS)
        self.version = 0
        self.changes = 0
        """A number that grows as `version` does, but not with heartbeats of known nodes."""
        self._forks = KnownForks()
        self._hop_end: _HopEnd | None = None
        self._had_bus = False
        self._end = KnownEnd(lambda: (self._assigned_nodes(), self.lineage))
        self._pace: tuple[int, int | None] | None = None
        """The shortest heartbeat interval, and the `changes` when it was found."""
        self._catalogue: tuple[str | None] | None = None
        """The cached `catalogue_digest`; `None` when it must be computed again."""

    @property
    def lineage(self) -> str | None:
        """The lineage in use: the assignment's, else the one of most live nodes."""
        if self.assignment is not None:
            return self.assignment.lineage
        counts = Counter(node.heartbeat.lineage for node in self.nodes.values() if node.heartbeat.lineage is not None)
        return min(counts, key=lambda lineage: (-counts[lineage], lineage), default=None)

    @property
    def forks(self) -> Mapping[str, str]:
        """The nodes that follow another history of the checkpoint, with the evidence: the router does not read them."""
        return self._forks.found

    @property
    def catalogue_digest(self) -> str | None:
        """The catalogue to encode keys by: in the lineage in use, the one of most live nodes. Nodes that the assignment
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
    def has_catalogue_digest(self) -> bool:
        """Whether the `catalogue_digest` is computed, and holds until another node or catalogue is heard."""
        return self._catalogue is not None

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

    def heard(self, heartbeat: Heartbeat, *, age_ms: float, now_ms: float) -> AcceptedHeartbeat | None:
        """Take a heartbeat in. Return `None` when it is too old, or there is no room for its node."""
        # One pass decides what a heartbeat changes, because a thousand nodes send one a second: the end, the catalogue
        # and the choices are computed again only when this heartbeat can alter them.
        had_assigned = self._has_assigned_nodes
        heard = super().heard(heartbeat, age_ms=age_ms, now_ms=now_ms)
        if heard is None:
            return None
        if heard.left_out is not None:
            self._died(heard.left_out, now_ms)
        known, heartbeat = heard.before, heard.report.heartbeat
        is_assigned = heartbeat.node_id in self.holders
        decides = is_assigned or not had_assigned
        if self.assignment is None or (is_assigned and not had_assigned):
            self._end.forget()  # another lineage, or only assigned nodes count now
        elif decides:
            self._end.heard(heard.report)
        if decides and (known is None or _catalogue_inputs(known.heartbeat) != _catalogue_inputs(heartbeat)):
            self._catalogue = None
        if known is None:
            endpoint = heartbeat.endpoint
            self._event(now_ms, "joined", f"{heartbeat.node_id} at {endpoint.host}:{endpoint.port}")
        elif not heard.goes_on:
            self.health.forget(heartbeat.node_id)
            self._event(now_ms, "restarted", heartbeat.node_id)
        if self._forks.heard(heartbeat):
            self._judge_forks(now_ms)
        self.version += decides  # heartbeats of nodes that no assignment names must not invalidate every choice
        self.changes += decides and not (heard.goes_on and is_assigned == had_assigned)
        if known is not None and known.heartbeat.heartbeat_ms != heartbeat.heartbeat_ms:
            self._pace = None
        return heard

    def left(self, farewell: Farewell, now_ms: float = 0.0) -> Death | None:
        """Take in a node's farewell. Return `None` when the node is dead already, or another process has its id now."""
        known = self.dead.get(farewell.node_id)
        death = super().left(farewell, now_ms)
        if death is not None:
            self._died(death, now_ms)
        elif self.dead.get(farewell.node_id) is not known:
            self._changed()  # the node is dead already; choices now explain that it left
        return death

    def assigned(self, assignment: Assignment, now_ms: float = 0.0, place: Callable[[str], str] = str) -> bool:
        """Take an assignment in. Return False unless its (term, epoch) is above the present one and can be true.
        `place` names a task in the events.
        """
        before = self.assignment
        if not self.follow(assignment):
            return False
        for line in promotions(before or assignment, assignment, place):
            self._event(now_ms, "promoted", line)
        self.previous = before
        self._judge_forks(now_ms)
        self._catalogue = None
        self._end.forget()
        self._changed()
        return True

    @property
    def known_nodes(self) -> frozenset[str]:
        """The nodes that live, that died lately, or that the assignment names."""
        return self.holders | self.nodes.keys() | self.dead.keys()

    def bus_lost(self, now_ms: float, why: str) -> None:
        """Note that Redis is away: a node speaks by its answers from now on."""
        if self.bus_lost_why is None:
            self._event(now_ms, "bus-lost", why)
        self.bus_lost_why = why
        self._changed()

    def bus_back(self, now_ms: float) -> None:
        """Note that the bus is reachable again, and that its keys were read or will be."""
        if self.bus_lost_why is not None:
            self._event(now_ms, "bus-back", "")
        self.bus_lost_why = None
        if self._had_bus:
            self.reset_heartbeat_ages(now_ms)
        self._had_bus = True
        self._changed()

    def _assigned_nodes(self) -> Collection[NodeReport]:
        """Return the live nodes that the assignment names, without forks; all nodes while none of these lives."""
        found = [self.nodes[node_id] for node_id in self.holders - self.forks.keys() if node_id in self.nodes]
        return found or self.nodes.values()

    def _judge_forks(self, now_ms: float) -> None:
        new = self._forks.judge((node.heartbeat for node in self.nodes.values()), self.lineage, self.holders)
        if new is not None:
            for why in new:
                self._event(now_ms, "fork-found", why)
            self._end.forget()
            self._catalogue = None
            self._changed()

    @property
    def _has_assigned_nodes(self) -> bool:
        return any(node_id in self.nodes for node_id in self.holders)

    def others_heard_since(self, node_id: str, since_ms: float) -> bool:
        """Whether a node of the assignment other than this one was heard, on the bus or by its answer, since then."""
        return any(
            node.said_ms >= since_ms for other, node in self.nodes.items() if other != node_id and self.is_known(other)
        )

    def heartbeat_ms(self, *, default_ms: int) -> int:
        """Return the shortest heartbeat of the nodes that the assignment names, else of all nodes, in ms; `default_ms`
        without any.

        A node that no assignment names does not set the pace while others do: it may be forged.
        """
        if self._pace is None or self._pace[0] != self.changes:
            found = min((node.heartbeat.heartbeat_ms for node in self._assigned_nodes()), default=None)
            self._pace = (self.changes, found)
        return default_ms if self._pace[1] is None else self._pace[1]

    def _why_dead(self, node: NodeReport) -> str | None:
        """Return why a silent node counts as dead: silence alone proves nothing, unless no assignment names the
        node.
        """
        why, node_id = super()._why_dead(node), node.heartbeat.node_id
        if not self.is_known(node_id):
            return f"{why}, and no assignment names it"
        return f"{why}, and it did not answer when asked" if self.silence.is_unanswered(node_id) else None

    def expire(self, now_ms: float) -> list[Death]:
        """Declare nodes dead. An end from a hop's reply expires, too: a rewound history ends earlier."""
        if self._hop_end is not None and now_ms - self._hop_end.said_ms > self.end_expiry_ms:
            self._hop_end = None
            self._changed()
        deaths = super().expire(now_ms)
        for death in deaths:
            self._died(death, now_ms)
        return deaths

    def hop_failed(self, node_id: str, now_ms: float, why: str) -> None:
        if node_id in self.nodes:
            self._health_changed(node_id, now_ms, self.health.failed(node_id, now_ms, why))

    def hop_silent(self, node_id: str, now_ms: float, for_ms: float) -> None:
        """Take in that a node answered no hop for `for_ms`, while other nodes did."""
        if node_id in self.nodes:
            self._health_changed(node_id, now_ms, self.health.silent(node_id, now_ms, for_ms))

    def hop_answered(
        self, node_id: str, now_ms: float, *, took_ms: float, term: int, epoch: int, end_version: int
    ) -> bool:
        """Take in a node's answer to a hop. Return whether it follows a later assignment."""
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
        if self.assignment is None:
            return True
        known, claimed = self.assignment.order, (term, epoch)
        return claimed > known and is_later(claimed, known)

    def _health_changed(self, node_id: str, now_ms: float, change: HealthChange | None) -> None:
        """Record a change of health, and have choices made again."""
        if change is not None:
            event = "recovered" if change.health is Health.OK else str(change.health)
            self._event(now_ms, event, f"{node_id}: {change.why}" if change.why else node_id)
            self._changed()

    def _died(self, death: Death, now_ms: float) -> None:
        self.health.forget(death.node_id)
        self._forks.left(death.node_id)
        self._judge_forks(now_ms)
        self._catalogue = None
        if death.node_id in self.holders or not self._has_assigned_nodes:
            self._end.forget()
        self._changed()
        if death.is_kept:
            self._event(now_ms, death.how, f"{death.node_id}: {death.why}")

    def _changed(self) -> None:
        self.version, self.changes = self.version + 1, self.changes + 1

    def _event(self, at_ms: float, event: str, detail: str) -> None:
        self.events.append(TableEvent(at_ms, event, detail))


def _catalogue_inputs(heartbeat: Heartbeat) -> tuple[str | None, str | None]:
    """Return the parts of a heartbeat that decide the catalogue in use."""
    return (heartbeat.lineage, heartbeat.catalogue)
