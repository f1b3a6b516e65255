"""The routes of a router over all its applications: the overview, and what concerns a whole node."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Request, Response

from understudy_router.fleet.reports import FleetReports
from understudy_router.page import headers
from understudy_router.page.fleet_views import read_fleet_query
from understudy_router.page.render import PageReader, fleet_page
from understudy_router.page.routes import file_routes
from understudy_shared.auth.access import authorization_of, session_name
from understudy_shared.auth.audit import note
from understudy_shared.http.edge import read_flag
from understudy_shared.server.app import json_response


def fleet_routes(reports: FleetReports) -> APIRouter:
    """Make the routes. Those of one application are below `/admin/v1/applications/{application}/`."""
    routes = APIRouter()

    @routes.get("/admin/v1/applications")
    async def applications(request: Request) -> Response:
        """Return every application that the caller may monitor: health, freshness, lag and reads, the worst first."""
        return json_response(await reports.overview(monitored_by(request)))

    @routes.delete("/admin/v1/applications/{application}")
    async def remove(application: str) -> Response:
        """Let an application go that announced itself, at all nodes, until it is announced again."""
        return json_response(await reports.let_go(application), 202)

    @routes.get("/admin/v1/nodes/{node_id}/safe-to-stop")
    async def safe_to_stop(node_id: str, request: Request) -> Response:
        """Whether a node may be stopped now, as far as all its applications go."""
        return json_response(await reports.safe_to_stop(node_id, monitored_by(request)))

    @routes.post("/admin/v1/nodes/{node_id}/drain")
    async def drain(node_id: str, request: Request) -> Response:
        """Ask the cluster to move a node's tasks of all applications to others; `{"drain": false}` takes that back."""
        wanted = await read_flag(request.receive, "drain", default=True)
        note(request.scope, drain=wanted)
        return json_response(await reports.drain(node_id, monitored_by(request), drain=wanted), 202)

    @routes.get("/admin/")
    async def page(request: Request) -> Response:
        """Return the overview of the applications as a page; its script keeps it up to date."""
        query, overview = read_fleet_query(request.query_params), await reports.overview(monitored_by(request))
        rows = [row for row in overview["applications"] if query.lets_through(row)]
        reader = PageReader(session_name(request.scope))
        return Response(fleet_page(overview, rows, query, reader), media_type="text/html", headers=headers.LIVE)

    routes.include_router(file_routes())
    return routes


def monitored_by(request: Request) -> Callable[[str], bool]:
    """Return which applications the caller of a request may monitor."""
    return authorization_of(request.scope).principal.monitors
