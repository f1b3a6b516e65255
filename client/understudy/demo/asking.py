"""The demo's calls of its nodes and routers: the key that it asks for, and their answers in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from understudy.calls.http_client import Server
from understudy.demo.processes import DemoPart
from understudy.terminal.values import shown
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.texts import printable

_TIMEOUT_S = 5.0

STORE, KEY = "aircraft", "N14228"
"""The aircraft of the first departure of the year, which is there from the first batch on."""


def answer_line(answer: Mapping[str, Any]) -> str:
    """Print an answer in one line: fields, then its age and the node that answered."""
    by, lag = answer["served_by"], answer["lag"]["offset_lag"]
    age = f"version {answer['version']}, {'lag unknown' if lag is None else f'{lag} behind'}"
    source = f"{printable(by['host'])}:{by['port']}, {by['role']}"
    return f"{_fields(answer)}  ({age}, from {source})"


def _fields(answer: Mapping[str, Any]) -> str:
    if not answer["found"]:
        return "absent"
    fields = answer.get("result") or answer["value"]
    return ", ".join(f"{printable(name)} {shown(value)}" for name, value in fields.items())


# ---- calls


def not_ready(part: DemoPart) -> str:
    """Return why a part is not ready; "" when it is."""
    with Server(part.url, timeout_s=_TIMEOUT_S) as server:
        reasons = server.not_ready()
    return f"{part.name}: {'; '.join(reasons)}" if reasons else ""


def report_of(routers: Iterable[DemoPart]) -> dict[str, Any] | None:
    """Return the lag report of the first router that gives one."""
    return _first_answer(routers, lambda server: orjson.loads(server.get("/admin/v1/lag")))


def ask(server: Server) -> dict[str, Any]:
    """Return the answer for the key, found or absent."""
    answer: dict[str, Any] = orjson.loads(server.get(f"/v1/stores/{STORE}/keys/{KEY}"))
    return answer


def answer_and_active(router: DemoPart) -> tuple[dict[str, Any], str]:
    """Return the answer for the key, and the URL of the active node for it; "" without one."""
    with Server(router.url, timeout_s=_TIMEOUT_S) as server:
        answer = ask(server)
        host = orjson.loads(server.get(f"/v1/stores/{STORE}/metadata/{KEY}"))["active_host"]
    return answer, "" if host is None else f"http://{host['host']}:{host['port']}"


def who_answers(routers: Iterable[DemoPart]) -> dict[str, Any] | None:
    """Return the answer of the first router that gives one."""
    return _first_answer(routers, ask)


def _first_answer(routers: Iterable[DemoPart], asked: Callable[[Server], dict[str, Any]]) -> dict[str, Any] | None:
    for router in routers:
        try:
            with Server(router.url, timeout_s=_TIMEOUT_S) as server:
                return asked(server)
        except UnderstudyError:
            continue
    return None


# ---- reports of routers (pure)

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
