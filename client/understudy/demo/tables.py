"""The changes in the cluster between two of a router's reports, and whether all replicas are in place (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Report = Mapping[str, Any]


def changes(before: Report, after: Report) -> list[tuple[str, str]]:
    """List (event, detail) for nodes that came, went or changed their state, for moved actives, and for the bus."""
    found = [*_node_changes(before, after), *_moved_actives(before, after)]
    if before["bus"]["state"] != after["bus"]["state"]:
        why = f": {after['bus']['why']}" if after["bus"]["why"] else ""
        found.append(("bus", f"the bus is {after['bus']['state']}{why}"))
    return found


def unplaced(report: Report, *, replicas: int) -> str:
    """Return why replicas are not in place: a partition lacks its active, or caught-up replicas; else ""."""
    if not report["stores"]:
        return "no store is known yet"
    lacking = 0
    for store in report["stores"]:
        by_partition: dict[int, list[Mapping[str, Any]]] = {}
        for replica in store["partitions"]:
            by_partition.setdefault(replica["partition"], []).append(replica)
        for held in by_partition.values():
            caught_up = [replica["role"] for replica in held if replica["state"] == "RUNNING"]
            lacking += "active" not in caught_up or len(caught_up) < replicas
    return f"{lacking} store partitions are not in place yet" if lacking else ""


def _node_changes(before: Report, after: Report) -> list[tuple[str, str]]:
    old, new = _node_states(before), _node_states(after)
    found = []
    for node_id in sorted(old.keys() | new.keys()):
        was, now = old.get(node_id, "not there"), new.get(node_id, "not there")
        if was != now:
            found.append(("node", f"{node_id} is {now} (was {was})"))
    return found


def _node_states(report: Report) -> dict[str, str]:
    return {node["node_id"]: node["state"] if node["live"] else "dead" for node in report["nodes"]}


def _moved_actives(before: Report, after: Report) -> list[tuple[str, str]]:
    old, new = _actives(before), _actives(after)
    moves: dict[tuple[str, str], int] = {}
    for partition, now in new.items():
        was = old.get(partition, now)
        if was != now:
            moves[was, now] = moves.get((was, now), 0) + 1
    return [
        ("active", f"{now} took {count} store partition{'s' if count > 1 else ''} over from {was}")
        for (was, now), count in sorted(moves.items())
    ]


def _actives(report: Report) -> dict[tuple[str, int], str]:
    return {
        (store["store"], replica["partition"]): replica["node_id"]
        for store in report["stores"]
        for replica in store["partitions"]
        if replica["role"] == "active"
    }
