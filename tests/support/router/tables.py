"""Tables of a router, filled by hand: heartbeats, assignments and a catalogue of one application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from understudy_router.cluster.candidates import Candidate
from understudy_router.cluster.catalogue import StoreRoute, stores_of
from understudy_router.cluster.tables import Tables
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import (
    Applied,
    AssignedTask,
    Assignment,
    Catalogue,
    CatalogueStore,
    Farewell,
    Heartbeat,
    NodeEndpoint,
)

APPLICATION = "flights"
LINEAGE = "l1"
HEARTBEAT_MS = 1000
END_EXPIRY_MS = 10_000
TASK = "0_0"

_KEY_SCHEMA = '{"type":"struct","fields":[{"name":"word","type":"string","nullable":true,"metadata":{}}]}'
_NO_COLUMNS = '{"type":"struct","fields":[]}'


def port_of(node_id: str) -> int:
    """The port of a node in these tables; each node has its own."""
    return 7000 + sum(node_id.encode()) % 1000


def beat(node_id: str = "a", *, version: int | None = 7, sequence: int = 1, **fields: Any) -> Heartbeat:
    """A node that is in step with an end that it confirmed just now."""
    values: dict[str, Any] = {
        "application_id": APPLICATION,
        "node_id": node_id,
        "incarnation": "i1",
        "sequence": sequence,
        "endpoint": NodeEndpoint(host="127.0.0.1", port=port_of(node_id)),
        "state": "serving",
        "heartbeat_ms": HEARTBEAT_MS,
        "lineage": LINEAGE,
        "partitions": 1,
        "end_version": 7,
        "end_age_ms": 0,
        "applied": Applied(version=version, time_lag_ms=0),
        "term": 1,
        "epoch": 1,
        "catalogue": "c1",
        **fields,
    }
    return Heartbeat(**values)


def assigned(
    tasks: Mapping[str, AssignedTask], *, order: tuple[int, int] = (1, 1), partitions: int = 1, lineage: str = LINEAGE
) -> Assignment:
    """An assignment whose nodes all listen somewhere."""
    names = sorted({node_id for duty in tasks.values() for node_id in duty.holders})
    return Assignment(
        application_id=APPLICATION,
        term=order[0],
        epoch=order[1],
        written_by="a",
        lineage=lineage,
        partitions=partitions,
        tasks=dict(tasks),
        members={name: NodeEndpoint(host="127.0.0.1", port=port_of(name)) for name in names},
    )


def task(active: str | None = "a", *standbys: str, warmups: tuple[str, ...] = ()) -> AssignedTask:
    return AssignedTask(active=active, standbys=tuple(standbys), warmups=tuple(warmups))


def tables_of(duty: AssignedTask, *heartbeats: Heartbeat, now_ms: float = 0) -> Tables:
    """One task, and what was heard of its nodes at `now_ms`, with the bus there."""
    tables = Tables(end_expiry_ms=END_EXPIRY_MS)
    tables.bus_back(now_ms)
    tables.assigned(assigned({TASK: duty}), now_ms)
    for heartbeat in heartbeats:
        assert tables.heard(heartbeat, age_ms=0, now_ms=now_ms)
    return tables


def expire(tables: Tables, now_ms: float) -> None:
    """No node that is silent for too long by then answers when asked."""
    for node_id, node in tables.nodes.items():
        if tables.is_silent(node, now_ms):
            tables.did_not_answer(node_id, now_ms)
    tables.expire(now_ms)


def catalogue(*, partitions: int = 1, lineage: str = LINEAGE, name: str = "words", has_keys: bool = True) -> Catalogue:
    """One store, keyed by a word or by nothing."""
    store = CatalogueStore(
        store=name,
        operator_id=0,
        operator="stateStoreSave",
        key_schema=_KEY_SCHEMA if has_keys else _NO_COLUMNS,
        key_names=["word"] if has_keys else [],
        partitions=partitions,
        value=[{"name": "count", "type": "bigint", "nullable": False}],
    )
    refused: list[dict[str, str | int]] = [{"operator_id": 1, "reason": "its state is not read"}]
    return Catalogue(
        application_id=APPLICATION, lineage=lineage, partitions=partitions, stores=[store], not_served=refused
    )


def route(*, partitions: int = 1, has_keys: bool = True) -> StoreRoute:
    """The one store."""
    return stores_of(catalogue(partitions=partitions, has_keys=has_keys), "c1").get("words")


def candidate(node_id: str, **fields: Any) -> Candidate:
    """A live, open standby in step."""
    known: dict[str, Any] = {
        "endpoint": HostInfo("127.0.0.1", port_of(node_id)),
        "role": "standby",
        "state": "RUNNING",
        "version": 7,
        "offset_lag": 0,
        "time_lag_ms": 0,
        "report_age_ms": 10,
        "is_live": True,
        "is_heard": True,
        **fields,
    }
    return Candidate(node_id, **known)


def farewell(node_id: str = "a", incarnation: str = "i1") -> Farewell:
    """The last words of a process."""
    return Farewell(application_id=APPLICATION, node_id=node_id, incarnation=incarnation)


def answered(
    tables: Tables, node_id: str, now_ms: float, end_version: int = 7, *, order: tuple[int, int] = (1, 1)
) -> bool:
    """A hop that took 1 ms."""
    return tables.hop_answered(node_id, now_ms, took_ms=1, term=order[0], epoch=order[1], end_version=end_version)


def happened(tables: Tables) -> list[str]:
    """The kinds of the events, the oldest first."""
    return [event.event for event in tables.events]
