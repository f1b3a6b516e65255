"""The HTTP application of a router: `RouterLookups` first, then FastAPI with the routes of rare requests.

`create_app` gets a router; the lifespan starts and stops it. The metadata of a store are the hosts of every partition,
and how keys are placed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from hashlib import blake2b

import orjson
from fastapi import APIRouter, FastAPI, Request, Response

from understudy_router.admin.api import Admin, overview_routes
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.cluster.tables import Tables
from understudy_router.http.metrics import RouterMetrics
from understudy_router.questions.changes import RouterChanges, RouterHistories
from understudy_router.questions.export import RouterExports
from understudy_router.questions.lease import RouterSnapshots
from understudy_router.questions.lookup.service import RouterLookups, RouterReads
from understudy_router.questions.scan import RouterScans
from understudy_router.questions.scan_forwarder import ScanForwarder
from understudy_router.questions.watch.service import RouterWatches
from understudy_router.router import Router
from understudy_router.routing.choose import Reason, assignment_of, explain_key, host_fields, host_of, metadata_of
from understudy_shared.auth.access import Access, authorization_of
from understudy_shared.auth.audit import note
from understudy_shared.auth.permissions import require_key
from understudy_shared.auth.principals import Authorization
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Assignment
from understudy_shared.http.edge import is_known, read_flag
from understudy_shared.http.health import Status
from understudy_shared.http.lookup_requests import key_and_params, numbers_as_text, pop_longs
from understudy_shared.http.openapi.document import add_document
from understudy_shared.http.target import parse_query, split_path
from understudy_shared.page.routes import drain_routes, page_routes
from understudy_shared.questions.changes.histories import history_routes
from understudy_shared.questions.changes.service import changes_routes
from understudy_shared.questions.export.service import export_routes
from understudy_shared.questions.export.store_files import store_file_routes
from understudy_shared.questions.lease.service import snapshot_routes
from understudy_shared.questions.scan.long_reads import LongReads
from understudy_shared.questions.scan.service import DirectPages, Scans, scan_routes, scans_in_front
from understudy_shared.questions.several import SeveralStores, several_routes
from understudy_shared.questions.store_lists import listed_stores
from understudy_shared.questions.watch.prefix_watches import PrefixWatches
from understudy_shared.questions.watch.service import watch_routes
from understudy_shared.questions.watch.streams import WatchStreams
from understudy_shared.reads.bound_parsing import read_store_bounds
from understudy_shared.server.app import (
    KEY_PATH,
    Framework,
    ProcessReport,
    answer_with_problems,
    json_response,
    probe_routes,
    service_app,
    sliced_json_response,
)
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.telemetry.span_export import close_spans, open_spans


class MetadataCall:
    """`GET /v1/stores/{store}/metadata`: every partition's hosts (KIP-535's `allMetadataForStore`), and what a client
    needs to ask them itself: how keys are placed, the store's default bounds, and the hosts not to ask.
    """

    def __init__(self, tables: Tables, route: StoreRoute, bounds: Mapping[str, object]) -> None:
        """Take in what the tables know now. Raises a not-initialised problem before there is an assignment."""
        self._tables, self._route = tables, route
        assignment = assignment_of(tables)
        self._rest: dict[str, object] = {
            "term": assignment.term,
            "epoch": assignment.epoch,
            "lineage": route.lineage,
            "application_id": route.application_id,
            "placement": route.codec.placement,
            "bounds": bounds,
            "encoding": route.encoding,
            "excluded_hosts": [*_excluded_hosts(tables, assignment)],
        }

    def etag(self) -> str:
        """Return the tag of the answer: it changes with anything in it."""
        holders = sorted(assignment_of(self._tables).holders)
        found = [self._rest, [host_fields(host_of(self._tables, node_id)) for node_id in holders]]
        return f'"{blake2b(orjson.dumps(found, option=orjson.OPT_SORT_KEYS), digest_size=12).hexdigest()}"'

    def pieces(self) -> Iterator[bytes]:
        """Yield the answer as JSON, in pieces: each partition is as it was when its piece was made, term and epoch as
        at the beginning.
        """
        hosts: set[HostInfo] = set()
        yield orjson.dumps({"store": self._route.name})[:-1] + b',"partitions":['
        for partition in range(self._route.partitions):
            found = metadata_of(self._tables, self._route, partition)
            hosts.update(host for host in (found.active_host, *found.standby_hosts) if host is not None)
            described = {
                "partition": found.partition,
                "active_host": host_fields(found.active_host),
                "standby_hosts": [host_fields(host) for host in found.standby_hosts],
            }
            yield b"," * bool(partition) + orjson.dumps(described)
        in_order = sorted(hosts, key=lambda host: (host.host, host.port))
        yield b"]," + orjson.dumps({"hosts": [host_fields(host) for host in in_order], **self._rest})[1:]


def _excluded_hosts(tables: Tables, assignment: Assignment) -> Iterator[dict[str, object]]:
    """Yield the live nodes of the assignment that this router does not read, or reads last, whatever the bound."""
    for node_id in sorted(assignment.holders):
        node = tables.nodes.get(node_id)
        if node is None:
            continue
        beat = node.heartbeat
        reason: str | None = None
        if node_id in tables.forks:
            reason = Reason.FORKED
        elif beat.lineage != assignment.lineage:
            reason = Reason.LINEAGE_CHANGED
        elif beat.partitions not in {None, assignment.partitions}:
            reason = Reason.OTHER_LAYOUT
        elif beat.is_asked_last:
            reason = beat.standing
        if reason is not None:
            yield {"host": beat.endpoint.host, "port": beat.endpoint.port, "reason": reason}


def read_routes(router: Router, reads: RouterReads, scans: Scans) -> APIRouter:
    """Make `/v1/stores`, one store's schema, and the metadata of a store and of a key."""
    routes = APIRouter()

    @routes.get("/v1/stores")
    async def stores(request: Request) -> Response:
        """List every store of the application that the caller sees, with its schema, and those that are not served."""
        known = router.stores()
        described = [_described(router, reads, route) for route in known.by_name.values()]
        return await listed_stores(request, scans, described, known.not_served)

    @routes.get("/v1/stores/{store}")
    async def store_schema(store: str) -> Response:
        """Return one store's schema, and its history where nodes send it."""
        route = reads.route(store)
        history = {"schemas": route.schemas} if route.schemas else {}
        return json_response({**_described(router, reads, route), **history})

    @routes.get("/v1/stores/{store}/metadata")
    async def store_metadata(store: str, request: Request) -> Response:
        """Return all hosts of a store, or 304 to a client that has them; with `?key=<JSON>` the nodes that this router
        would ask for that key, and the others with reasons.
        """
        query: bytes = request.scope["query_string"]
        parameters = parse_query(query)
        if "key" in parameters:
            return json_response(explained(store, ["lookup"], query, authorization_of(request.scope)))
        route = reads.route(store)
        pop_longs(parameters)
        reads.bound(route, parameters)  # Bounds count for a key only; a misspelt one is refused all the same.
        metadata = MetadataCall(router.tables, route, reads.store_bounds.of(route.name))
        tag = {"etag": metadata.etag()}
        if is_known(request.headers.get("if-none-match", ""), tag["etag"]):
            return Response(status_code=304, headers=tag)
        response = await sliced_json_response(metadata.pieces())
        response.headers.update(tag)
        return response

    @routes.get("/v1/stores/{store}/metadata/" + KEY_PATH)
    async def key_metadata(store: str, key: str, request: Request) -> Response:
        """Return the nodes that this router would ask for a key, and the others with reasons."""
        _, _, _, _, *segments = split_path(request.scope["raw_path"])
        query: bytes = request.scope["query_string"]
        return json_response(explained(store, ["keys", *segments], query, authorization_of(request.scope)))

    def explained(store: str, form: list[str], query: bytes, authorization: Authorization) -> dict[str, object]:
        route = reads.route(store)
        row, params = key_and_params(route.codec, form, query)
        if authorization.keys.prefixes is not None:
            require_key(authorization, route.codec.to_json(route.codec.encode(row)))
        longs = pop_longs(params)
        bound = reads.bound(route, params)
        shown = explain_key(router.tables, route, row, bound, load=router.clients.loads, now_ms=router.now_ms())
        return {**shown, "key": numbers_as_text(shown["key"])} if longs else shown

    return routes


def drain_route(router: Router) -> APIRouter:
    """Make the call that moves a node's tasks to others."""
    routes = APIRouter()

    @routes.post("/admin/v1/nodes/{node_id}/drain")
    async def drain(node_id: str, request: Request) -> Response:
        """Ask the cluster to move a node's tasks to others; `{"drain": false}` takes that back."""
        wanted = await read_flag(request.receive, "drain", default=True)
        note(request.scope, drain=wanted)
        return json_response(await router.drain(node_id, drain=wanted), 202)

    return routes


def _described(router: Router, reads: RouterReads, route: StoreRoute) -> dict[str, object]:
    end_version, bounds = router.tables.end_version, reads.store_bounds.of(route.name)
    return {**route.described(), "bounds": bounds, "end_offset_position": end_version or None}


class RouterApp(RouterLookups):
    """The application that serves by a router."""

    admin: Admin
    """The reports of this application, for a process that serves several."""


def create_app(
    router: Router,
    guard: ConnectionGuard | None = None,
    access: Access | None = None,
    *,
    learns_within_ms: int = 0,
) -> RouterApp:
    """Make the application that serves by `router`. `guard` watches over its connections, `access` decides about
    requests. Its start waits until the router knows enough, for `learns_within_ms` at most.
    """
    guard = guard or ConnectionGuard()
    bounds = read_store_bounds(router.settings.store_bounds)
    reads = RouterReads(router.stores, bounds, router.served, max_key_bytes=router.settings.max_key_bytes)
    exposure = None if access is None else access.exposure

    def causes() -> Mapping[str, str]:
        return {**router.causes(), **guard.causes(), **app.access.causes()}

    admin = Admin(router, bounds, reads.requests, causes, exposure)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        router.start(admin.start)
        try:
            await router.learn(learns_within_ms)
            yield
        finally:
            await watches.feeds.close()
            await router.stop()
            await close_spans(app.spans)

    http = service_app("Understudy router", lifespan)
    framework = Framework(http)
    app = RouterApp(
        framework,
        reads,
        router.forwarder,
        router.moments,
        max_in_flight=router.settings.max_in_flight,
        access=access,
        compression=router.settings.compression,
    )
    app.application_id = router.settings.application_id
    app.spans = open_spans("understudy-router", router.host)
    app.long_reads = LongReads(router.settings.max_scans_in_flight, router.settings.max_exports_in_flight)
    forwarder = ScanForwarder(router.forwarder.context, router.nodes)
    scans = RouterScans(reads, forwarder, router.moments, app.long_reads)
    framework.in_front = scans_in_front(scans)
    app.pages = DirectPages(scans, router.settings.compression)
    app.watch_streams = WatchStreams(router.settings.max_watchers)
    watches = RouterWatches(reads, app.watch_streams, scans, forwarder)
    metrics = RouterMetrics(router, app, guard, causes, admin.last_health)
    app.report = report = ProcessReport(
        status=lambda: Status(tuple(router.not_ready()), causes()),
        dead=lambda: router.dead,
        metrics=metrics.collect,
        of_application=metrics.of_application,
    )
    app.admin = admin
    exports, changes = RouterExports(scans, reads, forwarder), RouterChanges(reads, scans, forwarder)
    snapshots = RouterSnapshots(reads, forwarder, router.leases, router.moments, router.clock)
    has_explore = not router.settings.disable_explore
    for routes in (
        store_file_routes(exports, guard.files),
        read_routes(router, reads, scans),
        scan_routes(scans),
        export_routes(exports),
        changes_routes(changes),
        history_routes(RouterHistories(reads, scans, forwarder)),
        several_routes(SeveralStores(app, reads, snapshots.position)),
        snapshot_routes(snapshots),
        watch_routes(watches, PrefixWatches(watches, changes).begin),
        drain_route(router),
        probe_routes(report),
        overview_routes(admin),
        drain_routes(admin.safe_to_stop, lambda node_id, wanted: router.drain(node_id, drain=wanted)),
        page_routes(admin.overview_document, admin.history, admin.feed.respond, has_explore=has_explore),
    ):
        http.include_router(routes)
    add_document(http, "router", is_guarded=app.access.is_on, root_path=app.access.root_path)
    answer_with_problems(http)
    return app
