"""The check whether this node, and which other nodes, follow the cluster's history.

It decides three things at each turn of the beat: whether this node may hold tasks, whether it may assign, and to
which nodes. A node that starts in a running cluster holds nothing until its commits were compared with the assigned
nodes', or while it may follow a fork of their history. A refused node stays refused until they agree, or it is
restarted.

Nodes of another history are found by the commits in their heartbeats. A difference alone proves nothing: two nodes do
not notice a rewind at the same moment. It counts if they still differ after both read the checkpoint again, first the
other node, then this one: a rewind is not undone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from understudy_node.cluster.context import MemberContext
from understudy_shared.base.masking import masked_location
from understudy_shared.base.words import FORK_FOUND, FORKED
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS, AgedHeartbeat
from understudy_shared.bus.messages import MAX_FORK_CHARACTERS, MAX_FORKS, Heartbeat, SeenCommit
from understudy_shared.cluster.view import refused_forks
from understudy_shared.spark.temporal import utc_text

log = logging.getLogger(__name__)


MAX_UNREAD = 8
"""Most commits that one turn reads to compare them with heartbeats; the others wait for the next turn."""


class OwnHistory(NamedTuple):
    """The history that this node follows, in the checkpoint at `place`. `commit` reads no files.

    `life` is another object after a rewind. `confirmed_ms` is the time of the last poll that confirmed the end, None
    while the end is in doubt.
    """

    place: str
    life: object
    lineage: str
    end_version: int
    confirmed_ms: float | None
    commit: Callable[[int], SeenCommit | None]


@dataclass(slots=True)
class _Case:
    """The state of the comparison with one process of another node."""

    incarnation: str
    sequence: int = -1
    """The sequence number of the heartbeat that was compared last."""
    is_agreed: bool = False
    """Whether its commits equalled this node's when they were last compared."""
    suspected_ms: float | None = None
    why: str | None = None
    """The reason for readers to see, once the difference is settled; None before."""
    awaited: Sequence[SeenCommit] = ()
    """Commits that it reported and this node does not have yet, until one can be compared.

    Later reports do not replace them: while commits are frequent, the newest are always ahead of this node.
    """


class ForkFinder:
    """The comparisons of one node."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._life: object = None
        self._cases: dict[str, _Case] = {}

    @property
    def found(self) -> dict[str, str]:
        """The nodes that follow another history, each with the evidence, as many as fit into a heartbeat."""
        found = {node_id: case.why for node_id, case in self._cases.items() if case.why is not None}
        return dict(sorted(found.items())[:MAX_FORKS])

    def is_agreed(self, node_id: str) -> bool:
        """Whether a node's commits were compared and are equal to this node's."""
        case = self._cases.get(node_id)
        return case is not None and case.is_agreed

    def doubt(self, node_id: str) -> str | None:
        """Return why this node may follow a fork of a node's history; None if they agree or cannot be compared."""
        case = self._cases.get(node_id)
        if case is None or case.is_agreed:
            return None
        if case.suspected_ms is not None:
            return case.why or f"{node_id} has a commit that differs from the same one here"
        return f"{node_id} has version {case.awaited[-1].version}, which is not here" if case.awaited else None

    def unread(self, nodes: Iterable[AgedHeartbeat], own: OwnHistory, is_read: Callable[[int], bool]) -> list[int]:
        """Return the versions to read before `compare`: this node must have them, and has not read them yet."""
        named = {
            commit.version
            for beat in self._others(nodes, own)
            for commit in (*self._awaited(beat), *beat.commits)
            if commit.version <= own.end_version and not is_read(commit.version)
        }
        return sorted(named, reverse=True)[:MAX_UNREAD]

    def compare(self, nodes: Sequence[AgedHeartbeat], own: OwnHistory, now_ms: float) -> None:
        if own.life is not self._life:
            self._life = own.life
            self._cases.clear()
        ages = {each.heartbeat.node_id: each.age_ms for each in nodes}
        cases, self._cases = self._cases, {}
        for beat in self._others(nodes, own):
            case = cases.get(beat.node_id)
            if case is None or case.incarnation != beat.incarnation:
                case = _Case(beat.incarnation)
            self._cases[beat.node_id] = case
            if case.sequence == beat.sequence and case.is_agreed and case.suspected_ms is None:
                continue
            case.sequence = beat.sequence
            self._judge(case, beat, own, said_ms=now_ms - ages[beat.node_id], now_ms=now_ms)

    def _judge(self, case: _Case, beat: Heartbeat, own: OwnHistory, *, said_ms: float, now_ms: float) -> None:
        now = _pairs(beat.commits, own)
        pairs = now or _pairs(case.awaited, own)
        if not pairs:
            if not case.awaited and all(theirs.version > own.end_version for theirs in beat.commits):
                case.awaited = beat.commits
            return
        case.awaited = ()
        differing = next((pair for pair in pairs if not pair[0].is_same_as(pair[1])), None)
        if differing is None:
            case.is_agreed, case.suspected_ms, case.why = True, None, None
            return
        case.is_agreed = False
        if case.suspected_ms is None:
            case.suspected_ms = now_ms
        elif case.why is None and now and _was_read_again(case.suspected_ms, beat, own, said_ms):
            case.why = self._evidence(beat, own, *differing)

    def _awaited(self, beat: Heartbeat) -> Sequence[SeenCommit]:
        case = self._cases.get(beat.node_id)
        return () if case is None or case.incarnation != beat.incarnation else case.awaited

    def _evidence(self, beat: Heartbeat, own: OwnHistory, theirs: SeenCommit, ours: SeenCommit) -> str:
        there, here = utc_text(theirs.committed_at_us), utc_text(ours.committed_at_us)
        what = "another batch" if there == here else f"at {there}"
        return (
            f"version {theirs.version} was committed {what} in {beat.checkpoint} of {beat.node_id}, and at {here} in "
            f"{own.place} of {self._own_id}"
        )[:MAX_FORK_CHARACTERS]

    def _others(self, nodes: Iterable[AgedHeartbeat], own: OwnHistory) -> Iterable[Heartbeat]:
        beats = (each.heartbeat for each in nodes)
        return (beat for beat in beats if beat.node_id != self._own_id and beat.lineage == own.lineage)


def _pairs(commits: Sequence[SeenCommit], own: OwnHistory) -> list[tuple[SeenCommit, SeenCommit]]:
    """Return the commits that both nodes have, each with this node's own."""
    return [(theirs, ours) for theirs in commits if (ours := own.commit(theirs.version)) is not None]


def _was_read_again(suspected_ms: float, beat: Heartbeat, own: OwnHistory, said_ms: float) -> bool:
    """Whether both sides have read their commit logs since: the other node first, then this one.

    The other node's reading must be a heartbeat younger than the suspicion: its message may have been under way so
    long.
    """
    if beat.end_age_ms is None or own.confirmed_ms is None:
        return False
    return said_ms - beat.end_age_ms >= suspected_ms + beat.heartbeat_ms and own.confirmed_ms >= said_ms


class HistoryCheck:
    """The check of one node. Only the node's beat calls the methods that change it."""

    def __init__(self, context: MemberContext) -> None:
        self.is_admitted = False
        """Whether the comparison is done: a live node agrees and no live node differs, or no other node lives."""
        self.refused: str | None = None
        """The reason why this node must not answer for its application; None while it may."""
        self.others: Mapping[str, str] = {}
        self.doubt: str | None = None
        """The reason why this node, which has just started, may follow a fork; None once it may hold tasks."""
        self._node = context.node
        self._neighbours = context.neighbours
        self._node_id = context.node_id
        self._grace_ms = EXPIRY_HEARTBEATS * context.heartbeat_ms
        self._finder = ForkFinder(context.node_id)
        self._waits_since_ms: float | None = None

    @property
    def found(self) -> dict[str, str]:
        """The nodes with commits that differ from this node's, for its heartbeat."""
        return self._finder.found

    @property
    def may_hold(self) -> bool:
        return self.is_admitted and self.refused is None

    def causes(self) -> dict[str, str]:
        if self.refused is not None:
            return {FORKED: self.refused}
        return {FORK_FOUND: "; ".join(self.others.values())} if self.others else {}

    async def compare(self, now_ms: float, *, is_current: bool) -> None:
        """Compare the live nodes with this one's history. With `is_current`, the view has all of them."""
        nodes, own = self._neighbours.alive(now_ms), self._own_history()
        unread = self._finder.unread(nodes, own, self._node.history.is_commit_time_learned)
        if unread:
            await asyncio.to_thread(self._read, unread)
        self._finder.compare(nodes, own, now_ms)
        self.doubt = None if self.is_admitted else self._doubt(nodes)
        if is_current and not self.is_admitted and self.doubt is None:
            self.is_admitted = self._is_known_here(nodes) or self._has_waited(now_ms)

    def judge(self, own: Heartbeat, now_ms: float) -> bool:
        """Decide which nodes are refused, by the findings of all nodes.

        Return True if the decision about this node changed.
        """
        alive = (each.heartbeat for each in self._neighbours.alive(now_ms))
        beats = [own, *(beat for beat in alive if beat.lineage == own.lineage and beat.node_id != self._node_id)]
        refused = refused_forks(beats, self._neighbours.holders, judging=self._node_id)
        why, before = refused.pop(self._node_id, None), self.refused
        for node_id in refused.keys() - self.others.keys():
            log.error("refused: %s", refused[node_id], extra={"action": "fork-found", "node": node_id})
        self.others = refused
        if why is not None:
            self.refused = (
                f"this node is refused and answers nothing: {why}. Follow the cluster's checkpoint, or give the copy "
                "an application id of its own"
            )
        elif any(self._is_cluster(beat.node_id) and self._finder.is_agreed(beat.node_id) for beat in beats):
            self.refused = None
        if (before is None) == (self.refused is None):
            return False
        if self.refused is None:
            log.warning("this node follows the cluster's history again", extra={"action": "fork-over"})
        else:
            log.error("%s", self.refused, extra={"action": "forked"})
        return True

    def may_assign(self, nodes: Sequence[AgedHeartbeat]) -> bool:
        """Whether this node may assign: it is assigned, agrees with an assigned node, or no assigned node lives."""
        return self.may_hold and (self._node_id in self._neighbours.holders or self._is_known_here(nodes))

    def assignable(self, nodes: Sequence[AgedHeartbeat]) -> list[AgedHeartbeat]:
        """Return the nodes that may get tasks: all but the refused, and strangers only with the same commits."""
        return [each for each in nodes if self._is_assignable(each.heartbeat)]

    def go_on_alone(self) -> None:
        """Stop waiting for the comparison while Redis is away, unless a live node differs."""
        self.is_admitted = self.is_admitted or self.doubt is None

    def _is_assignable(self, beat: Heartbeat) -> bool:
        if beat.node_id in self.others:
            return False
        is_comparable = bool(beat.commits) and self._node.end.version > 0
        return self._is_cluster(beat.node_id) or not is_comparable or self._finder.is_agreed(beat.node_id)

    def _is_cluster(self, node_id: str) -> bool:
        return node_id == self._node_id or node_id in self._neighbours.holders

    def _is_known_here(self, nodes: Sequence[AgedHeartbeat]) -> bool:
        """Whether a node of the assignment agrees with this one, or no such node lives."""
        comparable = self._comparable(nodes)
        return not comparable or any(self._finder.is_agreed(node_id) for node_id in comparable)

    def _doubt(self, nodes: Sequence[AgedHeartbeat]) -> str | None:
        """Return why this node may follow a fork of a node of the assignment; to settle it takes some heartbeats."""
        doubts = (self._finder.doubt(node_id) for node_id in self._comparable(nodes) if node_id not in self.others)
        return next(filter(None, doubts), None)

    def _comparable(self, nodes: Sequence[AgedHeartbeat]) -> list[str]:
        lineage, holders = self._node.lineage, self._neighbours.holders - {self._node_id}
        beats = (each.heartbeat for each in nodes)
        return [beat.node_id for beat in beats if beat.node_id in holders and beat.lineage == lineage and beat.commits]

    def _has_waited(self, now_ms: float) -> bool:
        if self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        return now_ms - self._waits_since_ms >= self._grace_ms

    def _own_history(self) -> OwnHistory:
        node, history, end = self._node, self._node.history, self._node.end
        place = masked_location(node.settings.checkpoint)
        return OwnHistory(place, history, node.lineage, end.version, end.confirmed_ms, history.seen)

    def _read(self, versions: Sequence[int]) -> None:
        for version in versions:
            self._node.history.learn_commit_time(version)
