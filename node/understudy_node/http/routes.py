"""The FastAPI routes of a node besides lookups and probes: stores, lag, health."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from understudy_node.http.admin import lag_report
from understudy_node.http.health import NodeHealth
from understudy_node.http.reads import Reads
from understudy_node.node import Node
from understudy_node.stores.examples import some_key
from understudy_node.stores.lookup import StoreReader
from understudy_shared.server.app import json_response
from understudy_shared.server.scans import Scans
from understudy_shared.server.store_lists import listed_stores


def read_routes(node: Node, reads: Reads, scans: Scans) -> APIRouter:
    """Make `/v1/stores` and one store's schema."""
    router = APIRouter()

    @router.get("/v1/stores")
    async def stores(request: Request) -> Response:
        """List every served store that the caller sees, with its schema, and the parts of the checkpoint that are not
        served.
        """
        generation = reads.generation()
        described = [_described(reader, reads, node) for reader in generation.readers.values()]
        return await listed_stores(request, scans, described, generation.not_served())

    @router.get("/v1/stores/{store}")
    async def store_schema(store: str) -> Response:
        """Return one store's schema, and its history."""
        reader = reads.reader(store)
        return json_response({**_described(reader, reads, node), "schemas": reader.store.schemas})

    return router


def internal_routes(reads: Reads) -> APIRouter:
    """Make `/internal/v1/position` for routers, and `/internal/v1/stores/{store}/key` for the welcome of `understudy
    serve`.
    """
    router = APIRouter()

    @router.get("/internal/v1/position")
    async def position(at_us: int) -> Response:
        """Return the position of the newest version that was committed at a moment or before."""
        return json_response({"position": (await reads.position_at(at_us)).encode()})

    @router.get("/internal/v1/stores/{store}/key")
    async def existing_key(store: str) -> Response:
        """Return some key that is in the store now, by column name; null when none of the first looks finds one."""
        return json_response({"key": await asyncio.to_thread(some_key, reads.reader(store))})

    return router


def admin_routes(node: Node, reads: Reads, health: NodeHealth) -> APIRouter:
    """Make `/admin/v1/lag` and `/admin/v1/health`."""
    router = APIRouter()

    @router.get("/admin/v1/lag")
    async def lag(store: str | None = None) -> Response:
        """Return the lag of every store partition, and what is known of the query."""
        return json_response(lag_report(node, None if store is None else reads.reader(store).store.name))

    @router.get("/admin/v1/health")
    async def whether_well() -> Response:
        """Report what is wrong here and what to do. The worst indicator is the state of the whole."""
        return json_response(health.document())

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
