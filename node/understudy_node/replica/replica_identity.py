"""The identity of a replica in answers and refusals: host, node, role and state.

It is encoded once per change, because every answer carries it.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import orjson

from understudy_shared.base.words import HostInfo, LagInfo, ReplicaState, Role
from understudy_shared.http.problems import LAYOUT_SINCE, RETAINED, Problem, refused
from understudy_shared.reads.bounds import Refusal


class Retained(NamedTuple):
    """The versions that can be read. `is_layout`: the checkpoint retains older ones in another layout."""

    first: int
    last: int
    is_layout: bool = False


class Origin:
    """The identity of a replica; `json` is its JSON. A worker and a change of role may both change it at once, hence
    the lock.
    """

    def __init__(self, host: HostInfo, node_id: str | None, role: Role) -> None:
        """Start as CREATED. `node_id` is None outside a cluster."""
        self.role = role
        self.state = ReplicaState.CREATED
        self.json = b""
        self._host = host
        self._node_id = node_id
        self._lock = threading.Lock()
        self._encode()

    def enter(self, state: ReplicaState) -> None:
        self.state = state
        self._encode()

    def set_role(self, role: Role) -> None:
        """Change the role. Called from any thread."""
        if role is not self.role:
            self.role = role
            self._encode()

    def as_gone(self, retained: Retained | None) -> Problem:
        """Return the problem of a version that is gone. What can be read is part of the candidate: a router passes on
        what candidates say.
        """
        candidate = self.as_candidate(None, Refusal.VERSION_GONE)
        if retained is not None:
            candidate |= {RETAINED: (retained.first, retained.last)}
            candidate |= {LAYOUT_SINCE: retained.first} if retained.is_layout else {}
        return refused(Refusal.VERSION_GONE, candidates=[candidate])

    def as_candidate(self, lag: LagInfo | None, reason: str) -> dict[str, object]:
        """Return the replica as listed in a refusal: its identity, its version and lag, and why it may not answer."""
        candidate: dict[str, object] = {**orjson.loads(self.json), "reason": str(reason)}
        if lag is not None:
            candidate |= {"version": lag.current_offset_position, "offset_lag": lag.offset_lag}
            candidate["time_lag_ms"] = lag.time_lag_ms
        return candidate

    def _encode(self) -> None:
        with self._lock:
            host = self._host
            fields: dict[str, object] = {"host": host.host, "port": host.port, "role": self.role, "state": self.state}
            if self._node_id is not None:
                fields["node_id"] = self._node_id
            self.json = orjson.dumps(fields)
