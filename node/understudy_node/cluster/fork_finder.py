"""Finds the nodes that follow another history than this one, by the commits in their heartbeats (pure).

A difference alone proves nothing: two nodes do not notice a rewind at the same moment. It counts once the other node
has read its checkpoint again after the difference was seen, and this node has read its own after that, and they
still differ: a rewind does not go there and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from understudy_shared.bus.commits import SeenCommit
from understudy_shared.bus.gossip import AgedHeartbeat
from understudy_shared.bus.messages import MAX_FORK_CHARACTERS, MAX_FORKS, Heartbeat
from understudy_shared.spark.times import utc_text

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
    """Whether its commits were those of this node, the last time that they could be compared."""
    suspected_ms: float | None = None
    """The time since which they differ."""
    why: str | None = None
    """The reason for readers to see, once the difference is settled; None before."""
    awaited: Sequence[SeenCommit] = ()
    """Commits that it reported and that this node does not have yet, until one can be compared.

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
        """The nodes that follow another history, each with the evidence: as many as a heartbeat has room for."""
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
        """Compare the live nodes' newest heartbeats with this node's history."""
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
    """Return the commits that this node has, too, each with this node's own."""
    return [(theirs, ours) for theirs in commits if (ours := own.commit(theirs.version)) is not None]


def _was_read_again(suspected_ms: float, beat: Heartbeat, own: OwnHistory, said_ms: float) -> bool:
    """Whether both sides have read their commit logs since: the other node first, then this one.

    The other node's reading must be a heartbeat younger than the suspicion: its message may have been under way so
    long.
    """
    if beat.end_age_ms is None or own.confirmed_ms is None:
        return False
    return said_ms - beat.end_age_ms >= suspected_ms + beat.heartbeat_ms and own.confirmed_ms >= said_ms
