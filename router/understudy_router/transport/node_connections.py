"""The connections of a process to its nodes, which its applications share, whatever their number."""

from __future__ import annotations

from collections import Counter

from understudy_shared.base.words import HostInfo
from understudy_shared.cluster.node_calls import KeptConnections
from understudy_shared.cluster.wire import WireConnection, WireError


class IdleConnections:
    """The connections that carry no hop, by address: any application takes one, and gives it back. Those to an address
    are closed when its last pool ends.
    """

    def __init__(self) -> None:
        self._idle: dict[HostInfo, list[WireConnection]] = {}
        self._pools: Counter[HostInfo] = Counter()

    def __repr__(self) -> str:
        return f"IdleConnections({sum(map(len, self._idle.values()))} to {len(self._idle)} nodes)"

    def begin(self, host: HostInfo) -> list[WireConnection]:
        """Return the idle connections to an address, for one more pool."""
        self._pools[host] += 1
        return self._idle.setdefault(host, [])

    def end(self, host: HostInfo, why: str) -> None:
        """Note that a pool has ended."""
        self._pools[host] -= 1
        if self._pools[host] <= 0:
            del self._pools[host]
            for connection in self._idle.pop(host, ()):
                connection.give_up(WireError.RESET, why)


class NodeConnections:
    """The open connections for hops, and those for other calls. The process that made them closes them."""

    def __init__(self) -> None:
        self.idle = IdleConnections()
        self.kept = KeptConnections()

    def close(self) -> None:
        """Close the connections for other calls. Those for hops are closed with the clients of the nodes."""
        self.kept.close()
