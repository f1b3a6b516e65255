"""Requests of the demo to its own nodes and routers over HTTP: readiness, placement, the examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import orjson

from understudy.calls.http_client import Server, path_segment
from understudy.demo.examples import FIRST, SECOND, Example, hour_examples
from understudy.demo.plan import DemoPart
from understudy_shared.base.errors import UnderstudyError

_TIMEOUT_S = 5.0

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
