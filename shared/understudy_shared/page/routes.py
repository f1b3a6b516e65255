"""The routes of `/admin/`: the page, its files, the runbooks, and the form that drains a node for browsers without
scripts. The page shows the overview and its histories, and reads no other data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from html import escape
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from understudy_shared.auth.access import authorization_of, session_name
from understudy_shared.auth.audit import note
from understudy_shared.auth.principals import ANYBODY, Action
from understudy_shared.http.edge import address_of, is_known, read_body, to_root
from understudy_shared.http.html_pages import HEADERS, small_page
from understudy_shared.http.lookup_requests import unknown_path
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.page.feed import Drawings, Viewer
from understudy_shared.page.files import ASK_AGAIN, FOREVER, INDEX, LIVE, PAGE, SECURITY, Asset, page_assets, runbooks
from understudy_shared.page.render import (
    NO_HISTORY,
    PageReader,
    fleet_page,
    joined,
    load_templates,
    opened_place,
    page_pieces,
    runbook_page,
)
from understudy_shared.page.replicas import PageQuery, read_query
from understudy_shared.page.series import HISTORY_MINUTES
from understudy_shared.page.views import read_fleet_query
from understudy_shared.server.app import json_response

Document = Mapping[str, Any]

LoadOverview = Callable[[], Awaitable[Document]]
"""The function that returns the document of `GET /admin/v1/overview`, which the page shows."""


Changes = Callable[[Request, Viewer], Response]
"""The function that returns the stream of changes for one viewer."""


History = Callable[[str | None, int | None, int], Awaitable[Document]]
"""The function that returns the history of the last minutes: of the whole, of a store, or of one of its partitions."""


def history_routes(history: History) -> APIRouter:
    """Make `GET /admin/v1/history`."""
    routes = APIRouter()

    @routes.get("/admin/v1/history")
    async def last_minutes(
        store: Annotated[str | None, Query(max_length=256)] = None,
        partition: Annotated[int | None, Query(ge=0)] = None,
        minutes: Annotated[int, Query(ge=1, le=HISTORY_MINUTES)] = HISTORY_MINUTES,
    ) -> Response:
        """Return lag and freshness of the last minutes: of the whole, of a store, or of one of its partitions."""
        return json_response(await history(store, partition, minutes))

    return routes


def page_routes(overview: LoadOverview, history: History, changes: Changes, *, has_explore: bool = True) -> APIRouter:
    """Make the page's routes. They are for browsers; the OpenAPI document has only the calls that the page makes.
    `has_explore`: on the page, principals that may scan can list keys.
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
        pieces = page_pieces(shown, histories, query, to_root(request.scope), reader)
        return Response(await joined(pieces), media_type="text/html", headers=LIVE)

    @routes.get("/admin/changes")
    async def page_changes(request: Request) -> Response:
        """Send parts of the page as server-sent events, whenever they change."""
        return changes(request, Viewer(drawings, read_query(request.query_params)))

    return routes


def fleet_page_routes(overview: Callable[[Request], Awaitable[Document]]) -> APIRouter:
    """Make the routes of the page of several applications. `overview` returns those that a request may see."""
    routes = APIRouter()

    @routes.get("/admin/")
    async def page(request: Request) -> Response:
        """Return the overview of the applications as a page; its script keeps it up to date."""
        query, found = read_fleet_query(request.query_params), await overview(request)
        rows = [row for row in found["applications"] if query.lets_through(row)]
        reader = PageReader(session_name(request.scope))
        return Response(fleet_page(found, rows, query, reader), media_type="text/html", headers=LIVE)

    routes.include_router(file_routes())
    return routes


def file_routes() -> APIRouter:
    """Make the routes that all pages share: the redirect to the page, its files, and the runbooks."""
    routes = APIRouter()

    @routes.get("/")
    @routes.get("/admin")
    async def to_page(request: Request) -> Response:
        """Redirect a person who typed only the host to the page."""
        return Response(status_code=307, headers={**SECURITY, "location": address_of(request.scope, "/admin/")})

    @routes.get("/admin/runbooks/")
    @routes.get("/admin/runbooks/{name}")
    async def runbook(request: Request, name: str = INDEX) -> Response:
        """Return a runbook. The first one takes a moment to be made, and other requests are answered meanwhile."""
        found = (await asyncio.to_thread(runbooks)).get(name)
        if found is None:
            raise ProblemError(unknown_path(request.scope["raw_path"]))
        return Response(runbook_page(found, to_root(request.scope)), media_type="text/html", headers=PAGE)

    @routes.get("/admin/static/{path:path}")
    async def static(path: str, request: Request) -> Response:
        """Return a file by its name, or by the hash of this release and its name."""
        assets = page_assets()
        build, _, name = path.partition("/")
        is_ours = build == assets.build
        # A page from a router of another release asks for files below the hash of that release.
        asset = assets.by_path.get(name if is_ours else path) or assets.by_path.get(name)
        if asset is None:
            raise ProblemError(unknown_path(request.scope["raw_path"]))
        return _file(asset, request.headers.get("if-none-match", ""), FOREVER if is_ours else ASK_AGAIN)

    return routes


async def histories_of(history: History, query: PageQuery, shown: Document) -> dict[str, Document]:
    """Return the histories to draw: of the whole, of the chosen store, and of the open replica."""
    found = {"all": await _last_hour(history, None, None)}
    if query.store in {store["store"] for store in shown["stores"]}:
        found["store"] = await _last_hour(history, query.store, None)
    place = opened_place(query, shown)
    if place is not None:
        found["open"] = await _last_hour(history, place.store, place.partition)
    return found


async def _last_hour(history: History, store: str | None, partition: int | None) -> Document:
    try:
        return await history(store, partition, HISTORY_MINUTES)
    except ProblemError:  # not remembered: show the page without that curve
        return NO_HISTORY


def _file(asset: Asset, if_none_match: str, cache_control: str) -> Response:
    known = {"etag": asset.etag, "cache-control": cache_control, **SECURITY}
    if is_known(if_none_match, asset.etag):
        return Response(status_code=304, headers=known)
    return Response(asset.body, media_type=asset.media_type, headers=known)


Cost = Callable[[str], Awaitable[Mapping[str, Any]]]
"""The function that returns the cost of a stop of a node: the document of `GET /admin/v1/nodes/{id}/safe-to-stop`."""

MAX_FORM_BYTES = 64
_HEADERS = {name.decode(): value.decode() for name, value in HEADERS}
_WANTED = {b"drain=true": True, b"drain=false": False}


def drain_routes(cost: Cost, drain: Callable[[str, bool], Awaitable[object]]) -> APIRouter:
    """Make the routes of the form: one shows it, one handles its submission."""
    routes = APIRouter()

    @routes.get("/admin/nodes/{node_id}/drain")
    async def ask(node_id: str) -> Response:
        """Show what the action would cost, and its buttons."""
        return Response(drain_page(await cost(node_id)), media_type="text/html", headers=_HEADERS)

    @routes.post("/admin/nodes/{node_id}/drain")
    async def take(node_id: str, request: Request) -> Response:
        """Drain the node, or undo that, and show the page."""
        wanted = _WANTED.get(await read_body(request.receive, max_bytes=MAX_FORM_BYTES))
        if wanted is None:
            problem = Problem(
                ProblemType.BAD_REQUEST, "the form does not say whether to drain", "body", "Use its buttons"
            )
            raise ProblemError(problem)
        note(request.scope, drain=wanted)
        await drain(node_id, wanted)
        return Response(status_code=303, headers={**_HEADERS, "location": "../../#nodes-title"})

    return routes


def drain_page(document: Mapping[str, Any]) -> bytes:
    """Return the form of one node."""
    safe = "It is safe to stop" if document["safe"] else "It is not safe to stop now"
    body = (
        f"<p>{safe}: {escape(str(document['why']))}.</p>"
        "<p>Draining moves its replicas to other nodes, then it can be stopped. It answers meanwhile.</p>"
        '<form method="post"><button name="drain" value="true">Drain</button> '
        '<button name="drain" value="false">Undo drain</button></form><p><a href="../../">Back to the page</a></p>'
    )
    return small_page(f"Drain {document['node_id']}?", body)
