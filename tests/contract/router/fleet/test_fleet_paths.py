"""A router of many applications answers each path as a router of one does: with the application in it, and without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
from tests.support.bus.local_bus import LocalBus
from tests.support.cluster.fake_cluster import until
from tests.support.cluster.fleet import FleetWorld, fleet_of, single
from tests.support.services.openapi import judge

from understudy_shared.bus.base import Bus
from understudy_shared.questions.lookup.hop import PATH

ORDERS = "orders by-region"
READS = (
    "stores/totals",
    "stores/totals/keys/x",
    "stores/totals/lookup?key=%5B%22x%22%5D",
    "stores/totals/metadata",
    "stores/totals/metadata/x",
    "stores/totals/keys/x?max_offset_lag=0",
    "stores/totals/keys",
    "stores/totals/keys/x?wrong=1",
    "stores/totals/nothing",
)


REPORTS = (
    "health",
    "lag",
    "lag?store=totals",
    "lag?store=none",
    "nodes",
    "history",
    "overview",
    "nodes/z/safe-to-stop",
)


VOLATILE = ("generated_at", "checked_at", "tick", "view_of", "now")


class Kept(LocalBus):
    """A bus that its users do not close."""

    async def close(self) -> None:
        pass


@asynccontextmanager
async def both() -> AsyncIterator[tuple[FleetWorld, httpx.AsyncClient]]:
    """A fleet of two applications, and a router of the first alone, on one bus."""
    bus: Bus = Kept()
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(fleet_of({ORDERS: ["totals"], "flights": ["delays"]}, bus=bus))
        alone = await stack.enter_async_context(single(bus, ORDERS))
        await until(lambda: world.fleet.not_ready() == [])
        yield world, alone


def shape(reply: httpx.Response) -> tuple[int, str | None, object]:
    """Return the parts of a reply that two routers must agree on: status, type, and the fields that do not move."""
    kind = reply.headers.get("content-type")
    if kind is None or "json" not in kind:
        return reply.status_code, kind, None
    return reply.status_code, kind, _settled(reply.json())


def _settled(value: Any) -> Any:
    """A document without times, and without numbers below the names of measurements."""
    if isinstance(value, dict):
        return {name: _settled(each) for name, each in value.items() if name not in VOLATILE}
    if isinstance(value, list):
        return [_settled(each) for each in value]
    return None if isinstance(value, float | int) and not isinstance(value, bool) else value


async def test_a_fleet_answers_reads_as_a_router_of_one_application() -> None:
    async with both() as (world, alone):
        for path in READS:
            expected = shape(await alone.get(f"/v1/{path}"))
            assert shape(await alone.get(f"/v1/applications/{ORDERS.replace(' ', '%20')}/{path}")) == expected, path
            assert shape(await world.get(f"/v1/applications/{ORDERS.replace(' ', '%20')}/{path}")) == expected, path
            assert shape(await world.get(f"/v1/{path}")) == expected, path
        assert {name for path, name in world.node.named if path == PATH} == {"orders%20by-region"}


async def test_a_fleet_answers_reports_of_each_application_as_a_router_of_one() -> None:
    async with both() as (world, alone):
        for path in REPORTS:
            expected = await alone.get(f"/admin/v1/{path}")
            found = await world.get(f"/admin/v1/applications/{ORDERS}/{path}")
            assert (found.status_code, sorted(found.json())) == (expected.status_code, sorted(expected.json())), path


async def test_a_batch_of_keys_and_a_post_find_their_application() -> None:
    async with both() as (world, alone):
        body = {"keys": [["x"], ["y"]]}
        for path in ("/v1/stores/totals/lookup", f"/v1/applications/{ORDERS}/stores/totals/lookup"):
            expected, found = await alone.post(path, json=body), await world.http.post(path, json=body)
            assert shape(found) == shape(expected)
            assert found.status_code == 200


A, B = "/v1/applications/{application}", "/admin/v1/applications/{application}"
ANSWERED = [
    ("GET /openapi.json", "/openapi.json", 200),
    ("GET /docs", "/docs", 200),
    ("GET /readyz", "/readyz", 200),
    ("GET /v1/applications", "/v1/applications", 200),
    (f"GET {A}", "/v1/applications/a", 200),
    (f"GET {A}", "/v1/applications/c", 404),
    ("GET /v1/stores", "/v1/stores", 200),
    (f"GET {A}/stores", "/v1/applications/a/stores", 200),
    (f"GET {A}/stores", "/v1/applications/c/stores", 404),
    ("GET /v1/stores/{store}", "/v1/stores/more", 200),
    ("GET /v1/stores/{store}", "/v1/stores/words", 409),
    (f"GET {A}/stores/{{store}}/keys/{{key}}", "/v1/applications/c/stores/words/keys/x", 404),
    (f"GET {A}/stores/{{store}}/metadata", "/v1/applications/c/stores/words/metadata", 404),
    ("GET /admin/v1/applications", "/admin/v1/applications", 200),
    ("GET /admin/v1/nodes/{node_id}/safe-to-stop", "/admin/v1/nodes/NODE/safe-to-stop", 200),
    ("GET /admin/v1/nodes/{node_id}/safe-to-stop", "/admin/v1/nodes/z/safe-to-stop", 404),
    (f"GET {B}/nodes", "/admin/v1/applications/a/nodes", 200),
    (f"GET {B}/health", "/admin/v1/applications/c/health", 404),
]


async def test_every_answer_of_a_fleet_is_what_its_document_says() -> None:
    async with fleet_of({"a": ["words"], "b": ["words", "more"]}) as world:
        await until(lambda: world.fleet.not_ready() == [])
        document = (await world.get("/openapi.json")).json()
        for call, template, status in ANSWERED:
            reply = await world.get(template.replace("NODE", world.node.node_id))
            assert reply.status_code == status, (template, reply.text)
            judge(document, call, status, reply.headers["content-type"], reply.content)


async def test_tokens_of_one_application_are_refused_by_another() -> None:
    async with fleet_of({"a": ["words"], "b": ["words"]}) as world:
        await until(lambda: world.fleet.not_ready() == [])
        first = await world.get("/v1/applications/a/stores/words/metadata")
        other = await world.get("/v1/applications/b/stores/words/metadata")
        assert first.headers["etag"] != other.headers["etag"]
        known = {"if-none-match": first.headers["etag"]}
        assert (await world.http.get("/v1/applications/a/stores/words/metadata", headers=known)).status_code == 304
        assert (await world.http.get("/v1/applications/b/stores/words/metadata", headers=known)).status_code == 200
