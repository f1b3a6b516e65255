"""Snapshot leases, the same at nodes and routers: parsed, granted, counted, answered, ended."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Final, NamedTuple

import orjson
from fastapi import APIRouter, Request, Response

from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.permissions import granted_in
from understudy_shared.auth.principals import Action, Principal
from understudy_shared.base.texts import clipped
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.edge import read_body
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, refused
from understudy_shared.http.target import split_path
from understudy_shared.questions.lease.calls import ReplicaVersion
from understudy_shared.questions.service_reads import ServiceReads, counted
from understudy_shared.reads.bound_parsing import VERSION_PARAMETERS
from understudy_shared.reads.bounds import WAIT_WITH_POSITION_MS, Bound, Refusal
from understudy_shared.reads.tokens import DEFAULT_TTL_S, MAX_TTL_S, Position, SnapshotLease, decode_snapshot, new_lease
from understudy_shared.server.app import json_response
from understudy_shared.spark.temporal import utc_text

MAX_LEASED_STORES: Final = 64
"""Limit on the stores that a request names."""

_OF_THE_BOUND: Final = ("min_position", "wait_ms", *VERSION_PARAMETERS)
_MEMBERS: Final = frozenset(("stores", "ttl_s", *_OF_THE_BOUND))
_FORM: Final = 'Send for example {"ttl_s": 60}, or {"version": 12, "stores": ["a"]}'


class SnapshotRequest(NamedTuple):
    """A request. `stores` is None if it names no store. `params` name a version, or a minimum to wait for."""

    stores: tuple[str, ...] | None
    ttl_s: int
    params: Mapping[str, object]


def parse_snapshot_request(body: bytes) -> SnapshotRequest:
    """Parse a request; an empty body asks for the newest version. Raises a bad-request problem."""
    try:
        given = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as error:
        raise _bad(f"the body is not JSON: {error}", "body") from None
    if not isinstance(given, dict):
        raise _bad("the body is not a JSON object", "body")
    members = {name: value for name, value in given.items() if value is not None}
    unknown = sorted(given.keys() - _MEMBERS)
    if unknown:
        raise _bad(f"the member {clipped(unknown[0])} is unknown", "body", f"Known are: {', '.join(sorted(_MEMBERS))}")
    params = {name: members[name] for name in _OF_THE_BOUND if name in members}
    params.setdefault("wait_ms", WAIT_WITH_POSITION_MS)
    return SnapshotRequest(_stores(members), _ttl_s(members), params)


def _stores(members: Mapping[str, Any]) -> tuple[str, ...] | None:
    stores = members.get("stores")
    if stores is None:
        return None
    is_list = isinstance(stores, list) and 0 < len(stores) <= MAX_LEASED_STORES
    if is_list and all(isinstance(each, str) for each in stores):
        return tuple(dict.fromkeys(stores))
    what = f"stores is {clipped(stores)}, not a list of 1 to {MAX_LEASED_STORES} names"
    raise _bad(what, "stores", "Leave it out for all stores")


def _ttl_s(members: Mapping[str, Any]) -> int:
    ttl_s = members.get("ttl_s", DEFAULT_TTL_S)
    if isinstance(ttl_s, float) and ttl_s.is_integer():  # some JSON writers write every number as 5.0
        ttl_s = int(ttl_s)
    if type(ttl_s) is int and 1 <= ttl_s <= MAX_TTL_S:
        return ttl_s
    what = f"ttl_s={clipped(ttl_s)} is not a whole number of seconds from 1 to {MAX_TTL_S}"
    raise _bad(what, "ttl_s", "Each use of the snapshot renews it, so a short time will do")


def _bad(what: str, where: str, fix: str = _FORM) -> ProblemError:
    return ProblemError(Problem(ProblemType.BAD_REQUEST, what, where=where, fix=fix))


MAX_GRANTING: Final = 8
"""Number of leases that are granted concurrently, and as many of those that may wait long for a version."""

MAX_WAITING: Final = 128
"""Limit on the requests of each kind that are being granted or wait for their turn."""

GRANT_S: Final = 40.0
"""Time limit of one request: a little more than the longest wait for a version."""

LOOK_AGAIN_S: Final = 0.02
"""Time between two polls of the versions that tasks serve: all nodes serve a commit within moments."""

MAX_BODY_BYTES: Final = 64 * 1024


class ChosenVersion(NamedTuple):
    """The version of a lease. `newest` is the newest version that any task serves; if `position` is older, `behind` is
    the task that lags most.
    """

    position: Position
    newest: int
    behind: ReplicaVersion | None = None


class Snapshots(ABC):
    """Answers to requests for leases."""

    def __init__(self, service: ServiceReads) -> None:
        self._service = service
        self._waiting = Counter[bool]()
        self._granting = {waits_long: asyncio.Semaphore(MAX_GRANTING) for waits_long in (False, True)}
        """The turns, of two kinds: a request that waits long for its version delays only requests of its kind."""

    @abstractmethod
    def stores(self) -> Collection[str]:
        """Return the names of all stores. Raises the problem of a service that knows no store yet."""

    @abstractmethod
    async def position(self, store: str, bound: Bound) -> Position:
        """Return the position of the version that a bound names; else of the newest version that all partitions of the
        store can read. Raises a problem if a partition cannot be read.
        """

    @abstractmethod
    async def newest(self, stores: Sequence[str], bound: Bound) -> ChosenVersion:
        """Return the newest version that all tasks of some stores serve, after a wait for tasks that lag. Raises a
        problem if a task cannot be read, or lags behind the bound.
        """

    @abstractmethod
    async def hold(self, lease: SnapshotLease, stores: Sequence[str]) -> None:
        """Hold a lease for reads of these stores. Raises a problem if there is no room for it."""

    @abstractmethod
    async def release(self, lease: SnapshotLease) -> None:
        """End a lease."""

    @abstractmethod
    async def listed(self) -> dict[str, object]:
        """Return the document of the leases that are held."""

    @abstractmethod
    def wall_us(self) -> int:
        """Return the wall time."""

    async def grant(self, body: bytes, principal: Principal) -> dict[str, object]:
        """Grant a lease. Raises a problem if the request does not parse, is not allowed, or finds no room."""
        with counted(self._service.requests, "snapshot"):
            return await self._granted_in_time(body, principal)

    async def _granted_in_time(self, body: bytes, principal: Principal) -> dict[str, object]:
        asked = parse_snapshot_request(body)
        stores = _allowed(asked.stores, self.stores(), principal)
        bound, *_ = [self._service.bound_of(store, asked.params) for store in stores]
        waits_long = bound.wait_ms > WAIT_WITH_POSITION_MS
        if self._waiting[waits_long] >= MAX_WAITING:
            what = f"{self._waiting[waits_long]} snapshot leases are being granted"
            raise ProblemError(Problem(ProblemType.OVERLOADED, what, fix="Retry after a second"))
        self._waiting[waits_long] += 1
        try:
            async with asyncio.timeout(GRANT_S), self._granting[waits_long]:
                return await self._granted(stores, bound, asked.ttl_s)
        except TimeoutError:
            what = f"no version was found within {GRANT_S:g} s"
            raise ProblemError(Problem(ProblemType.DEADLINE, what, fix="Retry after a second")) from None
        finally:
            self._waiting[waits_long] -= 1

    async def end(self, token: str, principal: Principal) -> None:
        """End a lease; a plain position ends nothing. Raises a problem for a bad token or a missing right."""
        with counted(self._service.requests, "snapshot-release"):
            _, lease = decode_snapshot(token)
            _allowed(None, self.stores(), principal)
            if lease is not None:
                await self.release(lease)

    async def _granted(self, stores: Sequence[str], bound: Bound, ttl_s: int) -> dict[str, object]:
        if bound.read_version is None and bound.at_us is None:
            chosen = await self.newest(stores, bound)
        else:
            position = await self.position(stores[0], bound)
            chosen = ChosenVersion(position, position.version)
        lease = new_lease(chosen.position, ttl_s)
        await self.hold(lease, stores)
        return self._answer(lease, chosen, stores)

    def _answer(self, lease: SnapshotLease, chosen: ChosenVersion, stores: Sequence[str]) -> dict[str, object]:
        at, behind = lease.position, chosen.behind
        held_back_by = None if behind is None else {name: getattr(behind, name) for name in ReplicaVersion._fields[:3]}
        return {
            "snapshot": lease.encode(),
            "version": at.version,
            "committed_at": utc_text(at.committed_at_us),
            "position": at.encode(),
            "lineage": at.lineage,
            "stores": list(stores),
            "ttl_s": lease.ttl_s,
            "expires_at": utc_text(self.wall_us() + lease.ttl_s * 1_000_000),
            "newest_version": chosen.newest,
            "held_back_by": held_back_by,
        }


def _allowed(asked: Sequence[str] | None, every: Collection[str], principal: Principal) -> list[str]:
    """Return the stores of a lease: the requested ones, else all that the principal may scan. Raises a problem if a
    requested store does not exist, or the principal may not scan it.
    """
    if asked is None:
        if not every:
            raise ProblemError(Problem(ProblemType.NOT_INITIALISED, "no store is served", fix="Retry after a second"))
        found = [store for store in sorted(every) if principal.keys_of(store, Action.SCAN) is not None]
        if found:
            return found
        what = "this call needs the action scan on a store, which your credential does not have"
        fix = "Use a key whose role has it; the operator gives roles to keys in the file of credentials"
        raise ProblemError(Problem(ProblemType.FORBIDDEN, what, "header Authorization", fix))
    for store in asked:
        granted = granted_in(principal, store, Action.SCAN)
        if isinstance(granted, Problem):
            raise ProblemError(granted)
    return list(asked)


async def choose(
    application_id: ApplicationId,
    lineage: Lineage,
    bound: Bound,
    look: Callable[[], Awaitable[Sequence[ReplicaVersion]]],
) -> ChosenVersion:
    """Poll `look`, and return the newest version that all tasks serve. Wait for tasks that lag, until all serve the
    newest version of the first poll, or at least the bound's position if that is newer, but no longer than the bound
    allows. Raises a problem if a task is still behind the bound's position.
    """
    least, until_s = bound.min_position, monotonic() + bound.wait_ms / 1000
    if least is not None and least.lineage != lineage:
        raise ProblemError(refused(Refusal.LINEAGE_CHANGED, candidates=[]))
    at_least = 0 if least is None else least.version
    target: int | None = None
    while True:
        shown = await look()
        last, newest = (find(shown, key=lambda each: each.version) for find in (min, max))
        target = max(at_least, newest.version) if target is None else target
        if last.version >= target or monotonic() >= until_s:
            break
        await asyncio.sleep(LOOK_AGAIN_S)
    if last.version < at_least:
        raise _behind(last, at_least)
    position = Position(application_id, lineage, last.version, last.committed_at_us)
    return ChosenVersion(position, newest.version, last if last.version < target else None)


def _behind(last: ReplicaVersion, least: int) -> ProblemError:
    problem = refused(Refusal.BELOW_MIN_POSITION, candidates=[])
    what = f"partition {last.partition} of {last.store} shows version {last.version}, below {least}"
    return ProblemError(replace(problem, detail=what, where="min_position"))


def snapshot_routes(snapshots: Snapshots) -> APIRouter:
    """Make the calls that grant, end and list leases."""
    routes = APIRouter()

    @routes.post("/v1/snapshots", status_code=201)
    async def lease(request: Request) -> Response:
        """Lease one version of all stores."""
        body = await read_body(request.receive, max_bytes=MAX_BODY_BYTES)
        return json_response(await snapshots.grant(body, authorization_of(request.scope).principal), 201)

    @routes.delete("/v1/snapshots/{snapshot}")
    async def release(request: Request) -> Response:
        """End a lease before its time."""
        _, _, token, *_ = split_path(request.scope["raw_path"])
        await snapshots.end(token, authorization_of(request.scope).principal)
        return Response(status_code=204)

    @routes.get("/admin/v1/snapshots")
    async def listed() -> Response:
        """Return the leases that are held: of which version, until when, and what it holds."""
        return json_response(await snapshots.listed())

    return routes
