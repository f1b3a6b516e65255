"""Snapshot leases at a router: the nodes hold them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from understudy_router.questions.lookup.service import RouterReads
from understudy_router.questions.moments import Moments, SnapshotLeases, listing_document
from understudy_router.questions.scan_forwarder import ScanForwarder
from understudy_shared.base.clock import Clock
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.lease.calls import ReplicaVersion
from understudy_shared.questions.lease.service import ChosenVersion, Snapshots, choose
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.tokens import Position, SnapshotLease


class RouterSnapshots(Snapshots):
    """The leases of the application, by asking its nodes."""

    def __init__(
        self, reads: RouterReads, forwarder: ScanForwarder, leases: SnapshotLeases, moments: Moments, clock: Clock
    ) -> None:
        super().__init__(reads)
        self._reads = reads
        self._forwarder = forwarder
        self._leases = leases
        self._moments = moments
        self._clock = clock

    def stores(self) -> Collection[str]:
        return self._reads.stores().by_name

    def wall_us(self) -> int:
        return self._clock.wall_us()

    async def position(self, store: str, bound: Bound) -> Position:
        route = self._reads.route(store)
        bound = await self._moments.resolved(bound)
        version = await self._forwarder.version(route, range(route.partitions), bound)
        of = ApplicationId(route.application_id), Lineage(route.lineage)
        return Position(*of, version.number, version.committed_at_us)

    async def newest(self, stores: Sequence[str], bound: Bound) -> ChosenVersion:
        routes = [self._reads.route(store) for store in stores]
        lineage = routes[0].lineage
        tasks = {(route.name, partition) for route in routes for partition in range(route.partitions)}

        async def look() -> Sequence[ReplicaVersion]:
            shown = await self._leases.shown(lineage, stores, bound.min_position)
            unseen = tasks - {(each.store, each.partition) for each in shown}
            if unseen:
                store, partition = min(unseen)
                what = f"no node shows partition {partition} of {store}"
                fix = "Retry after a second; GET /admin/v1/lag shows why"
                raise ProblemError(Problem(ProblemType.NO_ACCEPTABLE_REPLICA, what, where="stores", fix=fix))
            return [each for each in shown if (each.store, each.partition) in tasks]

        return await choose(ApplicationId(routes[0].application_id), Lineage(lineage), bound, look)

    async def hold(self, lease: SnapshotLease, stores: Sequence[str]) -> None:
        await self._leases.hold(lease, stores)

    async def release(self, lease: SnapshotLease) -> None:
        await self._leases.release(lease)

    async def listed(self) -> dict[str, object]:
        return listing_document(await self._leases.listed())
