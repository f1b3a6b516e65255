"""What a router answers besides lookups and reports: stores, metadata, drain, probes, metrics. Routes of a few lines
each.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.http.reads import Reads
from understudy_router.router import Router
from understudy_router.routing.explain import explain_key, explain_store
from understudy_shared.http.app import json_response, sliced_json_response
from understudy_shared.http.edge import flag_body, read_flag
from understudy_shared.http.lookup_requests import key_and_params, numbers_as_text, pop_longs
from understudy_shared.http.target import parse_query, split_path
from understudy_shared.processes.group import Group


def read_routes(router: Router, reads: Reads) -> APIRouter:
    """`/v1/stores`, one store's schema, and the metadata of a store and of a key."""
    routes = APIRouter()

    @routes.get("/v1/stores")
    async def stores() -> Response:
        """Every store of the application, with its schema, and what of the checkpoint is not served."""
        known = router.stores()
        described = [_described(router, reads, route) for route in known.by_name.values()]
        return json_response({"stores": described, "not_served": known.not_served})

    @routes.get("/v1/stores/{store}")
    async def store_schema(store: str) -> Response:
        """One store's schema."""
        return json_response(_described(router, reads, reads.route(store)))

    @routes.get("/v1/stores/{store}/metadata")
    async def store_metadata(store: str, request: Request) -> Response:
        """All hosts of a store; with `?key=<JSON>` whom this router would ask for that key, and whom not, and why."""
        query: bytes = request.scope["query_string"]
        if "key" in parse_query(query):
            return json_response(explained(store, ["lookup"], query))
        return await sliced_json_response(explain_store(router.tables, reads.route(store)))

    @routes.get("/v1/stores/{store}/metadata/{key:path}")
    async def key_metadata(store: str, key: str, request: Request) -> Response:
        """Which nodes this router would ask for a key, which not, and why."""
        _, _, _, _, *segments = split_path(request.scope["raw_path"])
        return json_response(explained(store, ["keys", *segments], request.scope["query_string"]))

    def explained(store: str, form: list[str], query: bytes) -> dict[str, object]:
        route = reads.route(store)
        row, params = key_and_params(route.codec, form, query)
        longs = pop_longs(params)
        bound = reads.bound(route, params)
        shown = explain_key(router.tables, route, row, bound, load=router.clients.loads, now_ms=router.now_ms())
        return {**shown, "key": numbers_as_text(shown["key"])} if longs else shown

    return routes


def admin_routes(router: Router, group: Group) -> APIRouter:
    """Drain, probes and metrics; readiness and metrics are those of the whole `group`."""
    routes = APIRouter()

    @routes.post("/admin/v1/nodes/{node_id}/drain", openapi_extra=flag_body("drain", default=True))
    async def drain(node_id: str, request: Request) -> Response:
        """Ask the cluster to move a node's tasks to others; `{"drain": false}` takes that back."""
        wanted = await read_flag(request.receive, "drain", default=True)
        status, document = await router.drain(node_id, drain=wanted)
        return json_response(document, status)

    @routes.get("/livez")
    async def livez() -> Response:
        """The event loop turns and no background task died."""
        dead = router.dead
        return json_response({"alive": dead is None, "reason": dead}, 200 if dead is None else 503)

    @routes.get("/readyz")
    async def readyz() -> Response:
        """It is known what can be asked and who has it; without the bus lookups go on, degraded."""
        status = await group.status()
        return json_response(status.document(), status.http_status)

    @routes.get("/metrics")
    async def prometheus() -> Response:
        """Prometheus exposition."""
        return Response(await group.metrics(), media_type=CONTENT_TYPE_LATEST)

    return routes


def _described(router: Router, reads: Reads, route: StoreRoute) -> dict[str, object]:
    end_version, bounds = router.tables.end_version, reads.store_bounds.of(route.name)
    return {**route.described(), "bounds": bounds, "end_offset_position": end_version or None}
