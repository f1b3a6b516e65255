"""The nodes that a node hears of (pure): who lives, by what they said and how long ago it arrived here.

Ages are this machine's monotonic time since arrival, plus the age that a key read from the bus had by its expiry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS, Seen
from understudy_shared.messages import Endpoint, Farewell, Heartbeat
from understudy_shared.silence import LastWord, Silence
from understudy_shared.words import HostInfo


@dataclass(frozen=True, slots=True)
class _Heard:
    heartbeat: Heartbeat
    said_ms: float
    """When it was said, on this machine's monotonic clock."""

    def is_alive(self, now_ms: float) -> bool:
        return now_ms - self.said_ms <= self.heartbeat.heartbeat_ms * EXPIRY_HEARTBEATS


class Neighbours:
    """Everybody's last heartbeat, this node's own among them."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}
        self.silence = Silence()

    def heard(self, heartbeat: Heartbeat, *, age_ms: float, now_ms: float) -> None:
        """Take a heartbeat, unless a newer one of the same process is there."""
        known = self._heard.get(heartbeat.node_id)
        said = _Heard(heartbeat, now_ms - age_ms)
        if known is not None:
            if known.heartbeat.incarnation == heartbeat.incarnation:
                if known.heartbeat.sequence >= heartbeat.sequence:
                    return
            elif known.said_ms > said.said_ms:
                return
        self._heard[heartbeat.node_id] = said
        self.silence.answered(heartbeat.node_id)

    def to_ask(self, members: Mapping[str, Endpoint], *, now_ms: float, heartbeat_ms: float) -> dict[str, HostInfo]:
        """Which of the members are silent and to be asked now, and where they listen."""
        self.silence.keep(members)
        last = dict.fromkeys(members, LastWord(float("-inf"), heartbeat_ms))
        hosts = dict(members)
        for node_id in members.keys() & self._heard.keys():
            heard = self._heard[node_id]
            last[node_id] = LastWord(heard.said_ms, heard.heartbeat.heartbeat_ms)
            hosts[node_id] = heard.heartbeat.endpoint
        return {node_id: hosts[node_id].host_info() for node_id in self.silence.due(last, now_ms=now_ms)}

    def did_not_answer(self, node_id: str, asked_ms: float) -> bool:
        """It was asked at that time in vain. True when that is news; what it said since counts more."""
        heard = self._heard.get(node_id)
        if (heard is not None and heard.said_ms > asked_ms) or self.silence.is_unanswered(node_id):
            return False
        self.silence.did_not_answer(node_id, asked_ms)
        return True

    def unasked(self, members: Collection[str], now_ms: float) -> list[str]:
        """Which of the members are silent for so long that they may be dead, and were not asked in vain."""
        alive = {node_id for node_id, heard in self._heard.items() if heard.is_alive(now_ms)}
        return sorted(node_id for node_id in set(members) - alive if not self.silence.is_unanswered(node_id))

    def left(self, farewell: Farewell) -> None:
        """Forget a node that said it leaves."""
        known = self._heard.get(farewell.node_id)
        if known is not None and known.heartbeat.incarnation == farewell.incarnation:
            del self._heard[farewell.node_id]
            self.silence.did_not_answer(farewell.node_id, known.said_ms)  # nothing is to be asked of it

    def read(self, seen: list[Seen], *, now_ms: float) -> None:
        """Begin again from what the keys say: who has no key there is gone."""
        self._heard = {each.heartbeat.node_id: _Heard(each.heartbeat, now_ms - each.age_ms) for each in seen}

    def alive(self, now_ms: float) -> list[Seen]:
        """Who lives, by node id."""
        return [
            Seen(heard.heartbeat, max(0, round(now_ms - heard.said_ms)))
            for _, heard in sorted(self._heard.items())
            if heard.is_alive(now_ms)
        ]

    def highest(self) -> tuple[int, int]:
        """The highest (term, epoch) that anybody told of."""
        return max(((heard.heartbeat.term, heard.heartbeat.epoch) for heard in self._heard.values()), default=(0, 0))


def outvoted(own: Heartbeat, nodes: list[Seen]) -> str | None:
    """Why a node must not speak for its application: most of the others follow another checkpoint. None when it may.

    Of two lineages with as many nodes, the one that has the smallest node id goes on: both sides must agree.
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
