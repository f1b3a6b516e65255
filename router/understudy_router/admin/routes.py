"""The routes of the admin API. `admin.py` knows what they answer, `lag_forms.py` has the forms of the lag report."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Annotated
from zlib import crc32

import orjson
from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from understudy_router.admin.admin import Admin
from understudy_router.admin.lag_forms import csv_text, lag_tree, page_document
from understudy_router.admin.lag_page import DEFAULT_LIMIT, MAX_LIMIT, SORTS, STATES, decoded, every_row
from understudy_router.admin.lag_page import Query as LagQuery
from understudy_router.admin.replica_index import ROLES
from understudy_router.admin.snapshot import Snapshot
from understudy_shared.base.background import sliced
from understudy_shared.http.edge import is_known
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.page.feed import EventStream
from understudy_shared.page.routes import history_routes
from understudy_shared.server.app import json_response, streamed_json_response

FORMATS = ("json", "csv")
CSV_TYPE = "text/csv; charset=utf-8; header=present"

Filter = Annotated[str | None, Query(max_length=256)]
Limit = Annotated[int | None, Query(ge=1, le=MAX_LIMIT)]
Choice = Annotated[str | None, Query(max_length=64)]


def overview_routes(admin: Admin) -> APIRouter:
    """Make the routes for lag, health, nodes, history, and the overview as a document and as a stream."""
    routes = APIRouter()
    routes.include_router(lag_routes(admin))
    routes.include_router(history_routes(admin.history))

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

    @routes.get("/admin/v1/overview")
    async def overview() -> Response:
        """Return all that the page shows, at most a second old."""
        return Response((await admin.feed.overview()).whole() + b"\n", media_type="application/json")

    @routes.get("/admin/v1/events", status_code=200, response_class=EventStream)
    async def events(request: Request) -> Response:
        """Send server-sent events: the overview, then its changes, at most once a second."""
        return admin.feed.respond(request)

    return routes


def lag_routes(admin: Admin) -> APIRouter:
    """Make the route of the lag report: the tree, pages, CSV, and the ETag for reports that did not change."""
    routes = APIRouter()

    @routes.get("/admin/v1/lag")
    async def lag(
        request: Request,
        *,
        store: Filter = None,
        node: Filter = None,
        state: Choice = None,
        role: Choice = None,
        limit: Limit = None,
        cursor: Annotated[str | None, Query(max_length=2048)] = None,
        sort: Choice = None,
        top: Limit = None,
        form: Annotated[str | None, Query(alias="format", max_length=64)] = None,
    ) -> Response:
        """Return how far every replica is, and how every node is, as this router knows it. With any of `limit`,
        `cursor`, `sort` or `top`, return a page of replicas. `top` says both order and limit. As CSV, return all of
        them, unless there is a limit.
        """
        for name, value, known in (
            ("state", state, STATES), ("role", role, ROLES), ("sort", sort, SORTS), ("format", form, FORMATS),
        ):  # fmt: skip
            _require_known(name, value, known)
        admin.require_node(node)
        is_csv = form == "csv" or (form is None and _accepts_csv(request))
        is_paged = (limit, cursor, sort, top) != (None, None, None, None)
        query = LagQuery(
            store=store,
            node=node,
            state=state,
            role=role,
            sort="-lag" if top is not None else sort or "store",
            limit=top or limit or DEFAULT_LIMIT,
            cursor=None if cursor is None else decoded(cursor),
        )
        if not is_csv and not is_paged:
            return await streamed_json_response(lag_tree(await admin.looking.snapshot(max_age_ms=0), query))
        snapshot = await admin.snapshot_for(query)
        tag = {"etag": _tag(request, snapshot, is_csv=is_csv), "vary": "Accept"}
        if is_known(request.headers.get("if-none-match", ""), tag["etag"]):
            return Response(status_code=304, headers=tag)
        if is_csv and (top, limit, cursor) == (None, None, None):
            return StreamingResponse(_every_row(snapshot, query), media_type=CSV_TYPE, headers=tag)
        page = await admin.lag_page(snapshot, query)
        if is_csv:
            return Response(b"".join(csv_text([page.rows])), media_type=CSV_TYPE, headers=tag)
        body = orjson.dumps(page_document(snapshot, page), option=orjson.OPT_APPEND_NEWLINE)
        return Response(body, media_type="application/json", headers=tag)

    return routes


async def _every_row(snapshot: Snapshot, query: LagQuery) -> AsyncIterator[bytes]:
    """Yield all rows as CSV, slice by slice."""
    async for lines in sliced(csv_text(every_row(snapshot, query))):
        yield b"".join(lines)


def _tag(request: Request, snapshot: Snapshot, *, is_csv: bool) -> str:
    """Return a weak tag, made of the tick of the snapshot and of the request."""
    query: bytes = request.scope["query_string"]
    return f'W/"{snapshot.tick}-{crc32(query):08x}-{"csv" if is_csv else "json"}"'


def _accepts_csv(request: Request) -> bool:
    """Whether CSV is asked for by name: a browser that accepts everything gets JSON."""
    kinds = [each.partition(";")[0].strip().lower() for each in request.headers.get("accept", "").split(",")]
    return "text/csv" in kinds and "application/json" not in kinds


def _require_known(name: str, value: str | None, known: Collection[str]) -> None:
    if value is not None and value not in known:
        what, fix = f"{name}={value[:64]!r} is not a choice", f"One of: {', '.join(known)}"
        raise ProblemError(Problem(ProblemType.BAD_REQUEST, what, name, fix))
