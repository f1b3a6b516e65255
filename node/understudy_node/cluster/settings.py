"""The settings of a node in a cluster, beyond those of `understudy serve`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote

from pydantic import Field

from understudy_node.settings import NodeSettings
from understudy_shared.base.service_settings import Port
from understudy_shared.bus.settings import BusSettings

MAX_NAME_BYTES = 200
"""Longest name of a folder; file systems allow 255."""


class ClusterNodeSettings(BusSettings, NodeSettings):
    """The settings of `understudy node`."""

    node_id: str = Field("", max_length=200)
    """Names this node; unique in the cluster, and the same after a restart. By default `{advertise_host}-{port}`."""

    port: Port = 7101
    """Routers ask here. 0 takes any free port, and so another default node id at each start."""

    advertise_host: str = Field("", max_length=255)
    """What routers connect to; by default `host`. Needed when `host` is an address of all interfaces."""

    advertise_port: Port = 0
    """What routers connect to when a proxy or a container maps the port; 0 is the port itself."""

    zone: str = Field("", max_length=200)
    """Where it runs (a rack, an availability zone): a standby is placed in another zone than its active, if it can."""

    num_standby_replicas: int = Field(1, ge=0, le=16)
    """Standbys of each task (KIP-441 and Kafka Streams have 0 by default; here reads are what replicas are for)."""

    max_warmup_replicas: int = Field(2, ge=1, le=1024)
    """Extra replicas restored at a time to move tasks to another node (KIP-441's default)."""

    rebalance_delay_ms: int = Field(30_000, ge=0, le=3_600_000)
    """How long a node that left or died keeps its place: until then no other node restores what is on its disk."""

    processes: int = Field(1, ge=1, le=64)
    """Nodes to run on this machine, for as many cores: at `port` and the ports after it. Limits are divided."""

    seed: str = ""
    """Nodes to ask for the assignment while Redis is away and none is remembered: host:port, with commas between."""

    shutdown_delay_ms: int = Field(500, ge=0, le=600_000)
    """How long it says that it leaves, and goes on answering, before it stops: routers hear of it meanwhile."""

    @property
    def data_directory(self) -> Path:
        """As for one process, with the node id in the default: nodes on one machine keep their copies apart."""
        if self.data_dir is not None:
            return self.data_dir.absolute()
        shared = super().data_directory
        node = quote(self.node_id or f"{self.advertised_host}-{self.advertise_port or self.port}", safe="")
        if len(f"{shared.name}-{node}".encode()) > MAX_NAME_BYTES:
            node = hashlib.sha256(node.encode()).hexdigest()[:16]
        return shared.with_name(f"{shared.name}-{node}")

    @property
    def advertised_host(self) -> str:
        """The host that other processes connect to."""
        return self.advertise_host or self.host
