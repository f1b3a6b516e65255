"""The routes of `/admin/`: the page, its files, and the runbooks. The page shows the overview and its histories, and
reads no other data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from understudy_router.page import headers
from understudy_router.page.assets import ASK_AGAIN, FOREVER, Asset, page_assets
from understudy_router.page.live import Drawings, Viewer
from understudy_router.page.page_query import PageQuery, read_query
from understudy_router.page.render import (
    NO_HISTORY,
    PageReader,
    joined,
    load_templates,
    opened_place,
    page_pieces,
    runbook_page,
)
from understudy_router.page.runbooks import INDEX, runbooks
from understudy_shared.auth.access import authorization_of, session_name
from understudy_shared.auth.principals import ANYBODY, Action
from understudy_shared.http.etags import is_known
from understudy_shared.http.lookup_requests import unknown_path
from understudy_shared.http.problems import ProblemError

Document = Mapping[str, Any]

LoadOverview = Callable[[], Awaitable[Document]]
"""The function that returns the document of `GET /admin/v1/overview`, which the page shows."""

Changes = Callable[[Request, Viewer], Response]
"""The function that returns the stream of changes to one viewer."""

History = Callable[[str | None, int | None], Awaitable[Document]]
"""The function that returns the last hour, the document of `GET /admin/v1/history`: of all, of a store, or of one of
its partitions."""


def page_routes(overview: LoadOverview, history: History, changes: Changes, *, has_explore: bool = True) -> APIRouter:
    """Make the page's routes. They are for browsers: the OpenAPI document has the calls that the page itself makes.
    `has_explore`: readers who may scan can list keys there.
    """
    load_templates()
    routes, drawings = APIRouter(), Drawings()
    routes.include_router(file_routes())

    @routes.get("/admin/")
    async def page(request: Request) -> Response:
        """Return the page as it is now; its scripts keep it up to date."""
        query = read_query(request.query_params)
        shown = await overview()
        histories = await histories_of(history, query, shown)
        principal = authorization_of(request.scope).principal
        reader = PageReader(
            session_name(request.scope),
            asks_key=principal is not ANYBODY,
            explored=tuple(sorted(principal.stores_of(Action.SCAN))) if has_explore else None,
        )
        pieces = page_pieces(shown, histories, query, page_assets().build, reader)
        return Response(await joined(pieces), media_type="text/html", headers=headers.LIVE)

    @routes.get("/admin/changes")
    async def page_changes(request: Request) -> Response:
        """Send parts of the page as server-sent events, whenever they change."""
        return changes(request, Viewer(drawings, read_query(request.query_params)))

    return routes


def file_routes() -> APIRouter:
    """Make the routes of what every page has: the way to it, its files, and the runbooks."""
    routes = APIRouter()

    @routes.get("/")
    @routes.get("/admin")
    async def to_page() -> Response:
        """Redirect a person who typed only the host to the page."""
        return Response(status_code=307, headers={**headers.SECURITY, "location": "/admin/"})

    @routes.get("/admin/runbooks/")
    @routes.get("/admin/runbooks/{name}")
    async def runbook(request: Request, name: str = INDEX) -> Response:
        """Return a runbook. The first one takes a moment to be made, and other requests are answered meanwhile."""
        found = (await asyncio.to_thread(runbooks)).get(name)
        if found is None:
            raise ProblemError(unknown_path(request.scope["raw_path"]))
        return Response(runbook_page(found, page_assets().build), media_type="text/html", headers=headers.PAGE)

    @routes.get("/admin/static/{path:path}")
    async def static(path: str, request: Request) -> Response:
        """Return a file by its name, or by the hash of this release and its name."""
        assets = page_assets()
        build, _, name = path.partition("/")
        is_ours = build == assets.build
        # A page that a router of another release has sent asks below the hash of that release.
        asset = assets.by_path.get(name if is_ours else path) or assets.by_path.get(name)
        if asset is None:
            raise ProblemError(unknown_path(request.scope["raw_path"]))
        return _file(asset, request.headers.get("if-none-match", ""), FOREVER if is_ours else ASK_AGAIN)

    return routes


async def histories_of(history: History, query: PageQuery, shown: Document) -> dict[str, Document]:
    """Return the histories that the page draws: of all, of the store that is chosen, and of the replica that is
    open.
    """
    found = {"all": await _last_hour(history, None, None)}
    if query.store in {store["store"] for store in shown["stores"]}:
        found["store"] = await _last_hour(history, query.store, None)
    place = opened_place(query, shown)
    if place is not None:
        found["open"] = await _last_hour(history, place.store, place.partition)
    return found


async def _last_hour(history: History, store: str | None, partition: int | None) -> Document:
    try:
        return await history(store, partition)
    except ProblemError:  # not remembered: show the page without that curve
        return NO_HISTORY


def _file(asset: Asset, if_none_match: str, cache_control: str) -> Response:
    known = {"etag": asset.etag, "cache-control": cache_control, **headers.SECURITY}
    if is_known(if_none_match, asset.etag):
        return Response(status_code=304, headers=known)
    return Response(asset.body, media_type=asset.media_type, headers=known)
