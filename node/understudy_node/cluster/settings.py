"""What a node in a cluster is told, beyond what `understudy serve` is."""

from __future__ import annotations

from pydantic import Field

from understudy_node.settings import NodeSettings
from understudy_shared.service_settings import Port


class ClusterNodeSettings(NodeSettings):
    """What `understudy node` is told."""

    redis: str = Field(min_length=1)
    """Redis or Valkey, shared with the other nodes and the routers: redis://host:port/db, rediss://, unix:///path."""

    node_id: str = Field("", max_length=200)
    """Names this node; unique in the cluster, and the same after a restart. By default `{advertise_host}-{port}`."""

    port: Port = 7101
    """Routers ask here. 0 takes any free port, and so another default node id at each start."""

    advertise_host: str = Field("", max_length=255)
    """What routers connect to; by default `host`. Needed when `host` is an address of all interfaces."""

    zone: str = Field("", max_length=200)
    """Where it runs (a rack, an availability zone): a standby is placed in another zone than its active, if it can."""

    num_standby_replicas: int = Field(1, ge=0, le=16)
    """Standbys of each task (KIP-441 and Kafka Streams have 0 by default; here reads are what replicas are for)."""

    max_warmup_replicas: int = Field(2, ge=1, le=1024)
    """Extra replicas restored at a time to move tasks to another node (KIP-441's default)."""

    @property
    def advertised_host(self) -> str:
        """The host that others are told."""
        return self.advertise_host or self.host
