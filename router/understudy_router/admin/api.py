"""The admin API of one router: as functions that the page calls, and as routes. Each process answers for itself.

Without viewers it only notes a point of history every ten seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import replace
from typing import Annotated, Any
from zlib import crc32

import orjson
from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from understudy_router.admin.facts import ROLES
from understudy_router.admin.lag_report import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    SORTS,
    STATES,
    BadLagCursorError,
    LagPage,
    LagQuery,
    csv_text,
    decoded,
    every_row,
    lag_tree,
    page_document,
    page_of,
)
from understudy_router.admin.node_reports import node_document
from understudy_router.admin.overview import Overview, RecentSnapshots, overview_of, worst_lag
from understudy_router.admin.safe_to_stop import Losses, losses_of, losses_of_all, nodes_to_ask
from understudy_router.admin.sampling import TICK_MS, Looking, Observer
from understudy_router.admin.snapshot import About, ClusterSnapshot, Document, Observed
from understudy_router.cluster.readiness import bus_document
from understudy_router.router import Router
from understudy_shared.auth.access import Exposure
from understudy_shared.base.background import Supervisor, in_slices, sliced
from understudy_shared.http.edge import is_known
from understudy_shared.http.health import HealthReport
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.page.feed import EventStream, OverviewFeed
from understudy_shared.page.routes import history_routes
from understudy_shared.page.series import (
    HISTORY_MINUTES,
    LAG,
    SHOWN_POINTS,
    STEP_MS,
    Key,
    Number,
    history_document,
    require_kept,
    step_of,
    thinned,
)
from understudy_shared.reads.bound_parsing import StoreBounds
from understudy_shared.reads.bounds import Bound
from understudy_shared.server.app import json_response, streamed_json_response
from understudy_shared.spark.temporal import utc_text
from understudy_shared.telemetry.metrics import RequestCounts

log = logging.getLogger(__name__)


class Admin:
    """The functions of the admin API. `requests` counts the readers' requests. `causes` returns why the process is
    degraded, by cause. `exposure` says what strangers can reach.
    """

    def __init__(
        self,
        router: Router,
        bounds: StoreBounds,
        requests: RequestCounts,
        causes: Callable[[], Mapping[str, str]],
        exposure: Exposure | None = None,
    ) -> None:
        self.looking = Looking(router, causes, exposure)
        self.feed = OverviewFeed(self._overview, router.clock)
        self._observer = Observer(router.served, router.nodes.counts, requests)
        self._router = router
        self._bounds = bounds
        self._shown: tuple[object, Mapping[str, list[Number]]] = (None, {})
        """The last computed histories of stores, and what they were computed from."""
        self._last_losses: tuple[ClusterSnapshot | None, Mapping[str, Losses]] = (None, {})
        self._losing = asyncio.Lock()
        self._snapshots = RecentSnapshots(router.leases, router.clock)
        router.when_leaving(self.feed.end)
        router.when_leaving(self._snapshots.end)

    def __repr__(self) -> str:
        return f"Admin({self.looking.gathers} gathers, {self.feed})"

    def start(self, tasks: Supervisor) -> None:
        """Begin to record the last hour, and to poll the cluster for viewers."""
        tasks.start("poll the cluster for viewers", self.feed.run())
        tasks.start("keep the last hour", self._keep_history())

    async def observed(self, *, max_age_ms: float = TICK_MS) -> Observed:
        """Return what is known now, and what was seen until now."""
        return await self._observer.see(await self.looking.snapshot(max_age_ms=max_age_ms))

    async def lag_page(self, snapshot: ClusterSnapshot, query: LagQuery) -> LagPage:
        """Return a page of the lag report. Raises BadLagCursorError for a cursor of another list."""
        page = await in_slices(page_of(snapshot, query))
        if page.next is not None and query.is_by_value:
            self.looking.keep(snapshot)
        return page

    async def snapshot_for(self, query: LagQuery) -> ClusterSnapshot:
        """Return the snapshot to answer a query from: the cursor's, else a new one. Raises BadLagCursorError if the
        cursor's is gone, NoSuchStoreError for a store that does not exist.
        """
        if query.cursor is not None and query.cursor.tick:
            kept = self.looking.kept(query.cursor.tick)
            if kept is None:
                what = "the list of this cursor is gone: it is kept for a minute, by the process that began it"
                raise BadLagCursorError(what)
            return kept
        snapshot = await self.looking.snapshot()
        if query.store is not None and snapshot.index.stores is not None:
            snapshot.index.stores.get(query.store)
        return snapshot

    def last_health(self) -> HealthReport | None:
        """Return the health at the last check, at most ten seconds ago: for metrics."""
        return None if self._observer.last is None else self._observer.last.health

    def last_lag(self) -> Document | None:
        """Return the worst lag at the last check, at most ten seconds ago, as the overview has it."""
        return None if self._observer.last is None else worst_lag(self._observer.last.snapshot)

    async def health(self) -> Document:
        """Return the judgement of the indicators."""
        seen = await self.observed()
        about = seen.snapshot.about
        head = {"schema": 1, "generated_at": utc_text(about.now_us), "application_id": about.application_id}
        return {**head, **about.view_of, **seen.health.document()}

    async def nodes(self) -> Document:
        """Return every known node, and whether it may be stopped."""
        snapshot = (await self.observed()).snapshot
        losses = await self._losses(snapshot)
        made = (node_document(snapshot, view, losses[node_id]) for node_id, view in snapshot.nodes.items())
        nodes = [each async for few in sliced(made) for each in few]
        return {"generated_at": utc_text(snapshot.about.now_us), "view_of": snapshot.about.view_of, "nodes": nodes}

    async def safe_to_stop(self, node_id: str) -> Document:
        """Ask the nodes that take over, and return whether a node may be stopped. Raises ProblemError."""
        self.require_node(node_id)
        since_ms = self._router.now_ms()
        hosts = await in_slices(nodes_to_ask(await self.looking.snapshot(), node_id))
        await self._router.watcher.silent_nodes.ask(hosts)
        snapshot = await self.looking.snapshot(max_age_ms=0)
        losses = await in_slices(losses_of(snapshot, node_id, self._bound, since_ms=since_ms))
        return safety_document(node_id, losses, snapshot.about)

    def unknown_safety(self, node_id: str) -> Document:
        """Return that it is not known whether a node may be stopped."""
        return safety_document(node_id, Losses(is_known=False), self.looking.about())

    async def history(self, store: str | None, partition: int | None, minutes: int = HISTORY_MINUTES) -> Document:
        """Return the last minutes of the whole, of a store, or of a partition. Raises ProblemError."""
        about, kept = (await self.observed()).snapshot.about, self._observer.history
        require_kept(kept, store, partition, None if store is None else self._router.stores().get(store).partitions)
        return history_document(kept, store, partition, now_ms=about.now_ms, now_us=about.now_us, minutes=minutes)

    async def overview_document(self) -> dict[str, Any]:
        """Return all that the page shows as Python objects, at most a tick old."""
        return await in_slices((await self.feed.overview()).documents())

    async def _overview(self, before: Overview | None) -> Overview:
        seen = await self.observed(max_age_ms=TICK_MS / 2)  # half a tick: some ticks come a little early
        seen = replace(seen, snapshots=await self._snapshots.recent())
        losses, histories = await self._losses(seen.snapshot), await self._store_history(seen.snapshot)
        return await in_slices(overview_of(seen, losses, histories, before))

    async def _losses(self, snapshot: ClusterSnapshot) -> Mapping[str, Losses]:
        """Return the cost of a stop of each node, computed once for each snapshot."""
        async with self._losing:
            if self._last_losses[0] is not snapshot:
                self._last_losses = snapshot, await in_slices(losses_of_all(snapshot, self._bound))
            return self._last_losses[1]

    async def _store_history(self, snapshot: ClusterSnapshot) -> Mapping[str, list[Number]]:
        """Return the last hour as the overview shows it, computed once for each point."""
        now_ms, kept = snapshot.about.now_ms, self._observer.history
        made_of = (step_of(now_ms), snapshot.index.stores)
        if self._shown[0] != made_of:
            shown = dict[str, list[Number]]()
            for route in snapshot.index.routes:
                values, _ = kept.series(Key(LAG, route.name), now_ms, HISTORY_MINUTES)
                shown[route.name] = thinned(values, SHOWN_POINTS)
                await asyncio.sleep(0)
            self._shown = made_of, shown
        return self._shown[1]

    async def _keep_history(self) -> None:
        while True:
            try:
                await self.observed()
            except Exception:
                log.exception("a point of the last hour is missing", extra={"action": "history-failed"})
            await asyncio.sleep(STEP_MS / 1000)

    def _bound(self, store: str) -> Bound:
        return self._bounds.bound(store, {})

    def require_node(self, node_id: str | None) -> None:
        known = self._router.tables.known_nodes
        if node_id is not None and node_id not in known:
            raise ProblemError(unknown_node(node_id, known))


def safety_document(node_id: str, losses: Losses, about: About) -> Document:
    """Return whether a node may be stopped, and what that would cost."""
    return {
        "node_id": node_id,
        "safe": losses.is_safe,
        "why": losses.why(node_id),
        "would_lose": losses.document(),
        "unanswered": list(losses.unanswered),
        "bus": bus_document(about.bus_lost_why or about.unheard),
        "checked_at": utc_text(about.now_us),
    }


def unknown_node(node_id: str, known: Collection[str]) -> Problem:
    """Return the problem for a node that is not among the known ones."""
    fix = f"Nodes known here: {', '.join(sorted(known)[:20]) or 'none'}"
    return Problem(ProblemType.UNKNOWN_PATH, f"there is no node {node_id!r}", "node", fix)


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
        """Return the faults, the readers that they hurt, the causes, and the remedies."""
        return json_response(await admin.health())

    @routes.get("/admin/v1/nodes")
    async def nodes() -> Response:
        return json_response(await admin.nodes())

    @routes.get("/admin/v1/nodes/{node_id}/safe-to-stop")
    async def safe_to_stop(node_id: str) -> Response:
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


async def _every_row(snapshot: ClusterSnapshot, query: LagQuery) -> AsyncIterator[bytes]:
    """Yield all rows as CSV, slice by slice."""
    async for lines in sliced(csv_text(every_row(snapshot, query))):
        yield b"".join(lines)


def _tag(request: Request, snapshot: ClusterSnapshot, *, is_csv: bool) -> str:
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
