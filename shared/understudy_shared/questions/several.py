"""Reads of several stores at one version. Each batch of the query advances all stores, so a version is a consistent
snapshot of all of them.

Nodes and routers differ in how they choose a version and look up keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson
from fastapi import APIRouter, Request, Response

from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.audit import peer_of
from understudy_shared.auth.permissions import granted_in, shown_batch
from understudy_shared.auth.principals import Action, NotingScope, Principal
from understudy_shared.base.texts import clipped
from understudy_shared.http.edge import Receive, Scope, read_body
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.front import LookupsFirst
from understudy_shared.questions.lookup.batches import KeyBatch
from understudy_shared.questions.service_reads import ServiceReads, counted
from understudy_shared.reads.bound_parsing import VERSION_PARAMETERS
from understudy_shared.reads.bounds import MAX_BATCH_KEYS, Bound
from understudy_shared.reads.tokens import Position
from understudy_shared.server.direct import AsgiExchange, ReaderLeftError
from understudy_shared.spark.temporal import utc_text

MAX_READS: Final = 64
"""Limit on the stores of one request."""

SEVERAL_S: Final = 40.0
"""Time limit of one request: a little more than the longest wait for a version."""

_MEMBERS: Final = frozenset(("reads", "wait_ms", "min_position", *VERSION_PARAMETERS))
_OF_A_READ: Final = frozenset(("store", "keys", "bounds"))
_OF_KEYS: Final = frozenset(("limit", "include_expired"))
_FORM: Final = (
    'Send {"reads": [{"store": "a", "keys": [["k"]]}, {"store": "b", "keys": [["k"]]}]}, and version, snapshot or at'
)


class StoreRead(NamedTuple):
    """The keys to read from one store. `selection` are the parameters about the elements of each key."""

    store: str
    keys: list[object]
    selection: Mapping[str, object]


class SeveralReads(NamedTuple):
    """A request. `params` name the version, or a minimum to wait for."""

    params: Mapping[str, object]
    reads: Sequence[StoreRead]


def parse_several(body: bytes) -> SeveralReads:
    """Parse a request. Raises a problem if it does not parse."""
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _bad(f"the body is not JSON: {error}", "body") from None
    if not isinstance(asked, dict) or not isinstance(asked.get("reads"), list) or not asked["reads"]:
        raise _bad("the body has no list of reads", "reads")
    unknown = sorted(asked.keys() - _MEMBERS)
    if unknown:
        raise _bad(f"the member {clipped(unknown[0])} is unknown", "body")
    reads = [_read(place, each) for place, each in enumerate(asked["reads"])]
    count = sum(len(read.keys) for read in reads)
    if len(reads) > MAX_READS or count > MAX_BATCH_KEYS:
        what = f"there are {len(reads)} reads of {count} keys, above {MAX_READS} and {MAX_BATCH_KEYS}"
        raise ProblemError(
            Problem(ProblemType.TOO_LARGE, what, where="reads", fix="Go on with the snapshot in another")
        )
    return SeveralReads({name: value for name, value in asked.items() if name != "reads"}, reads)


def _read(place: int, asked: Any) -> StoreRead:
    where = f"reads[{place}]"
    if (
        not isinstance(asked, dict)
        or not isinstance(asked.get("store"), str)
        or not isinstance(asked.get("keys"), list)
    ):
        raise _bad("a read has a store and a list of keys", where)
    selection = asked.get("bounds", {})
    unknown = sorted(asked.keys() - _OF_A_READ)
    if not isinstance(selection, dict) or unknown:
        raise _bad(f"the member {clipped(unknown[0])} is unknown" if unknown else "bounds is not an object", where)
    others = sorted(selection.keys() - _OF_KEYS)
    if others:
        raise _bad(
            f"the bound {clipped(others[0])} is not one of a single read: {', '.join(sorted(_OF_KEYS))} are", where
        )
    return StoreRead(asked["store"], asked["keys"], selection)


class SeveralStores:
    """Answers to reads of several stores, with the `lookups` of this service. `position` finds the position of a store
    under a bound, as for a snapshot.
    """

    def __init__(
        self,
        lookups: LookupsFirst,
        service: ServiceReads,
        position: Callable[[str, Bound], Awaitable[Position]],
    ) -> None:
        self._lookups = lookups
        self._service = service
        self._position_of = position

    async def answer(self, body: bytes, scope: Scope, receive: Receive) -> bytes:
        """Return the answer to a request. Raises its problem."""
        try:
            with counted(self._lookups.requests, "read"):
                return await self._answer_in_time(body, scope, receive)
        except ReaderLeftError:
            what = "the client left before its answer was whole"
            raise ProblemError(Problem(ProblemType.BAD_REQUEST, what)) from None

    async def _answer_in_time(self, body: bytes, scope: Scope, receive: Receive) -> bytes:
        self._lookups.begin()
        try:
            async with asyncio.timeout(SEVERAL_S):
                return await self._answer(parse_several(body), scope, receive)
        except TimeoutError:
            what = f"the stores were not read within {SEVERAL_S:g} s"
            fix = "Retry, or read fewer stores at once"
            raise ProblemError(Problem(ProblemType.DEADLINE, what, where="reads", fix=fix)) from None
        finally:
            self._lookups.in_flight -= 1

    async def _answer(self, asked: SeveralReads, scope: Scope, receive: Receive) -> bytes:
        principal = authorization_of(scope).principal
        granted = [_granted(principal, read.store) for read in asked.reads]
        at = await self._position(asked)
        token = at.encode()
        found = []
        for read, keys in zip(asked.reads, granted, strict=True):
            params = {**read.selection, "snapshot": token}
            results = await self._lookups.look_up_many(
                KeyBatch(read.store, read.keys, params, keys, AsgiExchange(receive))
            )
            found.append(b'{"store":%b,%b' % (orjson.dumps(read.store), shown_batch(principal, results).rstrip()[1:]))
        if any(keys.refused for keys in granted):
            self._lookups.access.key_refused(principal, peer_of(scope), "POST", scope["raw_path"])
        head = {
            "snapshot": token,
            "version": at.version,
            "committed_at": utc_text(at.committed_at_us),
            "lineage": at.lineage,
        }
        return b'%b,"reads":[%b]}\n' % (orjson.dumps(head)[:-1], b",".join(found))

    async def _position(self, asked: SeveralReads) -> Position:
        """Return the version that the request names, else the newest version that all of its stores have."""
        stores = list(dict.fromkeys(read.store for read in asked.reads))
        bounds = {store: self._service.bound_of(store, asked.params) for store in stores}
        first = bounds[stores[0]]
        if first.read_version is not None or first.at_us is not None:
            return await self._position_of(stores[0], first)
        positions = [await self._position_of(store, bound) for store, bound in bounds.items()]
        return min(positions, key=lambda position: position.version)


def _granted(principal: Principal, store: str) -> NotingScope:
    """Return the keys of a store that the principal may read. Raises a problem if it may not read the store."""
    granted = granted_in(principal, store, Action.POINT)
    if isinstance(granted, Problem):
        raise ProblemError(granted)
    return NotingScope(granted.keys.prefixes)


def _bad(what: str, where: str) -> ProblemError:
    return ProblemError(Problem(ProblemType.BAD_REQUEST, what, where=where, fix=_FORM))


def several_routes(several: SeveralStores) -> APIRouter:
    """Make the call that reads several stores at one version."""
    routes = APIRouter()

    @routes.post("/v1/read")
    async def read(request: Request) -> Response:
        """Look keys of several stores up at one version."""
        body = await read_body(request.receive)
        answer = await several.answer(body, request.scope, request.receive)
        return Response(answer, media_type="application/json")

    return routes
