"""Histories of keys, the same at nodes and routers, and the call by which a router asks a node.

The reply is the part of the answer after the key: a router passes it on without parsing it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import orjson
from fastapi import APIRouter, Request, Response

from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.permissions import require_key
from understudy_shared.auth.principals import Authorization
from understudy_shared.base.plausible import CEILING
from understudy_shared.base.texts import clipped
from understudy_shared.http.lookup_requests import encoded_key, key_and_params, longs_as_text, pop_longs
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.http.target import split_path
from understudy_shared.questions.lookup.batches import history_of
from understudy_shared.questions.scan.requests import ScannedStore
from understudy_shared.questions.scan.service import Scans
from understudy_shared.questions.service_reads import counted_of_store
from understudy_shared.reads.bound_parsing import parse_whole
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.hop_fields import BadHopError, StoreOfHop, object_of, store_of_hop, text, whole
from understudy_shared.server.app import KEY_PATH

PATH: Final = "/internal/v1/history"
MAX_HISTORY_BYTES: Final = 16 * 1024 * 1024
"""Limit on a reply: one entry may be as long as any value."""

_PARAMETERS: Final = ("from", "to")


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """The versions of a history, both inclusive; by default from the oldest that can be read to the newest."""

    first: int | None = None
    last: int | None = None
    include_expired: bool = True


def parse_range(parameters: dict[str, str], *, include_expired: bool) -> HistoryRange:
    """Parse the versions of a history. Raises BadBoundError."""
    unknown = sorted(parameters.keys() - set(_PARAMETERS))
    if unknown:
        raise BadBoundError(
            f"unknown parameter {clipped(unknown[0])}", where="query", fix=f"Known are: {', '.join(_PARAMETERS)}"
        )
    first, last = (parse_whole(parameters, name, unit="batches") for name in ("from", "to"))
    for name, version in (("from", first), ("to", last)):
        if version is not None and version > CEILING:
            raise BadBoundError(f"{name}={version} is above {CEILING}", where=name, fix="Send the version of an answer")
    if first is not None and last is not None and first > last:
        raise BadBoundError(f"from={first} is after to={last}", where="from", fix="Send the earlier version as from")
    return HistoryRange(first, last, include_expired)


@dataclass(frozen=True, slots=True)
class HistoryHop(StoreOfHop):
    """A question of a router. `layout` names how it placed and encoded the key."""

    partition: int
    row: bytes
    range: HistoryRange

    def encode(self) -> bytes:
        """Return the JSON of the request."""
        return orjson.dumps(
            {
                **self.store_members(),
                "partition": self.partition,
                "row": base64.b64encode(self.row).decode(),
                "from": self.range.first,
                "to": self.range.last,
                "include_expired": self.range.include_expired,
            }
        )


def decode_history(body: bytes) -> bytes:
    """Return the JSON after the key. Raises BadHopError for a reply that is not a history."""
    if not body.startswith(b'{"partition":') or not body.endswith(b"}\n"):
        raise BadHopError("the reply is not a history")
    return body[1:]


def decode_history_hop(body: bytes) -> HistoryHop:
    """Parse a question. Raises BadHopError."""
    fields = object_of(body)
    try:
        return HistoryHop(
            *store_of_hop(fields),
            whole(fields, "partition"),
            base64.b64decode(text(fields, "row"), validate=True),
            HistoryRange(
                None if fields["from"] is None else whole(fields, "from"),
                None if fields["to"] is None else whole(fields, "to"),
                fields["include_expired"] is not False,
            ),
        )
    except KeyError as error:
        raise BadHopError(f"the hop has no {error}") from None
    except binascii.Error as error:
        raise BadHopError(f"the hop's row is not base64: {error}") from None


EVERYWHERE_S: Final = 40.0
"""Time limit for the history of a key that may be in any partition, because every partition has to answer."""


class Histories(ABC):
    """Answers to requests for histories. `scans` has the stores."""

    def __init__(self, scans: Scans) -> None:
        self._scans = scans

    @abstractmethod
    async def read(self, name: str, partition: int, row: bytes, asked: HistoryRange) -> bytes:
        """Return a page of a history, as the JSON after the key. Raises a problem if it cannot be read."""

    async def answer(self, name: str, form: list[str], query: bytes, authorization: Authorization) -> bytes:
        """Return the answer to a request. Raises its problem."""
        with counted_of_store(self._scans.service, "history", name):
            return await self._body(name, form, query, authorization)

    async def _body(self, name: str, form: list[str], query: bytes, authorization: Authorization) -> bytes:
        store, service = self._scans.store(name), self._scans.service
        row, params = key_and_params(store.codec, form, query)
        expired = {name: params.pop(name) for name in ("include_expired",) if name in params}
        selection = service.bound_of(store.name, expired).selection
        longs, asked = pop_longs(params), parse_range(params, include_expired=selection.include_expired)
        encoded = encoded_key(store.codec, row, service.max_key_bytes)
        key = store.codec.to_json(encoded)
        if authorization.keys.prefixes is not None:
            require_key(authorization, key)
        if store.codec.is_scattered:
            found = await self._everywhere(store, encoded, asked)
        else:
            found = await self.read(name, store.codec.partition(row, store.partitions), encoded, asked)
        body = b"%b,%b" % (orjson.dumps({"store": store.name, "key": key})[:-1], found)
        return longs_as_text(body) if longs else body

    async def _everywhere(self, store: ScannedStore, row: bytes, asked: HistoryRange) -> bytes:
        """Return a page of the history of a key that may be in any partition. Raises its problem."""
        pages = []
        try:
            async with asyncio.timeout(EVERYWHERE_S):
                for partition in range(store.partitions):
                    page = await self.read(store.name, partition, row, asked)
                    pages.append(orjson.loads(b"{" + page))
        except TimeoutError:
            what = f"{store.partitions} partitions were not read within {EVERYWHERE_S:g} s"
            fix = "Ask for fewer versions, with from and to"
            raise ProblemError(Problem(ProblemType.DEADLINE, what, where="query", fix=fix)) from None
        return orjson.dumps(history_of(store.name, pages), option=orjson.OPT_APPEND_NEWLINE)[1:]


def history_routes(histories: Histories) -> APIRouter:
    """Make the calls that return the history of a key."""
    routes = APIRouter()

    async def answered(store: str, form: list[str], request: Request) -> Response:
        query, authorization = request.scope["query_string"], authorization_of(request.scope)
        return Response(await histories.answer(store, form, query, authorization), media_type="application/json")

    @routes.get("/v1/stores/{store}/history")
    async def by_json(store: str, request: Request) -> Response:
        """Return the versions of a key, which is JSON in `?key=`."""
        return await answered(store, ["lookup"], request)

    @routes.get("/v1/stores/{store}/history/" + KEY_PATH)
    async def by_path(store: str, key: str, request: Request) -> Response:
        """Return the versions of a key, of which each column is a segment of the path."""
        _, _, _, _, *segments = split_path(request.scope["raw_path"])
        return await answered(store, ["keys", *segments], request)

    return routes
