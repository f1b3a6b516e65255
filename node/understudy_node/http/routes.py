"""The FastAPI routes of a node besides lookups and probes: stores, lag, health, and its cluster's calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from understudy_node.doctor import restart_report
from understudy_node.engine.arena_base import ArenaBase
from understudy_node.engine.base import Base, innermost
from understudy_node.engine.scans import after_prefix
from understudy_node.engine.view import StateView
from understudy_node.http.page import NodeHealth
from understudy_node.node import Node
from understudy_node.questions.lookup.reads import NodeReads
from understudy_node.replica.task import TaskReplica
from understudy_node.stores.lookup import StoreReader
from understudy_shared.auth.audit import note
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.masking import masked_location
from understudy_shared.http.edge import read_flag
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.scan.service import Scans
from understudy_shared.questions.store_lists import listed_stores
from understudy_shared.server.app import json_response
from understudy_shared.spark.temporal import utc_text

if TYPE_CHECKING:
    from understudy_node.cluster.member import ClusterMember

MAX_LOOKS = 100
"""Number of records checked in each partition: the first ones may have been deleted since the snapshot."""


def some_key(reader: StoreReader) -> dict[str, object] | None:
    """Return the JSON of an existing key, out of the first partition that shows one at once; None without one."""
    for _, replica in sorted(reader.replicas.items()):
        view = replica.view
        if view is None:
            continue
        first = reader.first_bytes(view)
        stored = None if first is None else _first_key(view.stores[reader.store.store_name], first)
        if stored is not None:
            return reader.store.codec.to_json(reader.key_row(stored))
    return None


def _first_key(view: StateView, first: bytes) -> bytes | None:
    """Find a key among records of the base and the newest changes, without sorting. Keys begin with `first`."""
    changed = chain.from_iterable(islice(tier.changes, MAX_LOOKS) for tier in view.tiers)
    keys = (key for key in chain(_some_keys(view.base, first), changed) if key.startswith(first))
    return next((key for key in keys if view.get(key) is not None), None)


def _some_keys(base: Base, first: bytes) -> Iterator[bytes]:
    arena = innermost(base)
    if isinstance(arena, ArenaBase):
        return arena.some_keys(MAX_LOOKS)
    return (key for key, _ in islice(base.scan(first, after_prefix(first)) if first else base.scan(), MAX_LOOKS))


def lag_report(node: Node, store: str | None) -> dict[str, object]:
    """Return `GET /admin/v1/lag`: the query, the end, and per store its partitions with role, state and `LagInfo`."""
    generation = node.generation
    readers = generation.readers.values() if generation else ()
    end = node.end
    return {
        "generated_at": utc_text(SystemClock().wall_us()),
        "view_of": {"host": node.host.host, "port": node.host.port},
        "application_id": node.settings.application,
        "checkpoint": generation.description.url if generation else masked_location(node.settings.checkpoint),
        "lineage": node.lineage,
        "end_offset_position": end.version,
        "end_confirmed": end.confirmed_ms is not None,
        "query": node.query_status(),
        "hints": hints(node),
        "restoring_layout": None if node.pending is None else node.pending.layout.partitions,
        "stores": [_store(reader) for reader in readers if store in (None, reader.store.name)],
        "events": [event.as_dict() for event in node.events],
    }


def hints(node: Node) -> list[str]:
    generation = node.generation
    if generation is None:
        return []
    description = generation.description
    found = []
    if generation.layout.provider == "hdfs":
        found.append("the HDFS-backed provider must be loaded whole: RocksDB opens in milliseconds")
    if description.format_version == 1:
        found.append(
            "checkpoint format v1 cannot rule out a zombie's overwrite: set checkpointFormatVersion to 2 (RocksDB)"
        )
    if description.changelogs is False:
        found.append("without changelog checkpointing every version is a whole snapshot: enable it")
    return found


def _store(reader: StoreReader) -> dict[str, object]:
    partitions = [_partition(replica) for _, replica in sorted(reader.replicas.items())]
    return {"store": reader.store.name, "operator_id": reader.store.operator_id, "partitions": partitions}


def _partition(replica: TaskReplica) -> dict[str, object]:
    view = replica.view
    lag = None if view is None else replica.progress.lag_of(view)
    return {
        "partition": replica.task.partition,
        "role": replica.role,
        "state": replica.state,
        "current_offset_position": None if lag is None else lag.current_offset_position,
        "end_offset_position": None if lag is None else lag.end_offset_position,
        "offset_lag": None if lag is None else lag.offset_lag,
        "time_lag_ms": None if lag is None else lag.time_lag_ms,
        "committed_at": None if view is None else utc_text(view.committed_at_us),
        "keys": None if view is None else sum(store.base.count() for store in view.stores.values()),
        "overlay_bytes": replica.overlay_bytes,
        "marks": [] if view is None else sorted(view.marks),
        "error": None if replica.error is None else str(replica.error),
    }


def read_routes(node: Node, reads: NodeReads, scans: Scans) -> APIRouter:
    """Make `/v1/stores` and one store's schema."""
    router = APIRouter()

    @router.get("/v1/stores")
    async def stores(request: Request) -> Response:
        """List every served store that the caller sees, with its schema, and the parts of the checkpoint that are not
        served.
        """
        generation = reads.generation()
        described = [_described(reader, reads, node) for reader in generation.readers.values()]
        return await listed_stores(request, scans, described, generation.not_served())

    @router.get("/v1/stores/{store}")
    async def store_schema(store: str) -> Response:
        reader = reads.reader(store)
        return json_response({**_described(reader, reads, node), "schemas": reader.store.schemas})

    return router


def internal_routes(reads: NodeReads) -> APIRouter:
    """Make `/internal/v1/position` for routers, and `/internal/v1/stores/{store}/key` for the welcome of `understudy
    serve`.
    """
    router = APIRouter()

    @router.get("/internal/v1/position")
    async def position(at_us: int) -> Response:
        return json_response({"position": (await reads.position_at(at_us)).encode()})

    @router.get("/internal/v1/stores/{store}/key")
    async def existing_key(store: str) -> Response:
        """Return some key that is in the store now, by column name; null when none of the first looks finds one."""
        return json_response({"key": await asyncio.to_thread(some_key, reads.reader(store))})

    return router


def admin_routes(node: Node, reads: NodeReads, health: NodeHealth) -> APIRouter:
    """Make `/admin/v1/lag`, `/admin/v1/health` and `/admin/v1/checkpoint`."""
    router = APIRouter()
    one_at_a_time = asyncio.Lock()

    @router.get("/admin/v1/lag")
    async def lag(store: str | None = None) -> Response:
        return json_response(lag_report(node, None if store is None else reads.reader(store).store.name))

    @router.get("/admin/v1/health")
    async def whether_well() -> Response:
        """Report what is wrong here and what to do. The worst indicator is the state of the whole."""
        return json_response(health.document())

    @router.get("/admin/v1/checkpoint")
    async def checkpoint() -> Response:
        """Report whether the query could restart from the files of its checkpoint; ask for each store's files now."""
        if one_at_a_time.locked():
            raise ProblemError(
                Problem(ProblemType.OVERLOADED, "the checkpoint is being examined", fix="Ask again later")
            )
        async with one_at_a_time:
            return json_response(await asyncio.to_thread(lambda: restart_report(node.files, node.describe())))

    return router


def _described(reader: StoreReader, reads: NodeReads, node: Node) -> dict[str, object]:
    return {
        **reader.store.described(),
        "bounds": reads.store_bounds.of(reader.store.name),
        "partitions": reader.partitions,
        "end_offset_position": node.end.version,
        "lineage": reader.lineage,
        "application_id": reader.application_id,
    }


def cluster_routes(member: ClusterMember) -> APIRouter:
    """Create the routes `/internal/v1/{lags,catalogue,assignment}` and `POST /admin/v1/drain`."""
    router = APIRouter()

    @router.get("/internal/v1/lags")
    async def lags() -> Response:
        """Return the heartbeat that this node would send now; routers ask for it while Redis is away."""
        return _json(member.heartbeat().encode())

    @router.get("/internal/v1/catalogue")
    async def catalogue() -> Response:
        found = member.catalogue()
        if found is None:
            raise _not_yet("no batch has been committed yet")
        return _json(found[1].encode(), etag=f'"{found[0]}"')

    @router.get("/internal/v1/assignment")
    async def assignment() -> Response:
        if member.assignment is None:
            raise _not_yet("no assignment is known yet")
        return _json(await asyncio.to_thread(member.assignment.encode))  # it may have four megabytes

    @router.post("/admin/v1/drain")
    async def drain(request: Request) -> Response:
        """Ask the cluster to move this node's tasks to others; `{"drain": false}` cancels that."""
        wanted = await read_flag(request.receive, "drain", default=True)
        note(request.scope, drain=wanted)
        member.drain(wanted)
        return json_response({"node_id": member.node_id, "draining": member.draining}, 202)

    return router


def _json(document: bytes, **headers: str) -> Response:
    return Response(document, media_type="application/json", headers=headers)


def _not_yet(what: str) -> ProblemError:
    return ProblemError(Problem(ProblemType.NOT_INITIALISED, what, fix="Retry when /readyz says so"))
