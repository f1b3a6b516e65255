"""Nodes of a cluster and routers in this process, on real ports, over a real Redis: what tests of their talk use.

Each runs on an event loop of its own, as its process would; a test holds a node back, drains it, or ends it without a
farewell, and asks the routers as a reader would.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.served_node import ServedNode, served

from understudy_node.app import create_app
from understudy_node.checkpoint.files import LocalFiles
from understudy_node.cluster.member import Member
from understudy_node.cluster.routes import cluster_routes
from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_node.node import Node
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.clock import SystemClock
from understudy_shared.words import HostInfo

HEARTBEAT_MS = 200
"""Five times a second: an expiry is 0.6 s."""

APPLICATION = "counting"


@dataclass(frozen=True, slots=True)
class ClusterNode(ServedNode):
    """A node with its part in the cluster."""

    member: Member


@contextmanager
def cluster_node(
    checkpoint: Path, data_dir: Path, redis_url: str, *, node_id: str, **settings: object
) -> Iterator[ClusterNode]:
    """One node of application `counting`, until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    told = ClusterNodeSettings(
        checkpoint=str(checkpoint),
        data_dir=data_dir,
        redis=redis_url,
        node_id=node_id,
        **{"application_id": APPLICATION, "lag_refresh_ms": HEARTBEAT_MS, **settings},  # type: ignore[arg-type]
    )
    node = Node(told, LocalFiles(checkpoint), host=HostInfo("127.0.0.1", port), clock=SystemClock())
    node.assign({})
    member = Member(node, RedisBus(redis_url), told, node_id=node_id, incarnation=uuid.uuid4().hex, clock=SystemClock())
    with served(create_app(node, member, cluster_routes(member)), listener):
        yield ClusterNode(node, port, member)
    assert node.failure is None
    assert member.dead is None
