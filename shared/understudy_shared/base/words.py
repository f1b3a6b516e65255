"""The words of the project as frozen types (docs/glossary.md defines them).

Versions are KIP-535's offsets: version N+1 is the result of micro-batch N. Unknown lag is `None`, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple, NewType, get_args

ApplicationId = NewType("ApplicationId", str)
"""The name of one streaming query and its checkpoint location in every message, key and token."""

Lineage = NewType("Lineage", str)
"""One life of an application: the id in its checkpoint's `metadata` file."""

StoreName = NewType("StoreName", str)
"""A queryable view of an operator's state: `op{N}`, `op{N}.{store}`, or an alias."""


WRITES_REFUSED = "bus-writes-refused"
"""The cause of degradation of a node when the bus refuses its writes: it says so in its heartbeats."""

UNSIGNED_ACCEPTED = "gossip-unsigned"
"""The cause of degradation of a service that has a key but accepts unsigned documents."""


GOSSIP_KEY_MISSING = "gossip-key-missing"
"""The cause of degradation of a service that hears signed heartbeats and has no key."""

LEASE_HELD_BY_UNSIGNED = "lease-held-by-unsigned"
"""The cause of degradation of a node that took the lease over from a process without the key."""

FORKED = "forked"
"""The cause of degradation of a node that its cluster refuses: it follows another history of the checkpoint."""

FORK_FOUND = "fork-found"
"""The cause of degradation of a service that knows such a node."""


class StoreKind(StrEnum):
    """The kind of a store: what it stores for a key, and so what an answer holds."""

    VALUE = "value"
    """One value."""
    SET = "set"
    """The fact that the key was seen; with `expires_at` where Spark forgets it at some time."""
    SESSION = "session"
    """Sessions, each with start, end and value."""
    JOIN_SIDE = "join-side"
    """The rows that wait on one side of a join, each with whether it found a match."""
    LIST = "list"
    """Values, in the order in which the query put them there."""
    MAP = "map"
    """Values by a second key, the user key."""
    TIMERS = "timers"
    """Times at which the query is called for the key."""


class KeyPlacement(StrEnum):
    """The way in which Spark placed the keys of a store (decision 0093)."""

    BY_HASH = "by-hash"
    """By the hash of the whole key: a key that its partition lacks is absent."""
    SCATTERED = "scattered"
    """Perhaps by a part of the key, or by the plan of the query: any partition may have a key."""


class Role(StrEnum):
    """The role of a replica for its task."""

    ACTIVE = "active"
    STANDBY = "standby"


class ReplicaState(StrEnum):
    """Life of a replica. RESTORING is open and serving, but far behind."""

    CREATED = "CREATED"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    CLOSED = "CLOSED"


class TaskId(NamedTuple):
    """The unit of assignment, replica, version, restore and gossip: all stores of one operator's partition."""

    application_id: ApplicationId
    operator_id: int
    partition: int

    def __str__(self) -> str:
        return f"{self.application_id}/{self.operator_id}_{self.partition}"


class HostInfo(NamedTuple):
    """The address at which a node listens (Kafka Streams' `HostInfo`)."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class LagInfo:
    """The lag of a store partition's replica (KIP-535's `LagInfo`, plus time).

    `offset_lag` counts versions, >= 0. Both lags and the end are `None` while unknown: an end that is not confirmed is
    not an end. `time_lag_ms` never compares clocks of two machines.
    """

    current_offset_position: int
    end_offset_position: int | None
    offset_lag: int | None
    time_lag_ms: int | None


@dataclass(frozen=True, slots=True)
class KeyQueryMetadata:
    """The hosts of a key (KIP-535): the active host, the standbys, and the key's partition."""

    active_host: HostInfo | None
    standby_hosts: tuple[HostInfo, ...]
    partition: int


ResultFunction = Literal[
    "count",
    "sum",
    "try_sum",
    "avg",
    "min",
    "max",
    "first",
    "last",
    "min_by",
    "max_by",
    "bit_and",
    "bit_or",
    "bit_xor",
    "product",
    "var_pop",
    "var_samp",
    "stddev_pop",
    "stddev_samp",
    "skewness",
    "kurtosis",
    "covar_pop",
    "covar_samp",
    "corr",
    "corr_4_2",
    "regr_sxx",
    "regr_sxy",
    "regr_r2",
    "regr_slope",
    "regr_intercept",
    "regr_intercept_4_2",
    "approx_count_distinct",
    "collect_list",
    "collect_set",
]
"""A function whose result follows exactly from what Spark stores, by the name that alias files and messages use."""

RESULT_FUNCTIONS: frozenset[str] = frozenset(get_args(ResultFunction))
