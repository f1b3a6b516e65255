"""The documents of one store for Explore, prepared and the same each time: its schema, a page of keys, a history."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Response
from tests.support.page.overviews import AT, KEYS, LINEAGE

from understudy_shared.server.app import json_response

VERSION, COUNT = 418, 4043
STAMP: dict[str, Any] = {"version": VERSION, "committed_at": AT, "watermark": None, "position": "us1.position"}
COLUMNS = [{"name": "flights", "type": "long"}, {"name": "delay_total", "type": "long"}]


CHANGED = (380, 386, 389, 397, 404, 411, 417)
"""Versions that changed the aircraft that is looked up, whose seven last flights they count."""


def content(flights: int, delay: int) -> dict[str, Any]:
    """The value of an aircraft, as answers with `longs=string` print it."""
    shown = {"flights": str(flights), "delay_total": str(delay)}
    return {"value": shown, "result": shown}


def row(number: int) -> dict[str, Any]:
    """A row of the page; that of N14228 says what its lookup says."""
    tail = 14200 + number * 7 % 50
    said = content(15, 90071992547409931) if tail == 14228 else content(1 + number * 7 % 60, number * 131 % 900 - 90)
    return {"key": {"tailnum": f"N{tail}"}, **said}


def add_explorable(http: FastAPI) -> None:
    """Add the calls of Explore: every store has the keys of `aircraft`."""

    @http.get("/v1/stores/{store}")
    async def schema(store: str) -> Response:
        known = {"store": store, "kind": "value", "key": KEYS["aircraft"][0], "partitions": 4, "lineage": LINEAGE}
        return json_response({**known, "value": COLUMNS, "result": COLUMNS})

    @http.get("/v1/stores/{store}/count")
    async def count(store: str) -> Response:
        return json_response({"store": store, "count": COUNT, "is_estimate": True})

    @http.get("/v1/stores/{store}/scan")
    async def scan(store: str) -> Response:
        rows = [row(number) for number in range(50)]
        return json_response({"store": store, **STAMP, "rows": rows, "next_cursor": "sc1.next"})

    @http.get("/v1/stores/{store}/history")
    async def history(store: str) -> Response:
        versions = [
            {"found": True, **content(9 + step, 90071992547409931 - 12 * (6 - step) ** 2), **STAMP, "version": version}
            for step, version in enumerate(CHANGED)
        ]
        of = {"store": store, "key": {"tailnum": "N14228"}, "partition": 0}
        return json_response({**of, "from": CHANGED[0], "to": VERSION, "versions": versions, "next_from": None})
