"""The flags of `understudy serve`, `node` and `router`: one per setting of the service, with unit and default (data).

The services own names, ranges and defaults; a test compares these tables with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from understudy_shared.base.sizes import size_text

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting as a flag. `default` is the service's: a value, or words when it is derived."""

    name: str
    kind: Literal["text", "number", "size", "path", "switch"]
    default: int | str | bool | None
    help: str
    is_required: bool = False

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """What holds without the flag, as the help shows it."""
        if self.is_required:
            return "[required]"
        if self.default is None:
            return "[default: none]"
        if self.kind == "switch":
            return f"[default: {'on' if self.default else 'off'}]"
        is_size = self.kind == "size" and isinstance(self.default, int)
        return f"[default: {size_text(int(self.default)) if is_size else self.default}]"


_HOST = Flag("host", "text", "127.0.0.1", "Address to listen on; beyond this machine only with credentials and TLS.")
_ACCESS = (
    Flag("credentials_file", "path", None, "TOML file with roles and hashed keys: every request needs a key then."),
    Flag("cluster_secret_file", "path", None, "File with the secret that nodes and routers of an application share."),
    Flag("tls_cert_file", "path", None, "Certificate of this port, as PEM: it speaks TLS then."),
    Flag("tls_key_file", "path", None, "The key of that certificate, if it is in another file."),
    Flag(
        "peer_ca_file", "path", None, "Who signs for routers and nodes, as PEM: they show each other certificates then."
    ),
    Flag("peer_cert_file", "path", None, "Certificate to show to nodes, as PEM, if it is another one than that."),
    Flag("peer_key_file", "path", None, "The key of that certificate, if it is in another file."),
    Flag("insecure_bind", "switch", False, "Listen beyond this machine without credentials, or without TLS for them."),
    Flag("external_tls_termination", "switch", False, "A proxy or a mesh ends TLS: credentials may come in plain."),
    Flag("cors_origins", "text", None, "Origins whose pages may read in a browser: https://app.example.com,..."),
    Flag("compression", "text", "gzip", "How long answers are packed for those who accept it: gzip or none."),
)
_MAX_IN_FLIGHT = Flag("max_in_flight", "number", 1024, "Requests answered at once; one more gets 429.")
_MAX_KEY_BYTES = Flag("max_key_bytes", "size", 64 * KIB, "Longest key, as Spark encodes it, that readers may ask for.")
_CONNECTIONS = (
    Flag("max_connections", "number", 10_000, "Connections open at once; then idle ones make room for new ones."),
    Flag("memory_limit_bytes", "size", "the control group's, or 80 % of RAM", "Near it requests are refused; 0: none."),
    Flag("header_timeout_ms", "number", 10_000, "How long in ms the headers of a request may take to come."),
    Flag("body_timeout_ms", "number", 30_000, "How long in ms nothing may come of a body that is not whole."),
    Flag("unread_timeout_ms", "number", 30_000, "How long in ms a client may read nothing of an answer."),
)
_REDIS = Flag(
    "redis",
    "text",
    None,
    "Redis or Valkey: redis://host:port/db, unix:///path or redis+sentinel://host:port,host:port/service.",
    is_required=True,
)
_BUS = (
    _REDIS,
    Flag("redis_password_file", "path", None, "File with the password of the user in --redis."),
    Flag("redis_ca_file", "path", None, "Whom to trust with rediss://, as PEM; else the system's authorities."),
    Flag("redis_cert_file", "path", None, "Client certificate for a Redis that asks for one, as PEM."),
    Flag("redis_key_file", "path", None, "The key of that certificate, if it is in another file."),
    Flag("gossip_key_file", "path", None, "File with the key that signs gossip; without one nothing is signed."),
    Flag("gossip_accept_unsigned", "switch", False, "Accept unsigned gossip too, while processes get their key."),
)


_PROCESSES = Flag("processes", "number", 1, "Worker processes that share the port, one for each core to use.")
_NODE_PROCESSES = Flag(
    "processes", "number", 1, "Nodes to run here, one for each core to use: at --port and the ports after it."
)

_STORE_BOUNDS = Flag("store_bounds", "path", None, "TOML file with the bounds of readers that give none, by store.")


def _port(default: int) -> Flag:
    return Flag("port", "number", default, "Port to listen on; 0 takes a free one.")


_FOLLOWING = (
    Flag("application_id", "text", "last part of CHECKPOINT", "Names the query in answers and position tokens."),
    Flag("checkpoint_wait_ms", "number", None, "How long in ms to wait for a checkpoint that is not there; 0: fail."),
    Flag(
        "data_dir", "path", "a folder per checkpoint under ~/.cache/understudy", "Where local copies of the state go."
    ),
    Flag("aliases", "path", None, "TOML file with names for stores and columns."),
    _STORE_BOUNDS,
    Flag("lag_refresh_ms", "number", 1000, "Longest time in ms between two looks at the commit log."),
    Flag("end_expiry_ms", "number", 10_000, "After how many ms an unconfirmed end makes lag unknown."),
    Flag("acceptable_recovery_lag", "number", 10, "Versions behind up to which a replica counts as caught up."),
    Flag("statestore_cache_max_bytes", "size", 10 * MIB, "One block cache for all stores; 0 disables it."),
    Flag("cache_max_bytes_buffering", "size", None, "Deprecated name of --statestore-cache-max-bytes."),
    Flag("overlay_max_bytes", "size", 64 * MIB, "Changes since its snapshot that a store partition keeps in memory."),
    Flag("workers", "number", 3, "Threads that restore and follow; one is always kept for following."),
    _MAX_IN_FLIGHT,
    _MAX_KEY_BYTES,
    Flag("metrics_max_partitions", "number", 256, "Replicas with series of their own in /metrics; the rest by store."),
    *_CONNECTIONS,
    *_ACCESS,
)

_MEMBER = (
    *_BUS,
    _NODE_PROCESSES,
    Flag("node_id", "text", "advertised host and port", "Names the node; unique, and the same after a restart."),
    Flag("advertise_host", "text", "--host", "Host that routers connect to."),
    Flag("advertise_port", "number", 0, "Port that routers connect to; 0 is the port itself."),
    Flag("zone", "text", None, "Where it runs; standbys are placed in other zones than their active where possible."),
    Flag("num_standby_replicas", "number", 1, "Standbys of each task."),
    Flag("max_warmup_replicas", "number", 2, "Extra replicas restored at a time, to move tasks."),
    Flag("rebalance_delay_ms", "number", 30_000, "How long in ms a node that is gone keeps its place."),
    Flag("seed", "text", None, "Nodes to ask while Redis is away: host:port,host:port."),
    Flag("shutdown_delay_ms", "number", 500, "How long in ms it says that it leaves before it stops."),
)

SERVE_FLAGS = (_HOST, _port(8080), *_FOLLOWING)

NODE_FLAGS = (*_MEMBER, _HOST, _port(7101), *_FOLLOWING)

ROUTER_FLAGS = (
    Flag("application_id", "text", None, "The query whose nodes to route to.", is_required=True),
    *_BUS,
    Flag("router_id", "text", "name of the host", "Names the router in reports, logs and metrics."),
    _HOST,
    _port(8080),
    Flag("hop_timeout_ms", "number", 1000, "How long in ms a node may take before the next candidate is asked."),
    Flag("deadline_ms", "number", 3000, "How long in ms a whole lookup may take."),
    Flag("suspect_after_ms", "number", 200, "A node silent for so many ms while others answer is asked last."),
    Flag("hedge_after_ms", "number", 50, "A read that waits so long is sent to another replica too; 0: never."),
    Flag("retry_percent", "number", 10, "Retries and hedges allowed per hundred keys asked for."),
    Flag("retry_per_s", "number", 3, "Retries and hedges allowed each second besides."),
    _PROCESSES,
    Flag("seed", "text", None, "Nodes to ask while Redis is away: host:port,host:port."),
    Flag("data_dir", "path", "a folder per application under ~/.cache/understudy", "What it remembers goes there."),
    _STORE_BOUNDS,
    Flag("shutdown_delay_ms", "number", 500, "How long in ms it says that it stops before it does."),
    Flag("end_expiry_ms", "number", 10_000, "After how many ms an unconfirmed end makes lag unknown."),
    _MAX_IN_FLIGHT,
    _MAX_KEY_BYTES,
    *_CONNECTIONS,
    *_ACCESS,
)
