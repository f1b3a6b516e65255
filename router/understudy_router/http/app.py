"""The HTTP application of a router: FastAPI for rare requests, and `RouterLookups` in front of it.

`create_app` is given a router that exists; starting and stopping it is the lifespan's business.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI

from understudy_router.admin.admin import Admin
from understudy_router.admin.routes import overview_routes
from understudy_router.http.metrics import RouterMetrics
from understudy_router.http.routes import drain_route, read_routes
from understudy_router.questions.changes import RouterChanges, RouterHistories
from understudy_router.questions.export.service import RouterExports
from understudy_router.questions.lease import RouterSnapshots
from understudy_router.questions.lookup.service import Reads, RouterLookups
from understudy_router.questions.scan.forward import ScanForwarder
from understudy_router.questions.scan.service import RouterScans
from understudy_router.questions.watch.service import RouterWatches
from understudy_router.router import Router
from understudy_shared.auth.access import Access
from understudy_shared.http.health import Status
from understudy_shared.http.openapi.document import add_document
from understudy_shared.page.draining import drain_routes
from understudy_shared.page.routes import page_routes
from understudy_shared.questions.changes.histories import history_routes
from understudy_shared.questions.changes.service import changes_routes
from understudy_shared.questions.export.service import export_routes
from understudy_shared.questions.export.store_files import store_file_routes
from understudy_shared.questions.lease.service import snapshot_routes
from understudy_shared.questions.scan.long_reads import LongReads
from understudy_shared.questions.scan.service import Seeks, scan_routes, scans_in_front
from understudy_shared.questions.several import SeveralStores, several_routes
from understudy_shared.questions.watch.prefix_watches import PrefixWatches
from understudy_shared.questions.watch.service import watch_routes
from understudy_shared.questions.watch.streams import WatchStreams
from understudy_shared.reads.bound_parsing import read_store_bounds
from understudy_shared.server.app import Framework, ProcessReport, answer_with_problems, probe_routes, service_app
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.telemetry.span_export import close_spans, open_spans


class RouterApp(RouterLookups):
    """The application that serves by a router."""

    admin: Admin
    """The reports on it, for a process that serves several."""


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
    reads = Reads(router.readiness.stores, bounds, router.served, max_key_bytes=router.settings.max_key_bytes)
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
    app.seeks = Seeks(scans)
    app.watch_streams = WatchStreams(router.settings.max_watchers)
    watches = RouterWatches(reads, app.watch_streams, scans, forwarder, router.settings.application_id)
    for routes in _reading_routes(router, reads, app, scans, forwarder, watches):
        http.include_router(routes)
    http.include_router(drain_route(router))
    metrics = RouterMetrics(router, app, guard, causes, admin.last_health)
    app.report = report = ProcessReport(
        status=lambda: Status(tuple(router.not_ready()), causes()),
        dead=lambda: router.dead,
        metrics=metrics.collect,
        of_application=metrics.of_application,
    )
    app.admin = admin
    http.include_router(probe_routes(report))
    http.include_router(overview_routes(admin))
    http.include_router(drain_routes(admin.safe_to_stop, lambda node_id, wanted: router.drain(node_id, drain=wanted)))
    has_explore = not router.settings.disable_explore
    http.include_router(
        page_routes(admin.overview_document, admin.history, admin.feed.respond, has_explore=has_explore)
    )
    add_document(http, "router", is_guarded=app.access.is_on, root_path=app.access.root_path)
    answer_with_problems(http)
    return app


def _reading_routes(  # noqa: PLR0917  # the parts of an application, in the order in which they are made
    router: Router,
    reads: Reads,
    app: RouterApp,
    scans: RouterScans,
    forwarder: ScanForwarder,
    watches: RouterWatches,
) -> Iterator[APIRouter]:
    """Yield the calls that read, besides lookups."""
    exports = RouterExports(scans, reads, forwarder)
    yield store_file_routes(exports)
    yield read_routes(router, reads, scans)
    yield scan_routes(scans)
    yield export_routes(exports)
    changes = RouterChanges(reads, scans, forwarder)
    yield changes_routes(changes)
    yield history_routes(RouterHistories(reads, forwarder))
    snapshots = RouterSnapshots(reads, forwarder, router.leases, router.moments, router.clock)
    yield several_routes(SeveralStores(app, reads, snapshots.position))
    yield snapshot_routes(snapshots)
    yield watch_routes(watches, PrefixWatches(watches, changes).begin)
