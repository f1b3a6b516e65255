"""Tables of a router as tests make them: nodes that said something, and who was given what."""

from __future__ import annotations

from typing import Any

from tests.support.bus_talk import heartbeat

from understudy_router.tables import Tables
from understudy_shared.messages import Applied, AssignedTask, Assignment, Endpoint

TASK = "0_0"
NOW_MS = 100_000.0


def assigned(
    active: str | None,
    standbys: list[str] | None = None,
    warmups: list[str] | None = None,
    *,
    order: tuple[int, int] = (1, 1),
    lineage: str = "l1",
    partitions: int = 1,
) -> Assignment:
    """One task and its holders; every holder listens on a port of its own."""
    task = AssignedTask(active=active, standbys=standbys or [], warmups=warmups or [])
    return Assignment(
        application_id="flights",
        term=order[0],
        epoch=order[1],
        written_by="n1",
        lineage=lineage,
        partitions=partitions,
        tasks={TASK: task},
        members={node: Endpoint(host=node, port=7000) for node in task.holders},
    )


def said(tables: Tables, node_id: str, version: int | None, *, age_ms: float = 0, **fields: Any) -> bool:
    """`node_id` said that it has `version` of everything, `age_ms` before NOW_MS."""
    told: dict[str, Any] = {
        "applied": Applied(version=version, time_lag_ms=5, state="RUNNING" if version is not None else "CREATED"),
        "endpoint": Endpoint(host=node_id, port=7000),
        "partitions": 1,
        "end_version": 10,
        "heartbeat_ms": 1000,
        **fields,
    }
    return tables.heard(heartbeat(node_id, **told), age_ms=age_ms, now_ms=NOW_MS)


def tables_of(assignment: Assignment, **versions: int | None) -> Tables:
    """Tables in which the assignment is known, the bus is there, and each node said its version."""
    tables = Tables()
    tables.bus_back(NOW_MS)
    tables.assigned(assignment)
    for node_id, version in versions.items():
        said(tables, node_id, version, partitions=assignment.partitions)
    return tables
