"""Declarations of every service's settings.

A declaration names a setting once: its type, its default, and below it the sentence that the help of its flag shows.
A service's own settings build on it; the command line derives flags from it, without importing the service.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field

from understudy_shared.base.texts import BadSizeError, parse_size

Port = Annotated[int, Field(ge=0, le=65535)]


def _size(given: object) -> object:
    """Convert a text with a unit to bytes. Raises ValueError, as pydantic requires, for a malformed text."""
    if not isinstance(given, str):
        return given
    try:
        return parse_size(given)
    except BadSizeError as error:
        raise ValueError(str(error)) from None


Bytes = Annotated[int, Field(ge=0), BeforeValidator(_size)]
"""Size: a number of bytes, or a text with a unit of 1024 such as 64MiB. Its name has the word `bytes`, as its flag."""


class Fields(BaseModel, use_attribute_docstrings=True, defer_build=True):
    """Settings that are declared together. The settings of the services that have them check their values.

    `json_schema_extra={"derived": ...}` says in words which value holds if a setting is not given.
    """


DEFAULT_KEY_BYTES = 64 * 1024
"""Longest encoded key by default; longer ones are rarely keys."""

MAX_KEY_BYTES = 1024 * 1024
"""Highest limit that a service may set: a quarter of the bytes of one hop."""


class Compression(StrEnum):
    """The compression of long answers."""

    GZIP = "gzip"
    NONE = "none"


class ServiceFields(Fields):
    """The settings that nodes and routers have in common as services of lookups."""

    # Beyond loopback a service needs credentials and TLS, or `insecure_bind`.
    host: str = "127.0.0.1"
    """Address to listen on; beyond this machine only with credentials and TLS."""

    port: Port = 8080
    """Port to listen on; 0 takes a free one."""

    store_bounds: Path | None = None
    """TOML file with bounds by store, for readers that give no bounds."""

    # By default ten polls of a node may fail in a row.
    end_expiry_ms: int = Field(10_000, ge=1)
    """Age in ms from which an unconfirmed end makes lag unknown."""

    max_in_flight: int = Field(1024, ge=1)
    """Requests answered at once; a further one gets 429."""

    # Per process: each has its own event loop.
    max_scans_in_flight: int = Field(4, ge=1, le=1024)
    """Scans and counts answered at once; a further one gets 429."""

    # Each holds up to four parts of 4 MiB.
    max_exports_in_flight: int = Field(2, ge=1, le=1024)
    """Exports answered at once; a further one gets 429."""

    # Each takes about 25 kB and a connection; see `max_connections`.
    max_watchers: int = Field(2000, ge=1, le=1_000_000)
    """Watches open at once; a further one gets 429."""

    # Nodes and routers need the same value.
    max_key_bytes: int = Field(DEFAULT_KEY_BYTES, ge=1024, le=MAX_KEY_BYTES)
    """Longest key, as Spark encodes it, that readers may ask for."""


class HttpFields(Fields):
    """The settings of access control, and of the limits of connections."""

    # Envoy's advice for the edge is 50,000. Fewer where the process may not open twice as many files.
    max_connections: int = Field(10_000, ge=1)
    """Connections open at once; beyond it idle ones make room for new ones."""

    # At 95 % idle connections are closed, at 98 % requests refused.
    memory_limit_bytes: Bytes | None = Field(None, json_schema_extra={"derived": "the control group's, or 80 % of RAM"})
    """Memory near which requests are refused; 0 means no limit."""

    # Envoy's advice for the edge.
    header_timeout_ms: int = Field(10_000, ge=100, le=600_000)
    """Longest time in ms until the headers of a request are complete."""

    # After this time a body must also come at 500 bytes a second or more.
    body_timeout_ms: int = Field(30_000, ge=100, le=600_000)
    """Longest time in ms without bytes of a body that is not complete."""

    unread_timeout_ms: int = Field(30_000, ge=100, le=600_000)
    """Longest time in ms in which a client reads nothing of an answer."""

    # Common load balancers and proxies close after 60 s: they have to be first.
    keep_alive_timeout_ms: int = Field(75_000, ge=1_000, le=86_400_000)
    """Time in ms after which an idle connection of a reader is closed; longer than that of a proxy in front."""

    # A proxy that takes the prefix off needs no setting.
    root_path: str = Field("", max_length=1_024)
    """Prefix under which a proxy publishes this service and that it passes on: /understudy."""

    credentials_file: Path | None = None
    """TOML file with roles and hashed keys: with it every request needs a key."""

    # Nodes that have it refuse internal calls without the secret.
    cluster_secret_file: Path | None = None
    """File with the secret that nodes and routers of an application share."""

    # Intermediate certificates follow it in the file.
    tls_cert_file: Path | None = None
    """Certificate of this port, as PEM: with it the port speaks TLS."""

    tls_key_file: Path | None = None
    """The key of that certificate, if it is in another file."""

    # With it calls to nodes use TLS, and nodes require a certificate of their callers.
    peer_ca_file: Path | None = None
    """Authority that signs for routers and nodes, as PEM: with it they show each other certificates."""

    peer_cert_file: Path | None = None
    """Certificate to show to nodes, as PEM, if it is not that of the port."""

    peer_key_file: Path | None = None
    """The key of that certificate, if it is in another file."""

    insecure_bind: bool = False
    """Listen beyond this machine without credentials, or without TLS for them."""

    external_tls_termination: bool = False
    """A proxy or a mesh ends TLS: credentials may come in plain."""

    cors_origins: str = ""
    """Origins whose pages may read in a browser: https://app.example.com,..."""

    # `none` is for services behind a proxy that compresses, or where CPU is scarce.
    compression: Compression = Compression.GZIP
    """Compression of long answers for clients that accept it: 'gzip' or 'none'."""


class BusFields(Fields):
    """The settings of the bus: which Redis, how to reach it, and how gossip is signed."""

    redis: str = Field(min_length=1)
    """Redis or Valkey: redis://host:port/db, unix:///path or redis+sentinel://host:port,host:port/service."""

    # Other users of the machine can see command lines, so the password is in a file.
    redis_password_file: Path | None = None
    """File with the password of the user in --redis."""

    redis_ca_file: Path | None = None
    """Authorities to trust with rediss://, as PEM; else the system's authorities."""

    redis_cert_file: Path | None = None
    """Client certificate for a Redis that asks for one, as PEM."""

    redis_key_file: Path | None = None
    """The key of that certificate, if it is in another file."""

    gossip_key_file: Path | None = None
    """File with the key that signs gossip; without one gossip is not signed."""

    gossip_accept_unsigned: bool = False
    """Accept unsigned gossip too, while processes get their key."""


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
