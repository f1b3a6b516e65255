"""The settings that nodes and routers have in common."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import Field

from understudy_shared.settings.fields import Bytes, Fields, Port

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
