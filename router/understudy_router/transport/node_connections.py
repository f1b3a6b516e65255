"""The connections to nodes that all routers of a process share, whatever the number of their applications."""

from __future__ import annotations

from understudy_router.transport.idle_connections import IdleConnections
from understudy_shared.cluster.node_calls import KeptConnections


class NodeConnections:
    """The open connections for hops, and those for other calls. The process that made them closes them."""

    def __init__(self) -> None:
        self.idle = IdleConnections()
        self.kept = KeptConnections()

    def close(self) -> None:
        """Close the connections for other calls. Those for hops are closed with the clients of the nodes."""
        self.kept.close()
