"""The connections to nodes that all routers of a process share, whatever the number of their applications."""

from __future__ import annotations

from understudy_router.transport.idle_connections import IdleConnections
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.cluster.node_calls import node_client

MAX_CALLS = 1024
"""Most calls in flight besides lookups, of all applications. Each application bounds its own."""


class NodeConnections:
    """The connections for hops, and the HTTP client for other calls. The process that made them closes them."""

    def __init__(self, identity: ClusterIdentity) -> None:
        self.idle = IdleConnections()
        self.calls = node_client(identity, max_connections=MAX_CALLS)

    async def close(self) -> None:
        """Close the HTTP client. The connections for hops are closed with the clients of the nodes."""
        await self.calls.aclose()
