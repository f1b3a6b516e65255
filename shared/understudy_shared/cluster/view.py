"""A process' view of its cluster: which nodes live, which assignment is valid, which nodes follow a fork (no I/O, no
clock).

Nodes and routers follow these rules alike. Each kind of event has one method, which returns what it changed; the
caller passes the time. The age of a heartbeat is the monotonic time of this machine since it arrived. For a key that
was read from the bus, the age that its expiry shows is added.

A node is silent if no heartbeat arrives for three of its intervals. Nodes count it as dead then. A router also requires
that it did not answer a request, because silence on the bus does not prove that a node died. A silent node is asked
once per heartbeat. One that does not answer is asked less and less often, but never given up.

The number of nodes that are kept is bounded, and assigned nodes come first. A node is known when the assignment names
it; any other node is a stranger. A process with write access to the bus can invent nodes, and each costs memory
and time at every turn until it expires. So strangers never displace known nodes.

A forged number must not make its node disappear. So an impossible number is removed; the rest of the heartbeat counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from understudy_shared.base.plausible import (
    MAX_JUMP,
    Order,
    Succession,
    highest_plausible,
    is_plausible,
    is_plausible_order,
    succession,
)
from understudy_shared.base.words import FORKED, HostInfo
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS
from understudy_shared.bus.messages import Assignment, Farewell, Heartbeat, NodeEndpoint

ASK_AFTER_HEARTBEATS = 1.5
"""The silence after which a node is asked: half of the expiry, so its answer arrives before the node counts as dead."""

MAX_PAUSE_HEARTBEATS = 30
"""Longest time between two requests to a node that does not answer."""


ANSWER_DEADLINE_MS = 1000
MIN_ANSWER_DEADLINE_MS = 200


def answer_deadline_ms(heartbeat_ms: int) -> int:
    """Return how long a node may take to send its heartbeat when asked: one heartbeat interval, within limits."""
    return max(MIN_ANSWER_DEADLINE_MS, min(ANSWER_DEADLINE_MS, heartbeat_ms))


LATE_MS = 250
"""The delay of a timeout that shows that the asking process was paused: the answer may have arrived unread."""


def counts_against(took_ms: float, *, deadline_ms: float, others_heard: bool) -> bool:
    """Whether a request without an answer, which ended after `took_ms`, is evidence that its node is dead.

    A failure before the deadline is evidence: the connection was refused, or broke. A timeout is evidence only if it
    came on time and other nodes were heard meanwhile: otherwise this process or its network may be at fault.
    """
    if took_ms < deadline_ms:
        return True
    return others_heard and took_ms <= deadline_ms + LATE_MS


class LastWord(NamedTuple):
    """The last heartbeat of a node: its time of arrival (over the bus or as an answer) and the heartbeat interval."""

    at_ms: float
    heartbeat_ms: float

    def is_silent(self, now_ms: float) -> bool:
        """Whether the node has been silent long enough to be asked."""
        return now_ms - self.at_ms > ASK_AFTER_HEARTBEATS * self.heartbeat_ms


@dataclass(slots=True)
class _NodeRequests:
    """The state of the requests to one node."""

    asked_ms: float
    unanswered_since_ms: float | None = None
    """The time of its first unanswered request; None before that, and after each answer."""


class Silence:
    """The silent nodes, as one process that listens to the bus sees them."""

    def __init__(self) -> None:
        self._asked: dict[str, _NodeRequests] = {}

    def keep(self, is_known: Callable[[str], bool]) -> None:
        """Forget all nodes but the known ones, so that their number bounds the memory."""
        self._asked = {node_id: asked for node_id, asked in self._asked.items() if is_known(node_id)}

    def due(self, last: Mapping[str, LastWord], *, now_ms: float) -> list[str]:
        """Return the nodes to ask now; nodes that did not answer before come last."""
        due = [
            node_id
            for node_id, word in last.items()
            if word.is_silent(now_ms) and self._is_due(node_id, now_ms, word.heartbeat_ms)
        ]
        return sorted(due, key=lambda node_id: (self.is_unanswered(node_id), last[node_id], node_id))

    def asked(self, node_id: str, now_ms: float) -> None:
        known = self._asked.setdefault(node_id, _NodeRequests(now_ms))
        known.asked_ms = now_ms

    def answered(self, node_id: str) -> None:
        self._asked.pop(node_id, None)

    def did_not_answer(self, node_id: str, now_ms: float) -> None:
        known = self._asked.setdefault(node_id, _NodeRequests(now_ms))
        if known.unanswered_since_ms is None:
            known.unanswered_since_ms = now_ms

    def is_unanswered(self, node_id: str) -> bool:
        """Whether the node has not answered a request since its last heartbeat."""
        known = self._asked.get(node_id)
        return known is not None and known.unanswered_since_ms is not None

    def _is_due(self, node_id: str, now_ms: float, heartbeat_ms: float) -> bool:
        known = self._asked.get(node_id)
        if known is None:
            return True
        since_ms = known.unanswered_since_ms
        pause_ms = heartbeat_ms
        if since_ms is not None:
            pause_ms = min(max(heartbeat_ms, known.asked_ms - since_ms), MAX_PAUSE_HEARTBEATS * heartbeat_ms)
        return now_ms - known.asked_ms >= pause_ms


MAX_DEAD = 256
DEAD_KEPT_MS = 10 * 60 * 1000
"""The time for which a dead node stays in reports, and its old heartbeats are recognized as old."""

PROVEN_BEATS = 2
"""Heartbeats that a node outside the assignment must send before it gets a task: a single one may be forged."""


MAX_NODES = 4096
"""Four times the largest planned cluster. Known nodes are admitted beyond it."""

MIN_STRANGERS, STRANGERS_PER_KNOWN_NODE = 256, 4
"""Strangers that are admitted in addition to known nodes. A cluster may grow fivefold with each assignment, and
invented nodes cost little more than the real ones. While no node is known, only `MAX_NODES` limits them.
"""

MAX_STRANGERS_TASKS = 262_144
"""Tasks that the heartbeats of all strangers together may name: about 100 MB."""

QUIET_MS = 10_000
"""The silence after which a stranger makes room for another; a stranger that sends heartbeats keeps its place."""

LOOK_AGAIN_MS = 100
"""Least time between two searches for a silent stranger: thousands of strangers may come in a second."""


def limit_beside(known: int) -> int:
    """Return the limit on admitted nodes if `known` of them, dead or alive, are known."""
    return known + max(MIN_STRANGERS, STRANGERS_PER_KNOWN_NODE * known) if known else MAX_NODES


class MemberAdmission:
    """The admission of nodes."""

    def __init__(self, *, max_nodes: int = MAX_NODES) -> None:
        self._max_nodes = max_nodes
        self._tasks: dict[str, int] = {}
        self._sum = 0
        self._looked_ms = float("-inf")

    def admit(
        self, heartbeat: Heartbeat, nodes: Mapping[str, NodeReport], known: Collection[str], now_ms: float
    ) -> tuple[bool, str | None]:
        """Decide on one heartbeat. Return whether it is accepted, and the node to forget to make room for it.

        `nodes` are the admitted ones, in the order of arrival; `known` are the assigned ones.
        """
        node_id = heartbeat.node_id
        if node_id in known:
            self.forget(node_id)
            if node_id in nodes or len(nodes) < self._max_nodes:
                return True, None
            newest = next((each for each in reversed(list(nodes)) if each not in known), None)
            return True, newest
        tasks = len(heartbeat.exceptions) + len(heartbeat.held or ())
        if self._sum - self._tasks.get(node_id, 0) + tasks > MAX_STRANGERS_TASKS:
            return False, None
        leaves = None
        if node_id not in nodes and len(nodes) >= min(self._max_nodes, limit_beside(len(known))):
            leaves = self._quiet(nodes, known, now_ms)
            if leaves is None:
                return False, None
        self.forget(node_id)
        if tasks:
            self._tasks[node_id] = tasks
            self._sum += tasks
        return True, leaves

    def forget(self, node_id: str) -> None:
        self._sum -= self._tasks.pop(node_id, 0)

    def _quiet(self, nodes: Mapping[str, NodeReport], known: Container[str], now_ms: float) -> str | None:
        """Return the stranger that was silent longest, if it was silent for QUIET_MS."""
        if now_ms - self._looked_ms < LOOK_AGAIN_MS:
            return None
        self._looked_ms = now_ms
        quiet = [(node.said_ms, node_id) for node_id, node in nodes.items() if node_id not in known]
        said_ms, node_id = min(quiet, default=(now_ms, ""))
        return node_id if now_ms - said_ms > QUIET_MS else None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The last heartbeat of a node. `said_ms` is the time at which it was sent, on this machine's monotonic clock."""

    heartbeat: Heartbeat
    said_ms: float
    beats: int = 1
    """The number of heartbeats of this process that arrived, up to PROVEN_BEATS."""
    silent_ms: float = float("inf")
    """The time at which it is asked, unless another heartbeat arrives before."""

    def age_ms(self, now_ms: float) -> float:
        return max(0.0, now_ms - self.said_ms)


@dataclass(frozen=True, slots=True)
class DeadNode:
    """A node that died or left. Its last heartbeat is kept without its tasks: there may be hundreds of dead nodes."""

    heartbeat: Heartbeat
    said_ms: float
    """The time of its last heartbeat, or of its farewell."""
    died_ms: float
    why: str
    said_farewell: bool = False


class AcceptedHeartbeat(NamedTuple):
    """A heartbeat that was accepted, and the report before it."""

    report: NodeReport
    before: NodeReport | None
    goes_on: bool
    left_out: Death | None
    """The stranger that was forgotten to make room for this node."""


class Death(NamedTuple):
    """The end of a node that is no longer known: its cause (`how`), and whether it is remembered as `dead`."""

    node_id: str
    how: str
    why: str
    is_kept: bool


class ClusterView:
    """The view of one process. `nodes` are those that are not dead, by node id."""

    def __init__(self, refuse: Callable[[str, str], None], history: Callable[[], tuple[str | None, int]]) -> None:
        """Set the callbacks. `refuse(kind, why)` counts a document that is not used, or only partly used; `history`
        returns the lineage in use, and its newest known end.
        """
        self.nodes: dict[str, NodeReport] = {}
        self.dead: dict[str, DeadNode] = {}
        self.silence = Silence()
        self.assignment: Assignment | None = None
        self._refuse = refuse
        self._history = history
        self._admission = MemberAdmission()
        self._ages_reset_ms = float("-inf")
        self._spoken_until_ms = float("inf")
        """No node is silent before then: the least `silent_ms` of all nodes, or less."""

    @property
    def order(self) -> Order:
        """The (term, epoch) of the assignment; (0, 0) before there is one."""
        return (0, 0) if self.assignment is None else self.assignment.order

    @property
    def holders(self) -> frozenset[str]:
        return frozenset() if self.assignment is None else self.assignment.holders

    def highest(self) -> Order:
        """Return the highest possible (term, epoch) in any heartbeat: impossible numbers are left out."""
        return highest_plausible(orders(self.nodes.values()), self.order)

    def is_known(self, node_id: str) -> bool:
        """Whether the assignment names a node; without an assignment every node counts as known."""
        return self.assignment is None or node_id in self.holders or node_id in self.assignment.members

    def is_silent(self, node: NodeReport, now_ms: float) -> bool:
        return now_ms - max(node.said_ms, self._ages_reset_ms) > node.heartbeat.heartbeat_ms * EXPIRY_HEARTBEATS

    def is_heard_of(self, node_id: str, now_ms: float) -> bool:
        """Whether a node sends heartbeats, or answers when it is asked for one."""
        node = self.nodes.get(node_id)
        return node is not None and not self.is_silent(node, now_ms) and not self.silence.is_unanswered(node_id)

    def reset_heartbeat_ages(self, now_ms: float) -> None:
        """Restart the ages of all heartbeats: the bus stood still until now, so silence before now does not count."""
        self._ages_reset_ms = now_ms

    def follow(self, assignment: Assignment) -> bool:
        """Follow an assignment. Return False unless its (term, epoch) is above the present one and possible."""
        if assignment.order <= self.order:
            return False
        if not is_plausible_order(assignment.order, self.order):
            self._refuse("assignment", "assignment {}.{}, where {}.{} is known".format(*assignment.order, *self.order))
            return False
        self.assignment = assignment
        return True

    def heard(self, heartbeat: Heartbeat, *, age_ms: float, now_ms: float) -> AcceptedHeartbeat | None:
        """Process a heartbeat. Return None if it is too old, or there is no room for its node."""
        node_id, said_ms = heartbeat.node_id, now_ms - age_ms
        if age_ms > heartbeat.heartbeat_ms * EXPIRY_HEARTBEATS or self._is_old(heartbeat, said_ms):
            return None
        is_admitted, leaves = self._admission.admit(heartbeat, self.nodes, self.holders, now_ms)
        if not is_admitted:
            self._refuse("stranger", f"a heartbeat of {node_id}: too many nodes that no assignment names")
            return None
        why = "there are too many nodes that no assignment names"
        left_out = None if leaves is None else self._mark_dead(leaves, now_ms, "left out", why)
        before, taken = self.nodes.get(node_id), self._sanitized(heartbeat)
        goes_on = before is not None and before.heartbeat.incarnation == heartbeat.incarnation
        beats = min(PROVEN_BEATS, before.beats + 1) if before is not None and goes_on else 1
        silent_ms = said_ms + ASK_AFTER_HEARTBEATS * taken.heartbeat_ms
        self.nodes[node_id] = report = NodeReport(taken, said_ms, beats, silent_ms)
        self._spoken_until_ms = min(self._spoken_until_ms, silent_ms)
        self.dead.pop(node_id, None)
        self.silence.answered(node_id)
        return AcceptedHeartbeat(report, before, goes_on, left_out)

    def left(self, farewell: Farewell, now_ms: float) -> Death | None:
        """Process a farewell; return None if the node is dead already, or another process has its id now."""
        node_id = farewell.node_id
        known, dead = self.nodes.get(node_id), self.dead.get(node_id)
        if known is not None and known.heartbeat.incarnation == farewell.incarnation:
            return self._mark_dead(node_id, now_ms, "left", "it said farewell")
        if dead is not None and dead.heartbeat.incarnation == farewell.incarnation:
            self.dead[node_id] = replace(dead, said_ms=now_ms, said_farewell=True)
        return None

    def is_gone(self, node_id: str) -> bool:
        """Whether a node is dead, and it either left or did not answer a request since its last heartbeat."""
        dead = self.dead.get(node_id)
        return self.silence.is_unanswered(node_id) or (dead is not None and dead.said_farewell)

    def did_not_answer(self, node_id: str, asked_ms: float) -> bool:
        """Note that a node did not answer a request of that time, unless a later heartbeat arrived.

        Return True if this is new.
        """
        node = self.nodes.get(node_id)
        if (node is not None and node.said_ms > asked_ms) or self.silence.is_unanswered(node_id):
            return False
        self.silence.did_not_answer(node_id, asked_ms)
        return True

    def expire(self, now_ms: float) -> list[Death]:
        """Declare nodes dead, and forget those that died long ago."""
        suspects = () if self._all_spoke(now_ms) else self.nodes.values()
        silent = [node for node in suspects if self.is_silent(node, now_ms)]
        whys = {node.heartbeat.node_id: self._why_dead(node) for node in silent}
        found = [self._mark_dead(node_id, now_ms, "died", why) for node_id, why in whys.items() if why is not None]
        for node_id, dead in list(self.dead.items()):
            if now_ms - dead.died_ms > DEAD_KEPT_MS:
                del self.dead[node_id]
        return found

    def to_ask(self, now_ms: float, *, heartbeat_ms: float, but: str | None = None) -> dict[str, HostInfo]:
        """Return the silent nodes to ask for their heartbeat now, and their addresses, without the node `but`.

        They are those that the assignment names, or all nodes if there is no assignment. A node that said farewell
        is left out: it comes back by itself. There may be thousands of forged nodes that no assignment names.
        """
        never = float("-inf")
        endpoints: dict[str, NodeEndpoint] = {}
        words: dict[str, LastWord] = {}
        members = {} if self.assignment is None else self.assignment.members
        for node_id in members.keys() - self.nodes.keys():
            endpoints[node_id], words[node_id] = members[node_id], LastWord(never, heartbeat_ms)
        for node_id, dead in self.dead.items():
            if self.is_known(node_id):
                endpoints[node_id] = dead.heartbeat.endpoint
                words[node_id] = LastWord(never, dead.heartbeat.heartbeat_ms)
                if dead.said_farewell:
                    del words[node_id]
        for node_id, node in {} if self._all_spoke(now_ms) else self.nodes.items():
            word = LastWord(node.said_ms, node.heartbeat.heartbeat_ms)
            if word.is_silent(now_ms) and self.is_known(node_id):
                endpoints[node_id], words[node_id] = node.heartbeat.endpoint, word
        if but is not None:
            words.pop(but, None)
        self.silence.keep(lambda node_id: node_id in endpoints or node_id in self.nodes)
        return {node_id: endpoints[node_id].host_info() for node_id in self.silence.due(words, now_ms=now_ms)}

    def _all_spoke(self, now_ms: float) -> bool:
        """Whether no node has been silent long enough to be asked. The nodes are only checked when one may be silent,
        so with a thousand nodes that send a heartbeat per second, that is a few times per second.
        """
        if now_ms > self._spoken_until_ms:
            self._spoken_until_ms = min([node.silent_ms for node in self.nodes.values()], default=float("inf"))
        return now_ms <= self._spoken_until_ms

    def _why_dead(self, node: NodeReport) -> str | None:
        """Return why a silent node counts as dead; None while it does not."""
        return f"silent for more than {node.heartbeat.heartbeat_ms * EXPIRY_HEARTBEATS} ms"

    def forget(self, node_id: str) -> None:
        """Forget a node as if it had never been heard."""
        del self.nodes[node_id]
        self._admission.forget(node_id)

    def _is_old(self, heartbeat: Heartbeat, said_ms: float) -> bool:
        """Whether a newer heartbeat of the same process, or of a later process with this node id, is known."""
        dead = self.dead.get(heartbeat.node_id)
        if dead is not None and dead.heartbeat.incarnation == heartbeat.incarnation:
            # The key may have been read before the farewell of its node.
            return not self._follows(heartbeat, dead.heartbeat.sequence, said_ms - dead.said_ms)
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

    def _sanitized(self, heartbeat: Heartbeat) -> Heartbeat:
        order = (heartbeat.term, heartbeat.epoch)
        is_order_possible = is_plausible_order(order, self.order)
        if heartbeat.end_version <= MAX_JUMP and is_order_possible:
            return heartbeat  # the usual case, without a search for the end among all nodes
        wrong: dict[str, object] = {}
        why = []
        if not is_order_possible:
            wrong |= {"term": 0, "epoch": 0}
            why.append("assignment {}.{}, where {}.{} is known".format(*order, *self.order))
        lineage, end_version = self._history()
        if heartbeat.lineage == lineage and not is_plausible(heartbeat.end_version, end_version):
            wrong |= {"end_version": 0, "end_age_ms": None}
            why.append(f"end {heartbeat.end_version}, where {end_version} is known")
        if not wrong:
            return heartbeat
        self._refuse("heartbeat", f"a heartbeat of {heartbeat.node_id} with {' and '.join(why)}")
        return heartbeat.model_copy(update=wrong)

    def _mark_dead(self, node_id: str, now_ms: float, how: str, why: str) -> Death:
        node = self.nodes[node_id]
        self.forget(node_id)
        if how == "died" and not self.is_known(node_id) and len(self.dead) >= MAX_DEAD:
            return Death(node_id, how, why, is_kept=False)  # the dead nodes of the assignment keep their room
        while len(self.dead) >= MAX_DEAD:
            del self.dead[min(self.dead, key=lambda dead: self.dead[dead].died_ms)]
        has_left, last = how == "left", node.heartbeat.model_copy(update={"exceptions": {}, "held": None})
        self.dead[node_id] = DeadNode(last, now_ms if has_left else node.said_ms, now_ms, why, has_left)
        return Death(node_id, how, why, is_kept=True)


def orders(nodes: Iterable[NodeReport]) -> list[Order]:
    return [(node.heartbeat.term, node.heartbeat.epoch) for node in nodes]


def refused_forks(
    heartbeats: Iterable[Heartbeat], named: Collection[str], *, judging: str | None = None
) -> dict[str, str]:
    """Return the nodes that must not answer, assign or be assigned, each with the reason.

    `named` are the nodes of the assignment: they are the cluster, and a node that differs from one of them is
    refused. Where two of them differ, the one that contradicts fewer nodes of the assignment is accepted; in a tie,
    the process that has run longest. A node that reports itself as refused is believed, except by itself
    (`judging`): the nodes that refused it may have gone since.
    """
    beats = {beat.node_id: beat for beat in heartbeats}
    refused = {
        node_id: _why(beats, node_id, sorted(beats.keys()))
        for node_id, beat in beats.items()
        if FORKED in beat.degraded and node_id != judging
    }
    differs: defaultdict[str, set[str]] = defaultdict(set)
    for node_id, beat in beats.items():
        for other in beat.forks:
            if other in beats and other != node_id and not {node_id, other} & refused.keys():
                differs[node_id].add(other)
                differs[other].add(node_id)
    if not differs:
        return refused

    def trust(node_id: str) -> tuple[object, ...]:
        against = sum(other in named for other in differs[node_id])
        return (node_id not in named, against, -beats[node_id].sequence, node_id)

    accepted: set[str] = set()
    for node_id in sorted(differs, key=trust):
        against = sorted(differs[node_id] & accepted)
        if against:
            refused[node_id] = _why(beats, node_id, against)
        else:
            accepted.add(node_id)
    return refused


def _why(beats: Mapping[str, Heartbeat], node_id: str, against: Collection[str]) -> str:
    found = (beats[other].forks.get(node_id) or beats[node_id].forks.get(other) for other in against)
    evidence = next(filter(None, found), "it was refused before")
    return f"{node_id} follows a fork, another history of the same checkpoint id: {evidence}"
