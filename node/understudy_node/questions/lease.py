"""Snapshot leases at a node: of the tasks that it holds, for its own readers and for routers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from fastapi import APIRouter, Request, Response

from understudy_node.node import Node
from understudy_node.questions.lookup.hop import read_hop
from understudy_node.questions.lookup.reads import NodeReads
from understudy_node.questions.scan.service import first_version
from understudy_node.replica.pinned_versions import HeldLease, Pinned, leased_version
from understudy_node.replica.read_views import Reading
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.words import ApplicationId, StoreName
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, refused
from understudy_shared.questions.lease.calls import (
    HOLD_PATH,
    LIST_PATH,
    RELEASE_PATH,
    SHOWN_PATH,
    LeasesCall,
    ReplicaVersion,
    ShownCall,
    decode_leases_call,
    decode_shown_call,
    encode_shown,
)
from understudy_shared.questions.lease.service import ChosenVersion, Snapshots, choose
from understudy_shared.reads.bounds import NO_BOUND, Bound, Refusal
from understudy_shared.reads.tokens import Position, SnapshotLease
from understudy_shared.server.app import json_response
from understudy_shared.spark.temporal import utc_text


class NodeSnapshots(Snapshots):
    """The leases of the replicas of this node."""

    def __init__(self, node: Node, reads: NodeReads) -> None:
        super().__init__(reads)
        self._node = node
        self._reads = reads

    def stores(self) -> Collection[str]:
        return self._reads.generation().readers

    def wall_us(self) -> int:
        return self._node.wall_us()

    async def position(self, store: str, bound: Bound) -> Position:
        reader, bound = self._reads.reader(store), await self._reads.resolved(bound)
        if bound.min_position is not None:
            await self._reads.learn(bound.min_position)
        version = await first_version(reader, sorted(reader.replicas), bound)
        return Position(reader.application_id, reader.lineage, version.number, version.committed_at_us)

    async def newest(self, stores: Sequence[str], bound: Bound) -> ChosenVersion:
        async def look() -> Sequence[ReplicaVersion]:
            _require_all_shown([self._reads.reader(store) for store in stores])
            return await self.shown(stores, bound.min_position)

        lineage = self._reads.generation().lineage
        return await choose(ApplicationId(self._reads.application_id), lineage, bound, look)

    async def shown(self, stores: Sequence[str], min_position: Position | None) -> Sequence[ReplicaVersion]:
        """Return the versions that replicas of some stores show. Raises the problem of another history's position."""
        if min_position is not None:
            await self._reads.learn(min_position)
        return [each for store in stores for each in _shown(self._reads.reader(store), min_position)]

    async def hold(self, lease: SnapshotLease, stores: Sequence[str]) -> None:
        self._node.leases.grant(lease, now_ms=self._node.now_ms())
        self._pin(lease, stores)

    async def release(self, lease: SnapshotLease) -> None:
        self._node.leases.release(lease.lease_id)

    async def listed(self) -> dict[str, object]:
        return {"snapshots": list(self._entries()), "unanswered": []}

    async def held_for_router(self, call: LeasesCall) -> None:
        """Hold what a router asks for. Raises its problem."""
        self._require_own(call.application, call.lineage)
        for lease in call.leases:
            if call.is_renewal:
                self.used(lease)
            else:
                await self.hold(lease, call.stores)

    async def shown_for_router(self, call: ShownCall) -> Sequence[ReplicaVersion]:
        """Return what a router asks for. Raises its problem."""
        self._require_own(call.application, call.lineage)
        readers = self._reads.generation().readers
        known = [store for store in call.stores if StoreName(store) in readers]
        return await self.shown(known, call.min_position)

    async def released_for_router(self, call: LeasesCall) -> None:
        """End the leases that a router names. Raises its problem."""
        self._require_own(call.application, call.lineage)
        for lease in call.leases:
            await self.release(lease)

    def used(self, lease: SnapshotLease) -> None:
        """Renew a lease that is used. One that this node had forgotten comes back, where there is room."""
        node, at = self._node, lease.position
        if (at.application_id, at.lineage) != (self._reads.application_id, node.lineage):
            return  # The read itself is refused.
        if node.leases.renew(lease, now_ms=node.now_ms()):
            self._pin(lease, ())

    def _pin(self, lease: SnapshotLease, stores: Sequence[str]) -> None:
        """Pin the leased version where it is shown; open it for the tasks of these stores that show a newer one."""
        wanted, generation = leased_version(lease), self._reads.generation()
        asked = [generation.readers[StoreName(store)] for store in stores if StoreName(store) in generation.readers]
        opened = {id(replica) for reader in asked for replica in reader.replicas.values()}
        for replica in generation.replicas:
            shown, view = replica.view, replica.view_at(wanted)
            if view is not None:
                replica.pin(view)
            elif shown is not None and shown.version > wanted.number and id(replica) in opened:
                replica.open_past(wanted)

    def _require_own(self, application: str, lineage: str) -> None:
        """Raise the problem of a call for another application or lineage."""
        if application != self._reads.application_id:
            what = f"this node serves {self._reads.application_id}, not {application}"
            raise ProblemError(Problem(ProblemType.NOT_OWNER, what, fix="Ask a node of that application"))
        if lineage != self._reads.generation().lineage:
            raise ProblemError(refused(Refusal.LINEAGE_CHANGED, candidates=[]))

    def _entries(self) -> Iterator[dict[str, object]]:
        node = self._node
        now_ms, now_us, pinned = node.now_ms(), node.wall_us(), node.pinned.by_version()
        for held in sorted(node.leases.held(now_ms), key=lambda each: each.until_ms):
            yield _entry(held, pinned.get(held.version, Pinned()), now_ms, now_us)


def _entry(held: HeldLease, pinned: Pinned, now_ms: float, now_us: int) -> dict[str, object]:
    at = held.lease.position
    return {
        "id": held.lease.lease_id,
        "version": at.version,
        "committed_at": utc_text(at.committed_at_us),
        "lineage": at.lineage,
        "ttl_s": held.lease.ttl_s,
        "expires_at": utc_text(now_us + max(0, round((held.until_ms - now_ms) * 1000))),
        "tasks": pinned.views,
        "extra_bytes": pinned.extra_bytes,
        "disk_bytes": pinned.disk_bytes,
    }


def _shown(reader: StoreReader, min_position: Position | None) -> Iterator[ReplicaVersion]:
    """Yield the versions of the replicas of a store. Raises the problem of a position of another history."""
    bound = NO_BOUND if min_position is None else Bound(min_position=min_position)
    for partition, replica in sorted(reader.replicas.items()):
        view = replica.view
        if view is None:
            continue
        read = reader.read_from(partition, bound)
        if isinstance(read, Problem) and read.refusal is Refusal.LINEAGE_CHANGED:
            raise ProblemError(read)
        if isinstance(read, Reading):
            view = read.view
        replica.pin(view)  # It may be the version that is chosen in a moment.
        yield ReplicaVersion(reader.store.name, partition, view.version, view.committed_at_us)


def _require_all_shown(readers: Sequence[StoreReader]) -> None:
    """Raise the problem of a partition that shows nothing yet, and of a node without any."""
    for reader in readers:
        for partition in reader.replicas:
            read = reader.read_from(partition, NO_BOUND)
            if isinstance(read, Problem):
                raise ProblemError(read)
    if not any(reader.replicas for reader in readers):
        raise ProblemError(Problem(ProblemType.NOT_OWNER, "this node holds none of these stores", fix="Ask a router"))


def snapshot_call_routes(snapshots: NodeSnapshots) -> APIRouter:
    """Make the calls by which routers grant, renew, end and list leases."""
    routes = APIRouter()

    @routes.post(SHOWN_PATH)
    async def shown(request: Request) -> Response:
        """Return the versions that the replicas of some stores show, and keep them for a moment."""
        call = await read_hop(request, decode_shown_call)
        return Response(encode_shown(await snapshots.shown_for_router(call)), media_type="application/json")

    @routes.post(HOLD_PATH)
    async def hold(request: Request) -> Response:
        """Hold leases, or renew those that are used."""
        call = await read_hop(request, decode_leases_call)
        await snapshots.held_for_router(call)
        return json_response({})

    @routes.post(RELEASE_PATH)
    async def release(request: Request) -> Response:
        """End leases before their time."""
        call = await read_hop(request, decode_leases_call)
        await snapshots.released_for_router(call)
        return json_response({})

    @routes.post(LIST_PATH)
    async def listed() -> Response:
        """Return the leases that this node holds."""
        return json_response(await snapshots.listed())

    return routes
