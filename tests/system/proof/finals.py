"""What each node itself says of all it holds, once everything is healed and nothing commits any more."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence

from tests.system.proof.history import FinalReplica, Value
from tests.system.proof.keys import STORE
from tests.system.proof.processes import Service

KEYS_PER_REQUEST = 1000
CONVERGE_LIMIT_S = 30.0


def final_replicas(nodes: Iterable[Service], keys: Sequence[str], version: int) -> list[FinalReplica]:
    """Every replica with its keys' values, as soon as all are at `version`; as they are when that takes too long."""
    nodes = tuple(nodes)
    until_s = time.monotonic() + CONVERGE_LIMIT_S
    while time.monotonic() < until_s and any(held != version for node in nodes for _, _, held in _holdings(node)):
        time.sleep(0.1)
    return [replica for node in nodes for replica in _replicas(node, keys)]


def _holdings(node: Service) -> list[tuple[int, str, int | None]]:
    """(partition, role, version) of what a node says that it holds."""
    reply = node.get("/admin/v1/lag")
    assert reply.status == 200, reply
    return [
        (replica["partition"], replica["role"], replica["current_offset_position"])
        for store in reply.body["stores"]  # type: ignore[attr-defined]
        if store["store"] == STORE
        for replica in store["partitions"]
    ]


def _replicas(node: Service, keys: Sequence[str]) -> list[FinalReplica]:
    values: dict[int, dict[str, Value | None]] = {}
    versions: dict[int, set[int]] = {}
    problems: dict[str, int] = {}
    for start in range(0, len(keys), KEYS_PER_REQUEST):
        part = keys[start : start + KEYS_PER_REQUEST]
        body = f'{{"keys":[{",".join(part)}]}}'
        reply = node.post(f"/v1/stores/{STORE}/lookup", body.encode())
        assert reply.status == 200, reply
        for key, result in zip(part, reply.body["results"], strict=True):  # type: ignore[call-overload]
            if "found" not in result:
                problems[result["type"]] = problems.get(result["type"], 0) + 1
                continue
            values.setdefault(result["partition"], {})[key] = result.get("value")
            versions.setdefault(result["partition"], set()).add(result["version"])
    return [
        FinalReplica(
            node=node.name,
            store=STORE,
            partition=partition,
            version=min(versions.get(partition, {held}), key=lambda each: -1 if each is None else each),
            values=values.get(partition, {}),
            role=role,
            detail=json.dumps(problems) if partition not in values else "",
        )
        for partition, role, held in _holdings(node)
    ]
