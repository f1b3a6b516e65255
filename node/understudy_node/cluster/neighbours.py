"""The nodes of a cluster as one node sees them (pure): which are alive, by their last heartbeats.

Ages are this machine's monotonic time since arrival, plus the age that a key read from the bus had by its expiry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from understudy_shared.base.plausible import Order, Succession, highest_plausible, is_far_ahead, succession
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS, Seen
from understudy_shared.bus.messages import Assignment, Endpoint, Farewell, Heartbeat
from understudy_shared.cluster.admission import MemberAdmission
from understudy_shared.cluster.sanitizing import sanitized
from understudy_shared.cluster.silence import LastWord, Silence

PROVEN_BEATS = 2
"""Heartbeats that a node outside the assignment must send before it gets a task: a single one may be forged."""


@dataclass(frozen=True, slots=True)
class _Heard:
    heartbeat: Heartbeat
    said_ms: float
    """When it was sent, on this machine's monotonic clock."""
    beats: int = 1
    """How many heartbeats of this process arrived, up to PROVEN_BEATS."""

    def is_alive(self, now_ms: float) -> bool:
        return now_ms - self.said_ms <= self.heartbeat.heartbeat_ms * EXPIRY_HEARTBEATS


class Neighbours:
    """The last heartbeat of every node, including this one."""

    def __init__(self, refuse: Callable[[str, str], None] = lambda kind, why: None) -> None:
        """`refuse(kind, why)` counts a heartbeat that is not used, or only partly used."""
        self._heard: dict[str, _Heard] = {}
        self.silence = Silence()
        self._refuse = refuse
        self._admission = MemberAdmission()
        self._order: Order = (0, 0)
        self._holders: frozenset[str] = frozenset()
        self._end: tuple[str | None, int] = (None, 0)

    def know(self, assignment: Assignment | None, *, lineage: str | None, end_version: int) -> None:
        """Set what heartbeats are judged by: this node's assignment, and the end of its history."""
        order = (0, 0) if assignment is None else assignment.order
        if order != self._order:
            self._order = order
            self._holders = frozenset() if assignment is None else assignment.holders
        self._end = (lineage, end_version)

    @property
    def holders(self) -> frozenset[str]:
        """The nodes that the assignment names."""
        return self._holders

    def heard(self, heartbeat: Heartbeat, *, age_ms: float, now_ms: float) -> None:
        """Take a heartbeat in, unless a newer one of the same process is known, or there is no room for its node."""
        known = self._heard.get(heartbeat.node_id)
        said_ms = now_ms - age_ms
        if known is not None:
            if known.heartbeat.incarnation == heartbeat.incarnation:
                found = succession(
                    heartbeat.sequence,
                    known.heartbeat.sequence,
                    later_ms=said_ms - known.said_ms,
                    heartbeat_ms=heartbeat.heartbeat_ms,
                )
                if found is Succession.ABSURD:
                    self._refuse("heartbeat", f"a heartbeat of {heartbeat.node_id} numbered {heartbeat.sequence}")
                if found is not Succession.NEWER:
                    return
            elif known.said_ms > said_ms:
                return
        admission = self._admission.admit(heartbeat, self._heard, self._holders, now_ms)
        if not admission.admitted:
            self._refuse("stranger", f"a heartbeat of {heartbeat.node_id}: too many nodes that no assignment names")
            return
        if admission.leaves is not None:
            self._forget(admission.leaves)
        lineage, end_version = self._end
        taken, why = sanitized(heartbeat, order=self._order, end_version=end_version, lineage=lineage)
        if why:
            self._refuse("heartbeat", why)
        same = known is not None and known.heartbeat.incarnation == heartbeat.incarnation
        beats = min(PROVEN_BEATS, known.beats + 1) if known is not None and same else 1
        self._heard[heartbeat.node_id] = _Heard(taken, said_ms, beats)
        self.silence.answered(heartbeat.node_id)

    def to_ask(self, members: Mapping[str, Endpoint], *, now_ms: float, heartbeat_ms: float) -> dict[str, HostInfo]:
        """The silent members to poll now, and their addresses."""
        self.silence.keep(members)
        last = dict.fromkeys(members, LastWord(float("-inf"), heartbeat_ms))
        hosts = dict(members)
        for node_id in members.keys() & self._heard.keys():
            heard = self._heard[node_id]
            last[node_id] = LastWord(heard.said_ms, heard.heartbeat.heartbeat_ms)
            hosts[node_id] = heard.heartbeat.endpoint
        return {node_id: hosts[node_id].host_info() for node_id in self.silence.due(last, now_ms=now_ms)}

    def did_not_answer(self, node_id: str, asked_ms: float) -> bool:
        """Note that a node did not answer a request of that time, unless a later heartbeat arrived. True when new."""
        heard = self._heard.get(node_id)
        if (heard is not None and heard.said_ms > asked_ms) or self.silence.is_unanswered(node_id):
            return False
        self.silence.did_not_answer(node_id, asked_ms)
        return True

    def unasked(self, members: Collection[str], now_ms: float) -> list[str]:
        """The members that expired by silence but have not yet failed to answer a request."""
        alive = {node_id for node_id, heard in self._heard.items() if heard.is_alive(now_ms)}
        return sorted(node_id for node_id in set(members) - alive if not self.silence.is_unanswered(node_id))

    def left(self, farewell: Farewell) -> None:
        """Forget a node that said it leaves."""
        known = self._heard.get(farewell.node_id)
        if known is not None and known.heartbeat.incarnation == farewell.incarnation:
            self._forget(farewell.node_id)
            self.silence.did_not_answer(farewell.node_id, known.said_ms)  # so that it is not polled

    def read(self, seen: list[Seen], *, now_ms: float) -> None:
        """Start again from the keys on the bus: a node without a key is gone."""
        before = dict(self._heard)
        for node_id in before:
            self._forget(node_id)
        for each in sorted(seen, key=lambda each: each.heartbeat.node_id not in self._holders):
            heartbeat = each.heartbeat
            self.heard(heartbeat, age_ms=each.age_ms, now_ms=now_ms)
            known, now = before.get(heartbeat.node_id), self._heard.get(heartbeat.node_id)
            if known is not None and now is not None and known.heartbeat.incarnation == heartbeat.incarnation:
                self._heard[heartbeat.node_id] = replace(now, beats=known.beats)

    def alive(self, now_ms: float) -> list[Seen]:
        """The live nodes by node id. Expired nodes are forgotten."""
        for node_id, heard in list(self._heard.items()):
            if not heard.is_alive(now_ms):
                self._forget(node_id)
        return [
            Seen(heard.heartbeat, max(0, round(now_ms - heard.said_ms))) for _, heard in sorted(self._heard.items())
        ]

    def proven(self, nodes: Sequence[Seen], own_id: str) -> list[Seen]:
        """Those of `nodes` that may get tasks: the assignment names them, or they sent PROVEN_BEATS heartbeats."""
        return [
            each
            for each in nodes
            if (node_id := each.heartbeat.node_id) == own_id
            or node_id in self._holders
            or self._heard[node_id].beats >= PROVEN_BEATS
        ]

    def highest(self) -> Order:
        """The highest (term, epoch) in any heartbeat that can be true."""
        return highest_plausible(self._orders(), self._order)

    def is_far_ahead(self, own_id: str) -> bool:
        """Whether this node's assignment is too far above those of all others to exist."""
        return is_far_ahead(self._order, self._orders(but=own_id))

    def _orders(self, *, but: str | None = None) -> list[Order]:
        return [(each.heartbeat.term, each.heartbeat.epoch) for key, each in self._heard.items() if key != but]

    def _forget(self, node_id: str) -> None:
        del self._heard[node_id]
        self._admission.forget(node_id)


def outvoted(own: Heartbeat, nodes: list[Seen]) -> str | None:
    """Why this node must not act for its application: most nodes follow another checkpoint. None when it may.

    When two lineages have equally many nodes, that of the smallest node id counts, so that both sides agree.
    """
    if own.lineage is None:
        return None
    followers: Counter[str] = Counter()
    first: dict[str, str] = {}
    for heartbeat in [own, *(each.heartbeat for each in nodes if each.heartbeat.node_id != own.node_id)]:
        if heartbeat.lineage is not None:
            followers[heartbeat.lineage] += 1
            first[heartbeat.lineage] = min(first.get(heartbeat.lineage, heartbeat.node_id), heartbeat.node_id)
    chosen = min(followers, key=lambda lineage: (-followers[lineage], first[lineage]))
    if chosen == own.lineage:
        return None
    other = next(each.heartbeat for each in nodes if each.heartbeat.lineage == chosen)
    return (
        f"this node follows {own.checkpoint} (lineage {own.lineage}), but {followers[chosen]} others of application "
        f"{own.application_id} follow {other.checkpoint} (lineage {chosen})"
    )
