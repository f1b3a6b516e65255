"""The FastAPI routes of a node besides lookups: stores, lag, probes, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from understudy_node.http.admin import lag_report
from understudy_node.http.health import NodeHealth
from understudy_node.http.reads import Reads
from understudy_node.node import Node
from understudy_node.stores.examples import some_key
from understudy_node.stores.lookup import StoreReader
from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.shown import shown_status, shown_stores
from understudy_shared.processes.group import Group
from understudy_shared.server.app import json_response


def read_routes(node: Node, reads: Reads) -> APIRouter:
    """Make `/v1/stores` and one store's schema."""
    router = APIRouter()

    @router.get("/v1/stores")
    async def stores(request: Request) -> Response:
        """List every served store that the caller sees, with its schema, and the parts of the checkpoint that are not
        served.
        """
        generation = reads.generation()
        described = [_described(reader, reads, node) for reader in generation.readers.values()]
        principal = authorization_of(request.scope).principal
        return json_response(shown_stores(principal, described, generation.not_served()))

    @router.get("/v1/stores/{store}")
    async def store_schema(store: str) -> Response:
        """Return one store's schema, and its history."""
        reader = reads.reader(store)
        return json_response({**_described(reader, reads, node), "schemas": reader.store.schemas})

    return router


def example_routes(reads: Reads) -> APIRouter:
    """Make `/internal/v1/stores/{store}/key`, for the welcome of `understudy serve`."""
    router = APIRouter()

    @router.get("/internal/v1/stores/{store}/key")
    async def existing_key(store: str) -> Response:
        """Return some key that is in the store now, by column name; null when none of the first looks finds one."""
        return json_response({"key": await asyncio.to_thread(some_key, reads.reader(store))})

    return router


def admin_routes(
    node: Node, reads: Reads, group: Group, health: NodeHealth, dead: Callable[[], str | None]
) -> APIRouter:
    """Make `/admin/v1/lag`, health, probes and metrics; readiness and metrics are those of the whole `group`."""
    router = APIRouter()

    @router.get("/admin/v1/lag")
    async def lag(store: str | None = None) -> Response:
        """Return the lag of every store partition, and what is known of the query."""
        return json_response(lag_report(node, None if store is None else reads.reader(store).store.name))

    @router.get("/admin/v1/health")
    async def whether_well() -> Response:
        """Report what is wrong here and what to do. The worst indicator is the state of the whole."""
        return json_response(await health.document())

    @router.get("/healthz")
    @router.get("/livez")
    async def livez(request: Request) -> Response:
        """Report that it is alive: the event loop runs and no background task died."""
        why = dead()
        shown = shown_status(authorization_of(request.scope).principal, {"alive": why is None, "reason": why})
        return json_response(shown, 200 if why is None else 503)

    @router.get("/readyz")
    async def readyz(request: Request) -> Response:
        """Report whether every task can be answered from; lag does not matter here."""
        status = await group.status()
        shown = shown_status(authorization_of(request.scope).principal, status.document())
        return json_response(shown, status.http_status)

    @router.get("/metrics")
    async def prometheus() -> Response:
        """Return the exposition for Prometheus."""
        return Response(await group.metrics(), media_type=CONTENT_TYPE_LATEST)

    return router


def _described(reader: StoreReader, reads: Reads, node: Node) -> dict[str, object]:
    return {
        **reader.store.described(),
        "bounds": reads.store_bounds.of(reader.store.name),
        "partitions": reader.partitions,
        "end_offset_position": node.end.version,
        "lineage": reader.lineage,
        "application_id": reader.application_id,
    }
