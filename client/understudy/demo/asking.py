"""The demo's calls of its nodes and routers: their answers in words, and the keys that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import orjson

from understudy.calls.http_client import Server, path_segment
from understudy.demo.processes import DemoPart
from understudy.terminal.values import shown
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.printable import printable

_TIMEOUT_S = 5.0

_FIRST_HOUR = datetime(2013, 1, 1, 10, tzinfo=UTC)
_ORIGINS = ("EWR", "JFK", "LGA")
_HOURS = (0, 1, 2, -1, 3, 4, 5, 6, 7)
"""Hours after the watermark's to try: windows behind it are gone, and at night nothing departs."""


@dataclass(frozen=True, slots=True)
class Example:
    """A key as words, one per column, two for a window."""

    store: str
    words: tuple[str, ...]


FIRST = Example("aircraft", ("N14228",))
"""The aircraft of the first departure of the year, which is there from the first batch on."""

SECOND = Example("routes", ("UA", "EWR", "IAH"))


def hour_examples(store: Mapping[str, Any], watermark: str | None) -> Iterator[Example]:
    """Yield keys of the store of hours, likeliest first; one of them is there. `store` is its entry in `/v1/stores`."""
    hour = _hour_of(watermark)
    for offset in _HOURS:
        start = hour + timedelta(hours=offset)
        for origin in _ORIGINS:
            words = [
                word
                for column in store["key"]
                for word in (_window_words(start) if column["type"].startswith("struct<") else (origin,))
            ]
            yield Example(store["store"], tuple(words))


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


def _hour_of(watermark: str | None) -> datetime:
    """Return the watermark's hour; before there is one, the first departure's."""
    moment = _FIRST_HOUR if watermark is None else datetime.fromisoformat(watermark)
    return max(moment, _FIRST_HOUR).replace(minute=0, second=0, microsecond=0)


def _window_words(start: datetime) -> tuple[str, str]:
    end = start + timedelta(hours=1)
    return f"{start:%Y-%m-%dT%H:%M:%SZ}", f"{end:%Y-%m-%dT%H:%M:%SZ}"


# ---- calls

Answered = tuple[Example, dict[str, Any]]


def not_ready(part: DemoPart) -> str:
    """Return why a part is not ready; "" when it is."""
    with Server(part.url, timeout_s=_TIMEOUT_S) as server:
        reasons = server.not_ready()
    return f"{part.name}: {'; '.join(reasons)}" if reasons else ""


def report_of(routers: Iterable[DemoPart]) -> dict[str, Any] | None:
    """Return the lag report of the first router that gives one."""
    return _first_answer(routers, lambda server: orjson.loads(server.get("/admin/v1/lag")))


def ask(server: Server, example: Example) -> dict[str, Any]:
    """Return the answer for a key, found or absent."""
    path = "/".join(["/v1/stores", path_segment(example.store), "keys", *map(path_segment, example.words)])
    answer: dict[str, Any] = orjson.loads(server.get(path))
    return answer


def answered_examples(router: DemoPart) -> list[Answered]:
    """Return the examples that have an answer now: two keys that are known, and an hour that is searched for."""
    with Server(router.url, timeout_s=_TIMEOUT_S) as server:
        answered = [(example, ask(server, example)) for example in (FIRST, SECOND)]
        watermark = next((answer["watermark"] for _, answer in answered if answer["watermark"]), None)
        stores = orjson.loads(server.get("/v1/stores"))["stores"]
        hours = (store for store in stores if store["store"] == "airport_hours")
        found = (pair for store in hours for pair in _found(server, hour_examples(store, watermark)))
        return [*answered, *islice(found, 1)]


def active_of(router: DemoPart, example: Example) -> tuple[str, int] | None:
    """Return host and port of the active replica for a key."""
    path = "/".join(["/v1/stores", path_segment(example.store), "metadata", *map(path_segment, example.words)])
    with Server(router.url, timeout_s=_TIMEOUT_S) as server:
        host = orjson.loads(server.get(path))["active_host"]
    return None if host is None else (str(host["host"]), int(host["port"]))


def who_answers(routers: Iterable[DemoPart], example: Example) -> dict[str, Any] | None:
    """Return the answer of the first router that gives one."""
    return _first_answer(routers, lambda server: ask(server, example))


def _first_answer(routers: Iterable[DemoPart], asked: Callable[[Server], dict[str, Any]]) -> dict[str, Any] | None:
    for router in routers:
        try:
            with Server(router.url, timeout_s=_TIMEOUT_S) as server:
                return asked(server)
        except UnderstudyError:
            continue
    return None


def _found(server: Server, examples: Iterable[Example]) -> Iterator[Answered]:
    for example in examples:
        answer = ask(server, example)
        if answer["found"]:
            yield example, answer


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
