"""Snapshot leases at a router: of the tasks of all nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from understudy_router.admin.held_snapshots import listing_document
from understudy_router.cluster.moments import Moments
from understudy_router.cluster.snapshot_leases import SnapshotLeases
from understudy_router.forwarding.scanning import ScanForwarder
from understudy_router.http.reads import Reads
from understudy_router.router import Router
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.lease_calls import HeldFor, ShownReply
from understudy_shared.reads.position import Position
from understudy_shared.reads.snapshot_lease import SnapshotLease
from understudy_shared.server.snapshots import Chosen, Snapshots, choose


class RouterSnapshots(Snapshots):
    """The leases of the application, by asking its nodes."""

    def __init__(self, router: Router, reads: Reads, forwarder: ScanForwarder) -> None:
        super().__init__(reads)
        self._router = router
        self._reads = reads
        self._forwarder = forwarder
        self._leases: SnapshotLeases = router.leases
        self._moments: Moments = router.moments

    def stores(self) -> Collection[str]:
        return self._router.stores().by_name

    def wall_us(self) -> int:
        return self._router.clock.wall_us()

    async def position(self, store: str, bound: Bound) -> Position:
        route = self._reads.route(store)
        bound = await self._moments.resolved(bound)
        version = await self._forwarder.version(route, range(route.partitions), bound)
        of = ApplicationId(route.application_id), Lineage(route.lineage)
        return Position(*of, version.number, version.committed_at_us)

    async def newest(self, stores: Sequence[str], bound: Bound) -> Chosen:
        routes = [self._reads.route(store) for store in stores]
        lineage = routes[0].lineage
        tasks = {(route.name, partition) for route in routes for partition in range(route.partitions)}

        async def look() -> ShownReply:
            said = await self._leases.shown(lineage, stores, bound.min_position)
            unseen = tasks - {(each.store, each.partition) for each in said.shown}
            if unseen:
                store, partition = min(unseen)
                what = f"no node shows partition {partition} of {store}"
                fix = "Retry after a second; GET /admin/v1/lag shows why"
                raise ProblemError(Problem(ProblemType.NO_ACCEPTABLE_REPLICA, what, where="stores", fix=fix))
            return said._replace(shown=tuple(each for each in said.shown if (each.store, each.partition) in tasks))

        return await choose(ApplicationId(routes[0].application_id), Lineage(lineage), bound, look)

    async def hold(self, held: HeldFor) -> int | None:
        return await self._leases.hold(held)

    async def release(self, lease: SnapshotLease) -> None:
        await self._leases.release(lease)

    async def listed(self) -> dict[str, object]:
        return listing_document(await self._leases.listed())
