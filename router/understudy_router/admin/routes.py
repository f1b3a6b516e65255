"""The routes of the admin API. `admin.py` makes their answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from understudy_router.admin.admin import HISTORY_MINUTES, Admin
from understudy_router.admin.feed import EventStream
from understudy_router.admin.lag_routes import Filter, lag_routes
from understudy_shared.server.app import json_response


def overview_routes(admin: Admin) -> APIRouter:
    """Make the routes for lag, health, nodes, history, and the overview as a document and as a stream."""
    routes = APIRouter()
    routes.include_router(lag_routes(admin))

    @routes.get("/admin/v1/health")
    async def health() -> Response:
        """Return the faults, the readers that they hurt, the causes, and the remedies. The worst of the indicators is
        the state of the whole.
        """
        return json_response(await admin.health())

    @routes.get("/admin/v1/nodes")
    async def nodes() -> Response:
        """Return every known node, and whether it may be stopped."""
        return json_response(await admin.nodes())

    @routes.get("/admin/v1/nodes/{node_id}/safe-to-stop")
    async def safe_to_stop(node_id: str) -> Response:
        """Whether a node may be stopped now, and what readers would lose."""
        return json_response(await admin.safe_to_stop(node_id))

    @routes.get("/admin/v1/history")
    async def history(
        store: Filter = None,
        partition: Annotated[int | None, Query(ge=0)] = None,
        minutes: Annotated[int, Query(ge=1, le=HISTORY_MINUTES)] = HISTORY_MINUTES,
    ) -> Response:
        """Return lag and freshness of the last minutes: of the whole, of a store, or of one of its partitions."""
        return json_response(await admin.history(store, partition, minutes))

    @routes.get("/admin/v1/overview")
    async def overview() -> Response:
        """Return all that the page shows, at most a second old."""
        return Response((await admin.overview()).whole() + b"\n", media_type="application/json")

    @routes.get("/admin/v1/events", status_code=200, response_class=EventStream)
    async def events(request: Request) -> Response:
        """Send server-sent events: the overview, then its changes, at most once a second."""
        return admin.events(request)

    return routes
