"""Scans and counts at a node: of the partitions that it holds, and of one partition for a router.

A version is chosen, waited for, and kept for the parts to come. A count may be estimated: from what a partition's base
counts and a sample of the changes since, without those that were moved to disk. A store whose records are not its keys
one to one has no estimate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain, islice
from time import monotonic
from typing import Final

from fastapi import APIRouter, Request, Response

from understudy_node.engine.view import StateView
from understudy_node.questions.lookup.hop import Call, decoded_hop, require_reader
from understudy_node.questions.lookup.reads import NodeReads
from understudy_node.questions.scan.part_makers import PartMaker, part_maker
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.words import StoreKind
from understudy_shared.http.edge import read_body
from understudy_shared.http.problems import ProblemError
from understudy_shared.questions.lookup.hop import MAX_HOP_BYTES
from understudy_shared.questions.scan.hop import (
    ESTIMATE_PATH,
    PATH,
    VERSION_PATH,
    ScanHop,
    VersionHop,
    decode_scan_hop,
    decode_version_hop,
    encode_estimate,
    encode_part,
    encode_version,
)
from understudy_shared.questions.scan.long_reads import Asker, LongReads
from understudy_shared.questions.scan.page import PartPage, Place, ReadPart, Room
from understudy_shared.questions.scan.requests import ScannedStore, ScanTurn
from understudy_shared.questions.scan.service import Scans
from understudy_shared.reads.bounds import BadBoundError, Bound, ReadVersion, Refusal, Selection, bound_at, version_of

PINNED_AHEAD = 16
"""Number of partitions whose version is pinned for the pages to come; others may have to be opened again."""

OPEN_WAIT_S = 2.0
"""Longest time that a page waits for an older version to be opened."""

ROUTER_WAIT_S = 0.5
"""Longest time that a router waits for a version: it asks again, and gives a node up that is silent for a second."""

LOOK_AGAIN_S = 0.02


async def first_version(
    reader: StoreReader, partitions: Sequence[int], bound: Bound, *, wait_s: float | None = None
) -> ReadVersion:
    """Return the version that a bound names, else the newest that all of these partitions show. Waits for at most
    `wait_s`, if it is given. Raises the problem of a partition that does not keep the bound.
    """
    asked = partitions if bound.read_version is None else partitions[:1]
    views = [(await reading_at(reader, partition, bound, wait_s)).view for partition in asked]
    oldest = min(views, key=lambda view: view.version)
    return version_of(oldest.version, oldest.committed_at_us)


async def reading_at(reader: StoreReader, partition: int, bound: Bound, longest_s: float | None = None) -> Reading:
    """Return the version of a partition that a bound asks for, when it is there: waits as the bound says, and for at
    most `longest_s`, if it is given. Raises its problem.
    """
    began_s = monotonic()
    while True:
        found = reader.read_from(partition, bound)
        if isinstance(found, Reading):
            return found
        refusal = found.refusal
        wait_s = OPEN_WAIT_S if refusal is Refusal.VERSION_OPENING else bound.wait_ms / 1000
        left_s = began_s + (wait_s if longest_s is None else min(wait_s, longest_s)) - monotonic()
        if refusal is None or not refusal.may_pass or left_s <= 0:
            raise ProblemError(found)
        await asyncio.sleep(min(LOOK_AGAIN_S, left_s))


def pin_ahead(reader: StoreReader, partitions: Sequence[int], version: ReadVersion) -> None:
    """Keep a version readable for the pages to come, where it is on show or pinned now."""
    for partition in partitions[:PINNED_AHEAD]:
        replica = reader.replicas.get(partition)
        view = None if replica is None else replica.view_at(version)
        if replica is not None and view is not None:
            replica.pin(view)


SAMPLED: Final = 256
"""Number of changed keys that are looked up."""


def estimate_keys(reader: StoreReader, view: TaskView) -> int:
    """Estimate the number of keys. Raises BadBoundError for a store that has no estimate."""
    if reader.store.kind is StoreKind.SESSION or reader.first_bytes(view) != b"":
        what = f"the keys of {reader.store.name} cannot be estimated: they share a table, or have several records each"
        raise BadBoundError(what, where="estimate", fix="Leave it out: the count is exact")
    return _estimate_of_sample(view.stores[reader.store.store_name])


def _estimate_of_sample(state: StateView) -> int:
    counted = state.base.count()
    changes = sum(len(tier.changes) for tier in state.tiers)
    if not changes:
        return counted
    sampled = list(dict.fromkeys(islice(chain.from_iterable(tier.changes for tier in state.tiers), SAMPLED)))
    before, now = state.base.get_many(sampled), state.get_many(sampled)
    more = sum((new is not None) - (old is not None) for old, new in zip(before, now, strict=True))
    return max(0, counted + round(more * changes / len(sampled)))


class NodeScans(Scans):
    """The scans of the replicas of this node."""

    def __init__(self, reads: NodeReads, long_reads: LongReads) -> None:
        super().__init__(reads, long_reads)
        self._reads = reads

    def store(self, name: str) -> ScannedStore:
        reader = self._reads.reader(name)
        held = sorted(reader.replicas)
        return ScannedStore(
            reader.store.name,
            reader.store.kind,
            reader.application_id,
            reader.lineage,
            reader.store.codec,
            reader.partitions,
            held,
        )

    async def resolved(self, bound: Bound) -> Bound:
        return await self._reads.resolved(bound)

    async def first_version(self, turn: ScanTurn) -> ReadVersion:
        bound = await self._reads.resolved(turn.bound)
        if bound.min_position is not None:
            await self._reads.learn(bound.min_position)
        return await first_version(self._reads.reader(turn.store.name), turn.partitions, bound)

    def part_reader(self, turn: ScanTurn, version: ReadVersion, asker: Asker) -> ReadPart:
        reader = self._reads.reader(turn.store.name)
        asked = turn.asked
        selection, longs = turn.bound.selection, asked.longs_as_text
        maker = part_maker(reader, asked.question, selection, longs_as_text=longs, prefix=turn.prefix)
        if turn.bound.lease is not None:
            self._reads.lease_used(turn.bound.lease)
        if not maker.is_sought:  # one key is read at once
            pin_ahead(reader, turn.partitions, version)

        async def read(place: Place, room: Room) -> PartPage:
            part = await self._read(maker, place, room, version, asker)
            if not part.is_end:
                pin_ahead(reader, [each for each in turn.partitions if each >= place.partition], version)
            return part

        return read

    async def estimate(self, turn: ScanTurn) -> int:
        bound = await self._reads.resolved(turn.bound)
        return await _estimate(self._reads.reader(turn.store.name), turn.partitions, bound)

    async def estimate_for_router(self, hop: VersionHop) -> int:
        """Return about how many keys these partitions have. Raises its problem."""
        with self.long_reads.begun():
            return await _estimate(require_reader(self._reads, hop), hop.wanted, hop.bound)

    async def read_for_router(self, hop: ScanHop) -> PartPage:
        """Return the part of a page that a router asks for. Raises its problem."""
        reader = require_reader(self._reads, hop)
        selection = Selection(hop.elements, include_expired=hop.question.include_expired)
        maker = part_maker(reader, hop.question, selection, longs_as_text=hop.longs_as_text)
        asked_s, place = monotonic(), Place(hop.partition, hop.after)
        room = Room(hop.rows, hop.room_bytes, asked_s + hop.budget_ms / 1000, hop.is_empty, hop.is_confined)
        reading = await _reading_of(maker, place, hop.version, ROUTER_WAIT_S)  # one that waits for it takes no place
        with self.long_reads.begun():
            part = await self._part(maker, reading, place, room, Asker(), asked_s)
        if not part.is_end:
            pin_ahead(reader, [each for each in sorted(reader.replicas) if each >= hop.partition], hop.version)
        return part

    async def version_for_router(self, hop: VersionHop) -> ReadVersion:
        """Return the version at which these partitions can be read here, and keep it. Raises its problem."""
        reader = require_reader(self._reads, hop)
        if hop.bound.min_position is not None:
            await self._reads.learn(hop.bound.min_position)
        version = await first_version(reader, hop.wanted, hop.bound, wait_s=ROUTER_WAIT_S)
        pin_ahead(reader, hop.wanted, version)
        return version

    async def _read(self, maker: PartMaker, place: Place, room: Room, version: ReadVersion, asker: Asker) -> PartPage:
        asked_s = monotonic()
        reading = await _reading_of(maker, place, version, OPEN_WAIT_S)
        return await self._part(maker, reading, place, room, asker, asked_s)

    async def _part(  # noqa: PLR0917  # what is read, where, and since when
        self, maker: PartMaker, reading: Reading, place: Place, room: Room, asker: Asker, asked_s: float
    ) -> PartPage:
        state = reading.view.stores[maker.reader.store.store_name]
        if not (maker.is_sought or state.is_prepared):
            await asyncio.to_thread(state.prepare_scan)
        # The time for opening an older version, and for sorting the keys of a base, does not count as the page's.
        room = room._replace(until_s=room.until_s + monotonic() - asked_s)
        part = await self.long_reads.in_turns(maker.part(reading, place, room, asker))
        self.long_reads.count(part)
        return part


async def _reading_of(maker: PartMaker, place: Place, version: ReadVersion, wait_s: float) -> Reading:
    reader = maker.reader
    return await reading_at(reader, place.partition, bound_at(reader.application_id, reader.lineage, version), wait_s)


async def _estimate(reader: StoreReader, partitions: Sequence[int], bound: Bound) -> int:
    """Return about how many keys these partitions have. Bases may count them by reading a file, so a thread does it."""
    readings = [await reading_at(reader, partition, bound) for partition in partitions]
    return await asyncio.to_thread(lambda: sum(estimate_keys(reader, reading.view) for reading in readings))


def scan_hops(scans: NodeScans) -> Mapping[bytes, Call]:
    """Return the calls by which routers ask for a version, for an estimate, and for a part of a page, by path."""

    async def version(body: bytes) -> bytes:
        """Return the newest version that some partitions can be read at, and keep it for a while."""
        return encode_version(await scans.version_for_router(decoded_hop(body, decode_version_hop)))

    async def estimate(body: bytes) -> bytes:
        """Return about how many keys some partitions have."""
        return encode_estimate(await scans.estimate_for_router(decoded_hop(body, decode_version_hop)))

    async def part(body: bytes) -> bytes:
        """Return the rows of one partition, at one version, after a key."""
        return encode_part(await scans.read_for_router(decoded_hop(body, decode_scan_hop)))

    return {VERSION_PATH.encode(): version, ESTIMATE_PATH.encode(): estimate, PATH.encode(): part}


def call_routes(calls: Mapping[bytes, Call]) -> APIRouter:
    """Make routes of calls, for those that are too large to be answered without ASGI, and for other methods."""
    routes = APIRouter()

    def route_of(call: Call) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            body = await read_body(request.receive, max_bytes=MAX_HOP_BYTES)
            return Response(await call(body), media_type="application/json")

        return answer

    for path, call in calls.items():
        routes.post(path.decode())(route_of(call))
    return routes
