"""The settings of each service, beyond those that several services have."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from understudy_shared.settings.fields import Bytes, Fields, Port

DEFAULT_CACHE_BYTES = 10 * 1024 * 1024
"""KIP-770's statestore.cache.max.bytes."""


class NodeFields(Fields):
    """The settings that `understudy serve` and `understudy node` have in common."""

    checkpoint: str
    """The query's checkpoint location: a path, or a URL of an object store or of HDFS."""

    application_id: str = Field("", json_schema_extra={"derived": "last part of CHECKPOINT"})
    """Names the query in answers and position tokens."""

    # `None` waits without a limit: a query makes its checkpoint when it starts, which may be after the node.
    checkpoint_wait_ms: int | None = Field(None, ge=0)
    """Time in ms to wait for a checkpoint that is not there; 0: fail."""

    data_dir: Path | None = Field(
        None, json_schema_extra={"derived": "a folder per checkpoint under ~/.cache/understudy"}
    )
    """Folder for local copies of the state."""

    aliases: Path | None = None
    """TOML file with names for stores and columns."""

    # KIP-535 drafted 3,000. While commits arrive, polls are more frequent.
    lag_refresh_ms: int = Field(1000, ge=1)
    """Longest time in ms between two polls of the commit log."""

    # KIP-441 has 10,000 records; here the unit is a batch, that is a version.
    acceptable_recovery_lag: int = Field(10, ge=0)
    """Versions behind up to which a replica counts as caught up."""

    statestore_cache_max_bytes: Bytes = DEFAULT_CACHE_BYTES
    """One block cache for all stores; 0 disables it."""

    # KIP-770 deprecated this name; it is used when the new one is not given.
    cache_max_bytes_buffering: Bytes | None = None
    """Deprecated name of --statestore-cache-max-bytes."""

    # Changes beyond it move to a newer base or to disk.
    overlay_max_bytes: Bytes = 64 * 1024 * 1024
    """Changes since its snapshot that a store partition keeps in memory."""

    workers: int = Field(3, ge=2, le=64)
    """Threads that restore and follow; one is always kept for following."""

    metrics_max_partitions: int = Field(256, ge=0, le=100_000)
    """Replicas with series of their own in /metrics; the rest by store."""


class FleetFields(Fields):
    """The settings of a process that serves several applications."""

    # It is read again when it changes; while it is invalid, its last good content stays in use.
    applications: Path | None = None
    """TOML file with applications to serve; changes are taken while running."""


class AnnouncedFields(Fields):
    """The settings of a node that serves the queries that announce themselves."""

    # Without a gossip key anybody who writes to Redis decides what is opened below the roots.
    checkpoint_root: str = Field("", max_length=16_384)
    """Serve queries that announce themselves and whose checkpoints lie below one of these URLs, separated by commas."""

    # A query that waits for data makes no commits, and is announced again every minute while it runs.
    forget_after_ms: int = Field(604_800_000, ge=1_000)
    """Time in ms without commits and announcements after which an announced query is listed as idle."""

    remove_idle: bool = False
    """Let announced queries go once they are idle, until they are announced again."""


class ClusterNodeFields(Fields):
    """The settings that `understudy node` has beyond those of `understudy serve`."""

    node_id: str = Field("", max_length=200, json_schema_extra={"derived": "advertised host and port"})
    """Names the node; unique, and the same after a restart."""

    # Needed when `host` is an address of all interfaces.
    advertise_host: str = Field("", max_length=255, json_schema_extra={"derived": "--host"})
    """Host that routers connect to."""

    # For a proxy or a container that maps the port.
    advertise_port: Port = 0
    """Port that routers connect to; 0 is the port itself."""

    zone: str = Field("", max_length=200)
    """Zone of the node; standbys are placed in other zones than their active where possible."""

    # KIP-441 and Kafka Streams have 0 by default; here reads are what replicas are for.
    num_standby_replicas: int = Field(1, ge=0, le=16)
    """Standbys of each task."""

    # KIP-441's default.
    max_warmup_replicas: int = Field(2, ge=1, le=1024)
    """Extra replicas restored at a time, to move tasks."""

    # Until then no other node restores the replicas on its disk.
    rebalance_delay_ms: int = Field(30_000, ge=0, le=3_600_000)
    """Time in ms for which a node that is gone keeps its place."""

    seed: str = ""
    """Nodes to ask while Redis is away: host:port,host:port."""

    # Meanwhile routers hear that the node leaves.
    shutdown_delay_ms: int = Field(500, ge=0, le=600_000)
    """Time in ms between the announcement that it leaves and its stop."""

    # With 0 the node has another default node id at each start.
    port: Port = 7101
    """Port to listen on; 0 takes a free one."""


class RouterFields(Fields):
    """The settings of `understudy router`."""

    # A router reads no checkpoint, so there is nothing to derive it from.
    application_id: str = Field("", max_length=256)
    """The query whose nodes the router reads from; or give --applications."""

    # The nodes of each are found in Redis; a query that comes later is served within about a second.
    applications: str = Field("", max_length=16_384)
    """Serve all queries whose ids match one of these patterns, separated by commas: * is any text."""

    router_id: str = Field("", max_length=200, json_schema_extra={"derived": "name of the host"})
    """Names the router in reports, logs and metrics."""

    # The retry budget must allow it. An answer normally takes 1 ms.
    hop_timeout_ms: int = Field(1000, ge=10, le=60_000)
    """Time in ms that a node may take before the next candidate is asked."""

    # The wait that the reader asked for comes on top. The default is that of three hops that time out.
    deadline_ms: int = Field(3000, ge=10, le=600_000)
    """Longest time in ms for a whole lookup."""

    suspect_after_ms: int = Field(200, ge=10, le=60_000)
    """A node silent for so many ms while others answer is asked last."""

    # The delay is shorter where the usual latency (p95) of replicas of that role is: 10 ms at least.
    hedge_after_ms: int = Field(50, ge=0, le=60_000)
    """Time in ms after which a read is sent to another replica too; 0: never."""

    retry_percent: int = Field(10, ge=0, le=100)
    """Retries and hedges allowed per hundred keys asked for."""

    retry_per_s: int = Field(3, ge=0, le=10_000)
    """Retries and hedges allowed each second besides."""

    seed: str = ""
    """Nodes to ask while Redis is away: host:port,host:port."""

    data_dir: Path | None = Field(
        None, json_schema_extra={"derived": "a folder per application under ~/.cache/understudy"}
    )
    """Folder for the state that a router keeps for a restart."""

    # It lists what the reader's own credential may scan, so it opens nothing that the API does not.
    disable_explore: bool = False
    """Leave Explore, which lists the keys of stores, out of the admin page."""

    shutdown_delay_ms: int = Field(500, ge=0, le=600_000)
    """Time in ms between the announcement that it stops and its stop."""
