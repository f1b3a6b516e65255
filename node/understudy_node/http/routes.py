"""The FastAPI routes of a node besides lookups: stores, lag, probes, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from fastapi import APIRouter, Response

from understudy_node.http.admin import lag_report
from understudy_node.http.metrics import CONTENT_TYPE_LATEST, NodeMetrics
from understudy_node.http.reads import Reads
from understudy_node.node import Node
from understudy_node.stores.examples import some_key
from understudy_node.stores.lookup import StoreReader
from understudy_shared.http.app import json_response
from understudy_shared.http.connection_guard import ConnectionGuard


def read_routes(node: Node, reads: Reads) -> APIRouter:
    """`/v1/stores` and one store's schema."""
    router = APIRouter()

    @router.get("/v1/stores")
    async def stores() -> Response:
        """Every served store with its schema, and the stores of the checkpoint that are not served."""
        generation = reads.generation()
        described = [_described(reader, reads, node) for reader in generation.readers.values()]
        return json_response({"stores": described, "not_served": generation.not_served()})

    @router.get("/v1/stores/{store}")
    async def store_schema(store: str) -> Response:
        """One store's schema."""
        return json_response(_described(reads.reader(store), reads, node))

    return router


def example_routes(reads: Reads) -> APIRouter:
    """`/internal/v1/stores/{store}/key`, for the welcome of `understudy serve`."""
    router = APIRouter()

    @router.get("/internal/v1/stores/{store}/key")
    async def existing_key(store: str) -> Response:
        """Some key that is in the store now, by column name; null when none is found at once."""
        return json_response({"key": await asyncio.to_thread(some_key, reads.reader(store))})

    return router


class Health(Protocol):
    """The state of the rest of the process, beside the node."""

    @property
    def dead(self) -> str | None: ...

    def causes(self) -> Mapping[str, str]: ...

    def not_ready(self) -> list[str]: ...


def admin_routes(
    node: Node, reads: Reads, metrics: NodeMetrics, guard: ConnectionGuard, health: Health | None = None
) -> APIRouter:
    """`/admin/v1/lag`, probes and metrics."""
    router = APIRouter()

    @router.get("/admin/v1/lag")
    async def lag(store: str | None = None) -> Response:
        """Lag of every store partition, and what is known of the query."""
        return json_response(lag_report(node, None if store is None else reads.reader(store).store.name))

    @router.get("/livez")
    async def livez() -> Response:
        """Alive: the event loop runs and no background task died."""
        dead = node.dead or (None if health is None else health.dead)
        return json_response({"alive": dead is None, "reason": dead}, 200 if dead is None else 503)

    @router.get("/readyz")
    async def readyz() -> Response:
        """Every task can be answered from; lag does not matter here."""
        reasons = node.not_ready() + ([] if health is None else health.not_ready())
        causes = {**node.causes(), **({} if health is None else health.causes()), **guard.causes()}
        answer = {"ready": not reasons, "reasons": reasons, "degraded": "; ".join(causes.values()) or None}
        return json_response(answer, 503 if reasons else 200)

    @router.get("/metrics")
    async def prometheus() -> Response:
        """Prometheus exposition."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

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
