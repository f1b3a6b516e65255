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
    """How long answers are packed."""

    GZIP = "gzip"
    NONE = "none"


class ServiceFields(Fields):
    """What nodes and routers have in common as services of lookups."""

    # Beyond loopback a service needs credentials and TLS, or `insecure_bind`.
    host: str = "127.0.0.1"
    """Address to listen on; beyond this machine only with credentials and TLS."""

    port: Port = 8080
    """Port to listen on; 0 takes a free one."""

    store_bounds: Path | None = None
    """TOML file with the bounds of readers that give none, by store."""

    # Ten looks of a node may fail.
    end_expiry_ms: int = Field(10_000, ge=1)
    """After how many ms an unconfirmed end makes lag unknown."""

    max_in_flight: int = Field(1024, ge=1)
    """Requests answered at once; one more gets 429."""

    # The same on nodes and routers.
    max_key_bytes: int = Field(DEFAULT_KEY_BYTES, ge=1024, le=MAX_KEY_BYTES)
    """Longest key, as Spark encodes it, that readers may ask for."""


class HttpFields(Fields):
    """What connections may take, and who may ask."""

    # Envoy's advice for the edge is 50,000. Fewer where the process may not open twice as many files.
    max_connections: int = Field(10_000, ge=1)
    """Connections open at once; then idle ones make room for new ones."""

    # At 95 % idle connections are closed, at 98 % requests refused.
    memory_limit_bytes: Bytes | None = Field(None, json_schema_extra={"derived": "the control group's, or 80 % of RAM"})
    """Near it requests are refused; 0: none."""

    # Envoy's advice for the edge.
    header_timeout_ms: int = Field(10_000, ge=100, le=600_000)
    """How long in ms the headers of a request may take to come."""

    # And 500 bytes a second are the least beyond it.
    body_timeout_ms: int = Field(30_000, ge=100, le=600_000)
    """How long in ms nothing may come of a body that is not whole."""

    unread_timeout_ms: int = Field(30_000, ge=100, le=600_000)
    """How long in ms a client may read nothing of an answer."""

    credentials_file: Path | None = None
    """TOML file with roles and hashed keys: every request needs a key then."""

    # Nodes that have it refuse internal calls without.
    cluster_secret_file: Path | None = None
    """File with the secret that nodes and routers of an application share."""

    # Those between it and its authority stand after it.
    tls_cert_file: Path | None = None
    """Certificate of this port, as PEM: it speaks TLS then."""

    tls_key_file: Path | None = None
    """The key of that certificate, if it is in another file."""

    # With it nodes are spoken to by TLS, and ask who calls them.
    peer_ca_file: Path | None = None
    """Who signs for routers and nodes, as PEM: they show each other certificates then."""

    peer_cert_file: Path | None = None
    """Certificate to show to nodes, as PEM, if it is another one than that."""

    peer_key_file: Path | None = None
    """The key of that certificate, if it is in another file."""

    insecure_bind: bool = False
    """Listen beyond this machine without credentials, or without TLS for them."""

    external_tls_termination: bool = False
    """A proxy or a mesh ends TLS: credentials may come in plain."""

    cors_origins: str = ""
    """Origins whose pages may read in a browser: https://app.example.com,..."""

    # `none` where a proxy does it, or CPU is dear.
    compression: Compression = Compression.GZIP
    """How long answers are packed for those who accept it: gzip or none."""


class BusFields(Fields):
    """Which Redis carries gossip, how it is reached, and whose messages are believed."""

    redis: str = Field(min_length=1)
    """Redis or Valkey: redis://host:port/db, unix:///path or redis+sentinel://host:port,host:port/service."""

    # Command lines are seen by others.
    redis_password_file: Path | None = None
    """File with the password of the user in --redis."""

    redis_ca_file: Path | None = None
    """Whom to trust with rediss://, as PEM; else the system's authorities."""

    redis_cert_file: Path | None = None
    """Client certificate for a Redis that asks for one, as PEM."""

    redis_key_file: Path | None = None
    """The key of that certificate, if it is in another file."""

    gossip_key_file: Path | None = None
    """File with the key that signs gossip; without one nothing is signed."""

    gossip_accept_unsigned: bool = False
    """Accept unsigned gossip too, while processes get their key."""
