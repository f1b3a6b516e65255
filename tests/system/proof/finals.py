"""What each node itself says of all it holds, once everything is healed and nothing commits any more."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from tests.system.proof.history import FinalReplica, Value
from tests.system.proof.http_talk import within
from tests.system.proof.processes import Service
from tests.system.proof.question import key_text, said_by
from tests.system.proof.truth_of_state import Truth

from understudy_shared.base.words import KeyPlacement

KEYS_PER_REQUEST = 1000
CONVERGE_LIMIT_S = 30.0


def final_replicas(nodes: Iterable[Service], truth: Truth, application: str = "") -> list[FinalReplica]:
    """Every replica with its keys' values, as soon as all are at the last version; as they are when that takes too
    long.
    """
    nodes, stores = tuple(nodes), truth.stores
    until_s = time.monotonic() + CONVERGE_LIMIT_S
    while time.monotonic() < until_s and any(
        held != truth.last for node in nodes for store in stores for _, _, held in _holdings(node, store, application)
    ):
        time.sleep(0.1)
    return [
        replica
        for node in nodes
        for store in stores
        for replica in _replicas(node, store, [*truth.keys(store)], application)
    ]


def _holdings(node: Service, wanted: str, application: str) -> list[tuple[int, str, int | None]]:
    """(partition, role, version) of what a node says that it holds of a store."""
    reply = node.get(within(application, "/admin/v1/lag"))
    assert reply.status == 200, reply
    return [
        (replica["partition"], replica["role"], replica["current_offset_position"])
        for store in reply.body["stores"]  # type: ignore[attr-defined]
        if store["store"] == wanted
        for replica in store["partitions"]
    ]


def _scanned_replicas(node: Service, store: str, application: str) -> list[FinalReplica]:
    """The replicas of a scattered store, of which a node that lacks a partition looks no key up."""
    found: list[FinalReplica] = []
    for partition, role, held in _holdings(node, store, application):
        values: dict[str, Value | None] = {}
        versions, cursor = {held}, ""
        while cursor is not None:
            target = f"/v1/stores/{store}/scan?partition={partition}&limit={KEYS_PER_REQUEST}{cursor and '&cursor='}"
            page: Any = node.get(within(application, target + quote(cursor))).body
            versions.add(page["version"])
            cursor = page["next_cursor"]
            for row in page["rows"]:
                key, said = row["key"].values(), said_by(row)
                values[key_text(*key)] = said
                values |= {key_text(*key, *each["key"].values()): each["value"] for each in said.get("entries", ())}
        version = min(versions, key=lambda each: -1 if each is None else each)
        found.append(FinalReplica(node.name, store, partition, version, values, role))
    return found


def _replicas(node: Service, store: str, keys: Sequence[str], application: str) -> list[FinalReplica]:
    described: Any = node.get(within(application, f"/v1/stores/{store}")).body
    if described["placement"] == KeyPlacement.SCATTERED:
        return _scanned_replicas(node, store, application)
    values: dict[int, dict[str, Value | None]] = {}
    versions: dict[int, set[int]] = {}
    problems: dict[str, int] = {}
    for start in range(0, len(keys), KEYS_PER_REQUEST):
        part = keys[start : start + KEYS_PER_REQUEST]
        body = f'{{"keys":[{",".join(part)}]}}'
        reply = node.post(within(application, f"/v1/stores/{store}/lookup"), body.encode())
        assert reply.status == 200, reply
        for key, result in zip(part, reply.body["results"], strict=True):  # type: ignore[call-overload]
            if "found" not in result:
                problems[result["type"]] = problems.get(result["type"], 0) + 1
                continue
            values.setdefault(result["partition"], {})[key] = said_by(result) if result["found"] else None
            versions.setdefault(result["partition"], set()).add(result["version"])
    return [
        FinalReplica(
            node=node.name,
            store=store,
            partition=partition,
            version=min(versions.get(partition, {held}), key=lambda each: -1 if each is None else each),
            values=values.get(partition, {}),
            role=role,
            detail=json.dumps(problems) if partition not in values else "",
        )
        for partition, role, held in _holdings(node, store, application)
    ]
