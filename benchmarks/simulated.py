"""A node of a cluster as far as its messages go: no checkpoint, no stores, and its version is what it is given.

What it says is made by the node's own code (`heartbeat_of`, `catalogue_of`), so the bytes on the bus are those of a
real one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

from understudy_node.checkpoint.files import FileStat
from understudy_node.cluster.context import MemberId
from understudy_node.cluster.heartbeat import MemberStatus, catalogue_of, heartbeat_of
from understudy_node.follow.end import End
from understudy_node.node import Node
from understudy_shared.base.words import HostInfo, KeyPlacement, LagInfo, Lineage, ReplicaState, Role, StoreKind
from understudy_shared.bus.gossip import digest_of
from understudy_shared.bus.messages import NEWEST, Catalogue, Heartbeat, Load, QueryProgress, SeenCommit

APPLICATION = "scale"
LINEAGE = Lineage("5c41e000-0000-4000-8000-000000000000")
CHECKPOINT = "/data/checkpoints/scale"
HEARTBEAT_MS = 1000
STORED_BYTES = 10_000_000
_LOAD = Load(operator_bytes={"0": STORED_BYTES})
_SCHEMA = '{"type":"struct","fields":[{"name":"key","type":"string","nullable":true,"metadata":{}}]}'
_FILE = FileStat(mtime_ns=1, size=1, inode=1)


def _column(name: str, kind: str) -> dict[str, str | bool]:
    return {"name": name, "type": kind, "nullable": True}


_VALUE = [_column("count", "long")]


def node_id_of(number: int) -> str:
    return f"node-{number:05}"


def address_of(number: int) -> str:
    """Return the address of a node: each has one of its own on loopback, 127.1.0.0 and up."""
    return f"127.{1 + number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"


@cache
def task_keys(tasks: int) -> list[str]:
    """List all tasks of the one operator."""
    return [f"0_{partition}" for partition in range(tasks)]


class _Progress:
    """Lag against an end that was confirmed a moment ago."""

    def lag_at(self, version: int, end: End, *, now_ms: float) -> LagInfo:
        return LagInfo(version, end.version, end.version - version, round(now_ms - (end.confirmed_ms or now_ms)))


class _History:
    """A commit log that was read up to its end: all nodes have the same."""

    def seen(self, version: int) -> SeenCommit:
        return SeenCommit(version=version, committed_at_us=1_795_000_000_000_001 + version)

    def newest(self, end_version: int) -> list[SeenCommit]:
        return [self.seen(version) for version in range(end_version, max(0, end_version - NEWEST), -1)]

    def is_commit_time_learned(self, version: int) -> bool:
        return True


class SimulatedNode:
    """A node with the members that `ClusterMember` and `heartbeat_of` read. `as_node` is it, typed as a Node."""

    def __init__(self, number: int, *, port: int, tasks: int) -> None:
        self.node_id = node_id_of(number)
        self.zone = f"zone-{number % 3}"
        self.host = HostInfo(address_of(number), port)
        self.settings = SimpleNamespace(application=APPLICATION, checkpoint=CHECKPOINT)
        self.lineage = LINEAGE
        self.pending = None
        self.waits_for = None
        self.dead = None
        self.duties: Mapping[str, Role] | None = {}
        self.end = End(0, _FILE, _FILE)
        self.history = _History()
        self._all_tasks = task_keys(tasks)
        self.generation: Any = SimpleNamespace(
            lineage=LINEAGE,
            layout=SimpleNamespace(partitions=tasks),
            readers={"aircraft": _reader(tasks)},
            replicas=(),
            not_served=list,
        )
        self._view = SimpleNamespace(version=0)
        self.measures = SimpleNamespace(
            visible=SimpleNamespace(freshness=lambda now_ms: None), lags=SimpleNamespace(total=0)
        )

    @property
    def as_node(self) -> Node:
        return cast(Node, self)

    def tasks(self) -> list[str]:
        return self._all_tasks

    def causes(self) -> dict[str, str]:
        return {}

    def query_progress(self) -> QueryProgress:
        return QueryProgress()

    def wake(self) -> None: ...

    def announce(self, announcement: object) -> None: ...

    def assign(self, duties: Mapping[str, Role] | None, *, partitions: int | None = None) -> None:
        """Hold these tasks, at the end at once: a restore is not what is measured."""
        self.duties = duties or {}
        self.generation.replicas = tuple(
            SimpleNamespace(
                key=task,
                task=SimpleNamespace(operator_id=0),
                stored_bytes=STORED_BYTES,
                view=self._view,
                state=ReplicaState.RUNNING,
                error=None,
                restore=None,
                progress=_Progress(),
            )
            for task in self.duties
        )

    def committed(self, version: int, now_ms: float) -> None:
        """Be at the end, which is this version, confirmed now."""
        self.end = End(version, _FILE, _FILE, confirmed_ms=now_ms)
        self._view.version = version

    def catalogue(self) -> tuple[str, Catalogue]:
        found = catalogue_of(self.generation, APPLICATION)
        return digest_of(found), found

    def heartbeat(self, *, sequence: int, order: tuple[int, int], catalogue: str, now_ms: float) -> Heartbeat:
        """Return its next heartbeat, for a node without a member of its own."""
        return heartbeat_of(
            self.as_node,
            MemberId(self.node_id, f"{self.node_id}-simulated-incarnation"),
            MemberStatus("serving", order),
            sequence=sequence,
            zone=self.zone,
            heartbeat_ms=HEARTBEAT_MS,
            catalogue=catalogue,
            now_ms=now_ms,
            load=_LOAD,
        )


def _reader(partitions: int) -> SimpleNamespace:
    store = SimpleNamespace(
        name="aircraft",
        operator_id=0,
        operator_name="stateStoreSave",
        kind=StoreKind.VALUE,
        key_schema_json=_SCHEMA,
        codec=SimpleNamespace(names=("key",), num_hash_columns=None, placement=KeyPlacement.BY_HASH),
        is_normalised=True,
        value_columns=lambda: [{"name": "count", "type": "bigint", "nullable": False}],
        results=[],
        unnamed=(),
        schemas=({"schema_id": 0, "from_batch": None, "key": [_column("key", "string")], "value": _VALUE},),
    )
    return SimpleNamespace(store=store, partitions=partitions)
