"""The HTTP application of a node: lookups first, then hops, and FastAPI last for rare requests.

`create_app` gets a node that is not started; the lifespan starts and stops it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI

from understudy_node.http.metrics import NodeMetrics
from understudy_node.http.page import NodeHealth, NodePage
from understudy_node.http.routes import (
    admin_routes,
    cluster_routes,
    internal_routes,
    read_routes,
)
from understudy_node.node import Node
from understudy_node.questions.changes import NodeChanges, NodeHistories, changes_hop_routes, history_hop_routes
from understudy_node.questions.export.bulk.process import BulkProcess
from understudy_node.questions.export.service import NodeExports, export_hop_routes
from understudy_node.questions.lease import NodeSnapshots, snapshot_call_routes
from understudy_node.questions.lookup.hop import Hops
from understudy_node.questions.lookup.reads import NodeReads
from understudy_node.questions.lookup.service import NodeLookups, Visibility
from understudy_node.questions.scan.service import NodeScans, call_routes, scan_hops
from understudy_node.questions.watch.hub import WatchHub
from understudy_node.questions.watch.service import NodeWatches, NodeWatchStreams, watch_hop_routes
from understudy_shared.auth.access import Access
from understudy_shared.http.health import Status
from understudy_shared.http.openapi.document import add_document
from understudy_shared.questions.changes.histories import history_routes
from understudy_shared.questions.changes.service import changes_routes
from understudy_shared.questions.export.service import export_routes
from understudy_shared.questions.export.store_files import store_file_routes
from understudy_shared.questions.front import LookupsFirst
from understudy_shared.questions.lease.service import snapshot_routes
from understudy_shared.questions.scan.long_reads import LongReads
from understudy_shared.questions.scan.service import DirectPages, scan_routes, scans_in_front
from understudy_shared.questions.several import SeveralStores, several_routes
from understudy_shared.questions.watch.prefix_watches import PrefixWatches
from understudy_shared.questions.watch.service import watch_routes
from understudy_shared.reads.bound_parsing import read_store_bounds
from understudy_shared.server.app import Framework, ProcessReport, answer_with_problems, probe_routes, service_app
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.telemetry.span_export import close_spans, open_spans

if TYPE_CHECKING:  # a node without a cluster does without these modules
    from understudy_node.cluster.member import ClusterMember


def create_app(
    node: Node,
    member: ClusterMember | None = None,
    *,
    guard: ConnectionGuard | None = None,
    access: Access | None = None,
) -> NodeLookups:
    """Make the application that serves `node`, and its `member` of a cluster; None: it serves alone.

    `guard` watches over its connections, `access` decides who may ask what.
    """
    guard = guard or ConnectionGuard()
    reads = NodeReads(node, read_store_bounds(node.settings.store_bounds))
    if member is not None:
        node.node_id = member.node_id

    def order() -> tuple[int, int]:
        assignment = None if member is None else member.assignment
        return (0, 0) if assignment is None else assignment.order

    def published() -> None:
        if app.visibility is not None:
            app.visibility.changed()
        hub.changed()
        if member is not None:
            member.changed()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        app.visibility = Visibility()
        node.on_published = published
        node.past.on_opened = app.visibility.changed
        node.start()
        page.start()
        if member is not None:
            member.start()
        try:
            yield
        finally:
            if member is not None:
                await member.stop()
            await page.stop()
            await hub.stop()
            await bulk.close()
            await asyncio.to_thread(node.stop)
            await close_spans(app.spans)

    bulk = BulkProcess(lambda: node.generation)
    hub = WatchHub(lambda: node.generation)
    http = service_app("Understudy node", lifespan)
    framework, limit = Framework(http), node.settings.max_in_flight
    hops = Hops(framework, reads, order=None if member is None else order, max_in_flight=limit)
    app = NodeLookups(hops, reads, max_in_flight=limit, access=access, compression=node.settings.compression)
    app.long_reads = LongReads(node.settings.max_scans_in_flight, node.settings.max_exports_in_flight)
    app.watch_streams = streams = NodeWatchStreams(node.settings.max_watchers, hub)
    app.spans = hops.spans = open_spans("understudy-node", node.host)
    app.report = report = _report(node, member, app, guard)
    scans = NodeScans(reads, app.long_reads)
    framework.in_front, hops.calls = scans_in_front(scans), scan_hops(scans)
    exports, watches = NodeExports(scans, reads, bulk), NodeWatches(reads, streams, hub, scans)
    page = NodePage(node, health := NodeHealth(node, report.status), reads)
    app.when_ending.append(page.end)
    for router in (
        call_routes(hops.calls),
        store_file_routes(exports, guard.files),
        *_reading_routes(node, reads, app, scans, exports, watches),
        *(() if member is None else (cluster_routes(member),)),
        admin_routes(node, reads, health),
        probe_routes(report),
        *page.routes(),
    ):
        http.include_router(router)
    add_document(
        http, "serve" if member is None else "node", is_guarded=app.access.is_on, root_path=app.access.root_path
    )
    answer_with_problems(http)
    return app


def _reading_routes(  # noqa: PLR0917  # the parts of an application, in the order of their creation
    node: Node, reads: NodeReads, app: NodeLookups, scans: NodeScans, exports: NodeExports, watches: NodeWatches
) -> Iterator[APIRouter]:
    """Yield the calls that read, besides lookups and hops."""
    yield read_routes(node, reads, scans)
    yield internal_routes(reads)
    yield scan_routes(scans)
    app.pages = DirectPages(scans, node.settings.compression)
    yield export_routes(exports)
    yield export_hop_routes(exports)
    changes = NodeChanges(reads, scans)
    yield changes_routes(changes)
    yield changes_hop_routes(changes)
    histories = NodeHistories(reads, scans)
    yield history_routes(histories)
    yield history_hop_routes(histories)
    yield watch_routes(watches, PrefixWatches(watches, changes).begin)
    yield watch_hop_routes(watches)
    snapshots = NodeSnapshots(node, reads)
    yield several_routes(SeveralStores(app, reads, snapshots.position))
    reads.lease_used = snapshots.used
    yield snapshot_routes(snapshots)
    yield snapshot_call_routes(snapshots)


def _report(node: Node, member: ClusterMember | None, lookups: LookupsFirst, guard: ConnectionGuard) -> ProcessReport:

    def causes() -> Mapping[str, str]:
        cluster = {} if member is None else member.causes()
        return {**node.causes(), **cluster, **guard.causes(), **lookups.access.causes()}

    def status() -> Status:
        reasons = node.not_ready() + ([] if member is None else member.not_ready())
        return Status(tuple(reasons), causes())

    metrics = NodeMetrics(node, lookups, guard, causes, member)
    return ProcessReport(
        status=status,
        dead=lambda: node.dead or (None if member is None else member.dead),
        metrics=metrics.collect,
        of_application=metrics.of_application,
    )
