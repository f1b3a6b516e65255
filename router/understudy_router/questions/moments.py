"""A router's questions to its nodes about versions: snapshot leases, and the version of a moment.

A router has no table of leases, and reads no checkpoint. It remembers only which leases were used lately, to renew each
at the nodes once in a third of its time, together with the others. All nodes follow the same commit log, so the first
answer suffices for a moment. A read asks once and continues with the position: all of its partitions are of one
version.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar

from understudy_router.cluster.health import RANK
from understudy_router.cluster.tables import Tables
from understudy_shared.base.clock import Clock, wall_ms
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.cluster.node_calls import CallKind, NodeCallError, NodeCalls
from understudy_shared.cluster.view import NodeReport
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.lease.calls import (
    HOLD_PATH,
    LIST_PATH,
    MAX_LEASES_PER_CALL,
    MAX_REPLY_BYTES,
    RELEASE_PATH,
    RETRY_AFTER,
    SHOWN_PATH,
    LeasesCall,
    ReplicaVersion,
    ShownCall,
    decode_listed,
    decode_shown,
)
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.hop_fields import BadHopError, object_of
from understudy_shared.reads.tokens import BadPositionError, Position, SnapshotLease, decode_position

log = logging.getLogger(__name__)

RENEW_EVERY_S: Final = 0.5
"""Time between two calls that renew all leases used in between."""

MAX_REMEMBERED: Final = 4096
"""Limit on leases with a remembered renewal. A forgotten one is renewed once more."""

MAX_NODES_AT_ONCE: Final = 16

LIMIT_S: Final = 2.0
"""Deadline of one call to one node."""

T = TypeVar("T")


class NodeSaid(NamedTuple):
    """The reply of a node that refuses: its status and its problem."""

    status: int
    problem: Mapping[str, Any]


class Listing(NamedTuple):
    """The leases that nodes hold, by node, and the nodes that did not answer."""

    by_node: Mapping[str, list[Mapping[str, Any]]]
    unanswered: list[str]


class SnapshotLeases:
    """The calls about leases to the nodes of `tables`."""

    def __init__(self, application_id: str, tables: Tables, nodes: NodeCalls, *, clock: Clock) -> None:
        self._application_id = application_id
        self._tables = tables
        self._nodes = nodes
        self._clock = clock
        self._at_once = asyncio.Semaphore(MAX_NODES_AT_ONCE)
        self._renewed_ms: OrderedDict[str, float] = OrderedDict()
        self._used: dict[str, SnapshotLease] = {}

    async def shown(
        self, lineage: str, stores: Sequence[str], min_position: Position | None
    ) -> Sequence[ReplicaVersion]:
        """Return the newest visible version of each partition. Raises the problem of another history."""
        call = ShownCall(self._application_id, lineage, tuple(stores), min_position).encode()
        best: dict[tuple[str, int], ReplicaVersion] = {}
        problems: list[NodeSaid] = []
        for said in (await self._asked(SHOWN_PATH, call, decode_shown)).values():
            if isinstance(said, NodeSaid):
                problems.append(said)
                continue
            if not isinstance(said, NodeCallError):
                for each in said:
                    place = each.store, each.partition
                    best[place] = max(each, best.get(place, each), key=lambda shown: shown.version)
        changed = next((each for each in problems if each.status == ProblemType.LINEAGE_CHANGED.status), None)
        if changed is not None and not best:
            raise ProblemError(_passed_on(ProblemType.LINEAGE_CHANGED, changed))
        return tuple(best.values())

    async def hold(self, lease: SnapshotLease, stores: Sequence[str]) -> None:
        """Have all nodes hold a lease. Raises the problem of a node without room, and ends it at the others then."""
        call = LeasesCall(self._application_id, lease.position.lineage, (lease,), tuple(stores))
        replies = list((await self._asked(HOLD_PATH, call.encode(), object_of)).values())
        full = next((each for each in replies if isinstance(each, NodeSaid) and each.status == 429), None)
        if full is not None:
            await self.release(lease)
            raise ProblemError(_passed_on(ProblemType.OVERLOADED, full))
        if all(isinstance(each, (NodeSaid, NodeCallError)) for each in replies):
            what = f"no node holds the lease: {_why(replies[0]) if replies else 'no node is known'}"
            raise ProblemError(Problem(ProblemType.NO_ACCEPTABLE_REPLICA, what, fix="Retry after a second"))
        self._remember(lease)

    async def release(self, lease: SnapshotLease) -> None:
        """Have all nodes end a lease."""
        self._used.pop(lease.lease_id, None)
        call = LeasesCall(self._application_id, lease.position.lineage, (lease,))
        await self._asked(RELEASE_PATH, call.encode(), object_of)

    async def listed(self) -> Listing:
        """Return the leases that the nodes hold."""
        said = await self._asked(LIST_PATH, b"{}", decode_listed)
        by_node = {node_id: each for node_id, each in said.items() if isinstance(each, list)}
        return Listing(by_node, sorted(said.keys() - by_node.keys()))

    def used(self, lease: SnapshotLease) -> None:
        """Note that a lease is used: a call to the nodes renews it soon, unless one did so lately."""
        last_ms = self._renewed_ms.get(lease.lease_id)
        if last_ms is not None and self._clock.monotonic_ms() - last_ms < lease.ttl_s * 1000 / 3:
            return
        if len(self._used) < MAX_REMEMBERED:
            self._remember(lease)
            self._used[lease.lease_id] = lease

    async def run(self) -> None:
        """Renew the leases that are used, for as long as the router runs."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            try:
                await self.renew_used()
            except UnderstudyError as error:
                log.info("%s", error, extra={"action": "snapshot-leases-not-renewed"})

    async def renew_used(self) -> None:
        """Renew the leases that were used since the last call."""
        used, self._used = list(self._used.values()), {}
        for lineage in {lease.position.lineage for lease in used}:
            of_it = [lease for lease in used if lease.position.lineage == lineage]
            for start in range(0, len(of_it), MAX_LEASES_PER_CALL):
                part = tuple(of_it[start : start + MAX_LEASES_PER_CALL])
                call = LeasesCall(self._application_id, lineage, part, is_renewal=True)
                await self._asked(HOLD_PATH, call.encode(), object_of)

    def _remember(self, lease: SnapshotLease) -> None:
        self._renewed_ms[lease.lease_id] = self._clock.monotonic_ms()
        self._renewed_ms.move_to_end(lease.lease_id)
        while len(self._renewed_ms) > MAX_REMEMBERED:
            self._renewed_ms.popitem(last=False)

    async def _asked(
        self, path: str, body: bytes, decode: Callable[[bytes], T]
    ) -> dict[str, T | NodeSaid | NodeCallError]:
        """Call each live node. Return the replies, by node."""
        nodes = list(self._tables.nodes.items())

        async def ask(node: NodeReport) -> T | NodeSaid | NodeCallError:
            host = node.heartbeat.endpoint.host_info()
            async with self._at_once:
                try:
                    status, said = await self._nodes.ask(
                        CallKind.LEASE, host, path, body, max_bytes=MAX_REPLY_BYTES, limit_s=LIMIT_S
                    )
                    return decode(said) if status == 200 else NodeSaid(status, object_of(said))
                except NodeCallError as error:
                    return error
                except BadHopError as error:
                    return NodeCallError(error.what)

        replies = await asyncio.gather(*(ask(node) for _, node in nodes))
        return dict(zip((node_id for node_id, _ in nodes), replies, strict=True))


def listing_document(listing: Listing) -> dict[str, Any]:
    """Return the leases of all nodes, by their end; `unanswered` are the missing nodes."""
    by_id: dict[str, list[Mapping[str, Any]]] = {}
    for each in chain.from_iterable(listing.by_node.values()):
        by_id.setdefault(each["id"], []).append(each)
    leases = sorted(map(_merged, by_id.values()), key=lambda each: (each["expires_at"], each["id"]))
    return {"snapshots": leases, "unanswered": listing.unanswered}


def _merged(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a lease as several nodes hold it."""
    return {
        **entries[0],
        "expires_at": max(each["expires_at"] for each in entries),
        **{name: sum(each[name] for each in entries) for name in ("tasks", "extra_bytes", "disk_bytes")},
        "nodes": len(entries),
    }


def _why(said: object) -> str:
    """Return the reason why a node did not answer: its problem, or the failure of the call."""
    if isinstance(said, NodeSaid):
        return f"{said.problem.get('detail', said.status)!s:.200}"
    return said.what if isinstance(said, NodeCallError) else ""


def _passed_on(kind: ProblemType, said: NodeSaid) -> Problem:
    """Return the problem of a node as a problem of this router, to pass on to the reader."""
    fix, given = said.problem.get("fix"), said.problem.get(RETRY_AFTER)
    retry_after_s = given if type(given) is int and given > 0 else 1
    return Problem(
        kind,
        _why(said),
        fix=fix if isinstance(fix, str) else "",
        extra={RETRY_AFTER: retry_after_s} if kind is ProblemType.OVERLOADED else {},
        retry_after_s=retry_after_s,
    )


MAX_ASKED = 3
"""Number of nodes that are asked until a moment is refused."""

AVOIDED_S: Final = 10.0
"""Time for which a node that did not answer is asked after the others. Then one read at a time tries it again."""


class Moments:
    """The versions at moments, as the nodes of `tables` know them."""

    def __init__(self, tables: Tables, nodes: NodeCalls, leases: SnapshotLeases, *, deadline_ms: int) -> None:
        """Take the leases that reads renew. `deadline_ms` is the time for all nodes together that are asked."""
        self.leases = leases
        self._tables = tables
        self._nodes = nodes
        self._deadline_s = deadline_ms / 1000
        self._avoided: dict[str, float] = {}
        """Until when each node that did not answer is avoided."""

    async def resolved(self, bound: Bound) -> Bound:
        """Return the bound with the version of the moment that it names. Renew its lease.

        Raises the problem of a moment before the first retained version, and of nodes that do not answer.
        """
        self.note_use(bound)
        moment_us = bound.moment_us(wall_ms() * 1000)
        if moment_us is None:
            return bound
        try:
            async with asyncio.timeout(self._deadline_s):
                return bound.resolved_at(await self._position_at(moment_us))
        except TimeoutError:
            what = f"no node said within {self._deadline_s:g} s which version was the newest then"
            raise ProblemError(Problem(ProblemType.DEADLINE, what, "at", "Retry, or name the version")) from None

    def note_use(self, bound: Bound) -> None:
        """Renew the lease of the snapshot that a read names."""
        if bound.lease is not None:
            self.leases.used(bound.lease)

    async def _position_at(self, at_us: int) -> Position:
        until_s, nodes, said = monotonic() + self._deadline_s, self._in_order(), "no node is known"
        for left, node in zip(range(len(nodes), 0, -1), nodes, strict=True):
            node_id = node.heartbeat.node_id
            if node_id in self._avoided:
                self._avoid(node_id)  # the reads that come meanwhile do not try it, too
            try:
                # A share of the time, also for its place among the calls to that node; all that is left for the last.
                async with asyncio.timeout((until_s - monotonic()) / left if left > 1 else None):
                    status, reply = await self._nodes.position_at(node.heartbeat.endpoint.host_info(), at_us)
            except (TimeoutError, NodeCallError) as error:
                self._avoid(node_id)
                said = error.what if isinstance(error, NodeCallError) else f"{node_id} did not answer in its time"
                continue
            self._avoided.pop(node_id, None)
            if status == 200:
                try:
                    position = decode_position(str(reply.get("position")))
                except BadPositionError as error:
                    said = error.what
                    continue
                if self._is_current(position):
                    return position
                said = f"{node_id} follows another history"
                continue
            said = str(reply.get("detail", status))
            if reply.get("type") == ProblemType.VERSION_GONE.slug:
                extra = {name: value for name, value in reply.items() if name not in _MEMBERS}
                raise ProblemError(Problem(ProblemType.VERSION_GONE, said, "at", str(reply.get("fix", "")), extra))
        raise ProblemError(
            Problem(ProblemType.NO_ACCEPTABLE_REPLICA, f"no node says which version was the newest then: {said:.200}")
        )

    def _in_order(self) -> Sequence[NodeReport]:
        """Return the nodes to ask. Those that answer come first, then those that know more commits: a node that is
        further knows at least as many as the others.
        """
        now_s, health = monotonic(), self._tables.health

        def place(node: NodeReport) -> tuple[object, ...]:
            beat = node.heartbeat
            is_avoided = self._avoided.get(beat.node_id, 0.0) > now_s
            rank = RANK[health.of(beat.node_id).health]
            return is_avoided, rank, beat.is_asked_last, -(beat.applied.version or 0)

        return sorted(self._tables.nodes.values(), key=place)[:MAX_ASKED]

    def _avoid(self, node_id: str) -> None:
        # The health table stays as it is: an object store that lists slowly makes no node a bad one for lookups.
        self._avoided[node_id] = monotonic() + AVOIDED_S
        self._avoided = {each: until_s for each, until_s in self._avoided.items() if each in self._tables.nodes}

    def _is_current(self, position: Position) -> bool:
        """Whether a position is of the history in use: a node may not have noticed a new one yet."""
        assignment = self._tables.assignment
        return assignment is None or position.lineage == assignment.lineage


_MEMBERS = frozenset(("type", "title", "status", "detail", "where", "fix"))
