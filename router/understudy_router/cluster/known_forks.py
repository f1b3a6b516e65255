"""The nodes that follow a fork, as a router knows them by the heartbeats of all (pure).

Nearly always no heartbeat speaks of forks, and then a heartbeat costs two comparisons.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from understudy_shared.base.words import FORKED
from understudy_shared.bus.messages import Heartbeat
from understudy_shared.cluster.forks import refused_forks


class KnownForks:
    """The nodes that follow another history. `found` has them, with the evidence; the router does not read them."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._named: dict[str, frozenset[str]] = {}
        """The nodes whose heartbeats speak of forks, and the nodes that each of them names."""

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
        """Decide again which nodes follow a fork. Return the reasons of those that are new; `None` when nothing
        changed.
        """
        if not self._named and not self.found:
            return None
        known = self.found
        beats = (beat for beat in heartbeats if beat.lineage == lineage)
        self.found = refused_forks(beats, named) if self._named else {}
        if self.found.keys() == known.keys():
            return None
        return [self.found[node_id] for node_id in sorted(self.found.keys() - known.keys())]
