"""`/admin/`: the page, and the files that it loads. It shows what `overview` says, and reads nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from understudy_router.page import headers
from understudy_router.page.assets import ASK_AGAIN, FOREVER, Asset, Assets, page_assets
from understudy_router.page.page_query import PageQuery, read_query
from understudy_router.page.render import NO_HISTORY, opened_place, page_pieces
from understudy_shared.http.lookup_requests import unknown_path
from understudy_shared.http.problems import ProblemError

Overview = Callable[[], Awaitable[Mapping[str, Any]]]
"""What the page shows: the document of `GET /admin/v1/overview`."""

History = Callable[[str | None, int | None], Awaitable[Mapping[str, Any]]]
"""The last hour: the document of `GET /admin/v1/history`, of all, of a store, or of one of its partitions."""

PIECES_PER_SLICE = 250
"""Pieces of the page that are made between two turns of the event loop: one or two milliseconds."""


def page_routes(overview: Overview, history: History, assets: Assets | None = None) -> APIRouter:
    """The page's routes. They are for browsers: the OpenAPI document has the calls that the page itself makes."""
    routes = APIRouter(include_in_schema=False)
    served = assets or page_assets()

    @routes.get("/")
    @routes.get("/admin")
    async def to_page() -> Response:
        """A person typed the host only: show the page."""
        return Response(status_code=307, headers={**headers.SECURITY, "location": "/admin/"})

    @routes.get("/admin/")
    async def page(request: Request) -> Response:
        """The page as it is now; its scripts keep it so."""
        query = read_query(request.query_params)
        shown = await overview()
        pieces = page_pieces(shown, await _histories(query, shown), query, served.build)
        return Response(await _joined(pieces), media_type="text/html", headers=headers.PAGE)

    @routes.get("/admin/static/{path:path}")
    async def static(path: str, request: Request) -> Response:
        """A file by its name, or by the hash of this release and its name."""
        build, _, name = path.partition("/")
        asset = served.by_path.get(name if build == served.build else path)
        if asset is None:  # a page of another release, which a router before this one has sent
            asset = served.by_path.get(name)
        if asset is None:
            raise ProblemError(unknown_path(request.scope["raw_path"]))
        return _file(asset, request, FOREVER if build == served.build else ASK_AGAIN)

    async def _histories(query: PageQuery, shown: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        found = {"all": await _last_hour(None, None)}
        if query.store in {store["store"] for store in shown["stores"]}:
            found["store"] = await _last_hour(query.store, None)
        place = opened_place(query, shown)
        if place is not None:
            found["open"] = await _last_hour(place.store, place.partition)
        return found

    async def _last_hour(store: str | None, partition: int | None) -> Mapping[str, Any]:
        try:
            return await history(store, partition)
        except ProblemError:  # of a store or partition too many to be remembered: the page is worth more than its curve
            return NO_HISTORY

    return routes


async def _joined(pieces: Iterable[str]) -> bytes:
    """The page in one; other requests are answered while it is made."""
    made: list[str] = []
    for number, piece in enumerate(pieces):
        made.append(piece)
        if number % PIECES_PER_SLICE == PIECES_PER_SLICE - 1:
            await asyncio.sleep(0)
    return "".join(made).encode()


def _file(asset: Asset, request: Request, cache_control: str) -> Response:
    known = {"etag": asset.etag, "cache-control": cache_control, **headers.SECURITY}
    asked = request.headers.get("if-none-match", "")
    if asked == "*" or asset.etag in {each.strip().removeprefix("W/") for each in asked.split(",")}:
        return Response(status_code=304, headers=known)
    return Response(asset.body, media_type=asset.media_type, headers=known)
