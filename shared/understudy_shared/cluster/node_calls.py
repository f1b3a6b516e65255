"""The HTTP calls to nodes besides lookups: for heartbeats, catalogues and assignments, for scans and exports, for
leases and watches, and to drain them.

Each kind of call of an application has its own places, so no other kind and no other application can take them all; one
node, which may hang, can take half of them. A place is held until the whole exchange has ended, and a connection is
kept only if its reply was read to the end. So both are released wherever a call is cancelled.

Rule: a reply must be JSON (or the media type that the call names) within limits of time and size, otherwise it is
refused; redirects are not followed, and nothing is decompressed. Documents are then validated like those from the bus;
with a key they must be signed for this very request.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from time import monotonic
from typing import Final, TypeVar
from urllib.parse import quote

import orjson

from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.assignments import decode
from understudy_shared.bus.messages import MAX_MESSAGE_BYTES, Assignment, Catalogue, Heartbeat, Message
from understudy_shared.cluster.wire import (
    HopFailure,
    WireConnection,
    WireError,
    WireFailedError,
    WireReply,
    authority_of,
    connect,
)

TIMEOUT_S = 1.0
"""Timeout of a connection, and of each part of a reply."""

DEADLINE_S = 3.0
"""Deadline of a whole reply, so that a node that sends byte by byte cannot hold a call."""

MAX_IN_FLIGHT: Final = 32
"""Limit on calls of one kind and application in flight. A thousand nodes can still be asked within a second."""

MAX_PER_NODE: Final = 16
"""Limit on these calls to one node. So a node that accepts calls and never answers leaves places for other nodes."""

LONG_WAIT_S: Final = 1.0
"""Time above which the wait of a call for a place counts as long."""

MAX_WAITING: Final = 4096
"""Limit on calls of one kind and application that wait for a place."""

MAX_KEPT: Final = 32
"""Limit on the connections kept for further calls, over all nodes."""

KEPT_S: Final = 5.0
"""Time for which a connection is kept. It is short, because a node may vanish without closing its connections."""

MAX_SMALL_REPLY_BYTES = 64 * 1024
"""Size limit of a reply of a few values, such as that to a drain."""

UNKNOWN_HERE = "it does not know this service as one of its cluster"
SAME_FILE = "Give all nodes and routers the same --cluster-secret-file, and certificates of the same authority"

_JSON_TYPES = frozenset(("application/json", "application/problem+json"))

M = TypeVar("M", bound=Message)


class CallKind(StrEnum):
    """The purpose of a call. Each has places of its own."""

    MEMBERSHIP = "membership"
    """Heartbeats, catalogues and assignments; drains; the end of an application."""
    SCAN = "scan"
    """Versions, pages, counts, histories."""
    EXPORT = "export"
    """Parts of exports, and of changes."""
    LEASE = "lease"
    """Snapshot leases, and the positions of moments."""
    WATCH = "watch"
    """The keys of feeds, missed changes of watchers, and all reads of watches of prefixes."""


class CallOutcome(StrEnum):
    """The outcomes of a call. A call is not counted if its caller stops waiting."""

    ANSWERED = "answered"
    WAITED = "waited"
    """The call was answered, after a long wait for a place."""
    FAILED = "failed"
    LATE = "late"
    NO_PLACE = "no-place"
    """The call was not sent: it waited for a place until its deadline."""


class NodeCallError(UnderstudyError):
    """A node did not answer, or not with the requested document."""

    outcome, reason = CallOutcome.FAILED, WireError.REFUSED


class NodeTimeoutError(NodeCallError):
    """A node did not answer in time."""

    outcome, reason = CallOutcome.LATE, WireError.TIMEOUT


class NoPlaceError(NodeTimeoutError):
    """A call was not sent: other calls of its kind had all places until its deadline."""

    outcome = CallOutcome.NO_PLACE


class BadNodeReplyError(NodeCallError):
    """A node answered with something that no Understudy node sends, or too much of it. The reply was not used."""

    reason = WireError.BAD_REPLY


class KeptConnections:
    """The connections that are open for further calls. The process that made them closes them."""

    def __init__(self) -> None:
        self._kept: deque[tuple[WireConnection, float]] = deque()
        """Each connection with the time since which it is kept; the oldest first."""

    def __repr__(self) -> str:
        return f"KeptConnections({len(self._kept)})"

    def take(self, host: HostInfo) -> WireConnection | None:
        """Return the most recently used open connection to a node; `None` without one."""
        oldest_s = monotonic() - KEPT_S
        while self._kept and self._kept[0][1] < oldest_s:
            self._close_oldest()
        for each in reversed(self._kept):
            if each[0].host == host and each[0].is_idle:
                self._kept.remove(each)
                return each[0]
        return None

    def give_back(self, connection: WireConnection) -> None:
        """Keep a connection whose reply was read to the end; close any other."""
        if not connection.is_idle:
            connection.give_up(WireError.TIMEOUT, "the caller stopped waiting")
            return
        self._kept.append((connection, monotonic()))
        if len(self._kept) > MAX_KEPT:
            self._close_oldest()

    def close(self) -> None:
        while self._kept:
            self._close_oldest()

    def _close_oldest(self) -> None:
        self._kept.popleft()[0].give_up(WireError.RESET, "it is not kept any longer")


class Places:
    """A semaphore. A free place can also be taken without a call, by decrementing `free`."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def take(self) -> None:
        """Take a place, after the calls that wait already."""
        if self.free:  # so no call waits
            self.free -= 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting[place] = None
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self.give_back()
            raise
        finally:
            del self._waiting[place]

    def give_back(self) -> None:
        """Pass a place to the first call that waits, or free it."""
        for place in self._waiting:
            if not place.done():
                place.set_result(None)
                return
        self.free += 1


class PlacesOfKind:
    """The places of the calls of one kind."""

    def __init__(self) -> None:
        self.of_all = Places(MAX_IN_FLIGHT)
        self.of_nodes: dict[HostInfo, Places] = {}
        """The places of each node that a call holds or wants, and of a few other nodes."""
        self.waiting = 0

    async def take(self, host: HostInfo, until_s: float) -> Places:
        """Take a place, and one of the node's places. Return the node's places: the caller gives both places back.
        Raises NoPlaceError if no place is free until `until_s`.
        """
        of_node = self.of_nodes.get(host)
        if of_node is None:
            if len(self.of_nodes) > MAX_IN_FLIGHT:
                self.of_nodes = {each: of for each, of in self.of_nodes.items() if of.free < MAX_PER_NODE}
            of_node = self.of_nodes[host] = Places(MAX_PER_NODE)
        if of_node.free and self.of_all.free:
            of_node.free -= 1
            self.of_all.free -= 1
        else:
            await self._wait(of_node, until_s)
        return of_node

    async def _wait(self, of_node: Places, until_s: float) -> None:
        what = f"as many calls of its kind as may be are in flight, {MAX_IN_FLIGHT}, or {MAX_PER_NODE} to its node"
        if self.waiting >= MAX_WAITING:
            raise NoPlaceError(f"{self.waiting} calls wait for a place, as many as may: {what}")
        self.waiting += 1
        try:
            async with asyncio.timeout(until_s - monotonic()):
                # First the place of the node: a call that waits for it must not occupy a place of other nodes' calls.
                await of_node.take()
                try:
                    await self.of_all.take()
                except asyncio.CancelledError:
                    of_node.give_back()
                    raise
        except TimeoutError:
            raise NoPlaceError(f"{what}: it was not sent until its deadline") from None
        finally:
            self.waiting -= 1


class NodeCalls:
    """The HTTP calls to the nodes of one application. `identity` authenticates this process to them. `counts` has the
    outcomes of calls.
    """

    def __init__(
        self, application_id: str, identity: ClusterIdentity | None = None, kept: KeptConnections | None = None
    ) -> None:
        """Set the application. `identity` authenticates this process to the nodes. `kept` are shared connections, which
        their owner closes.
        """
        self.identity = identity or ClusterIdentity(None, application_id)
        self.counts: Counter[tuple[CallKind, CallOutcome]] = Counter()
        self._application_id = application_id
        self._owns_kept = kept is None
        self._kept = KeptConnections() if kept is None else kept
        self._places = {kind: PlacesOfKind() for kind in CallKind}

    async def heartbeat(self, host: HostInfo) -> Heartbeat:
        return await self._get(Heartbeat, host, "/internal/v1/lags")

    async def catalogue(self, host: HostInfo) -> Catalogue:
        return await self._get(Catalogue, host, "/internal/v1/catalogue")

    async def assignment(self, host: HostInfo) -> Assignment:
        return await self._get(Assignment, host, "/internal/v1/assignment")

    async def drain(self, host: HostInfo, *, drain: bool) -> tuple[int, dict[str, object]]:
        return await self._object(CallKind.MEMBERSHIP, host, "POST", "/admin/v1/drain", orjson.dumps({"drain": drain}))

    async def let_go(self, host: HostInfo) -> tuple[int, dict[str, object]]:
        """Ask the node to release the application. Return the status and the JSON object of its reply."""
        path = f"/admin/v1/applications/{quote(self._application_id, safe='')}"
        return await self._object(CallKind.MEMBERSHIP, host, "DELETE", path, None)

    async def position_at(self, host: HostInfo, at_us: int) -> tuple[int, dict[str, object]]:
        """Return the status and the JSON object of the reply: the position of the newest version at a moment."""
        return await self._object(CallKind.LEASE, host, "GET", f"/internal/v1/position?at_us={at_us}", None)

    async def ask(
        self,
        kind: CallKind,
        host: HostInfo,
        path: str,
        content: bytes | None,
        *,
        method: str = "POST",
        max_bytes: int = MAX_SMALL_REPLY_BYTES,
        limit_s: float | None = None,
        accept: str = "",
    ) -> tuple[int, bytes]:
        """Send JSON to a node. Return the status and the unparsed reply, which is JSON, or of the media type `accept`.

        Raises NodeTimeoutError if it takes longer than `limit_s`, the time that the node has for its work. Without
        `limit_s`: if a part of it takes longer than `TIMEOUT_S`, or the whole longer than `DEADLINE_S`.
        """
        where, lines = self._url(host, path), _head_lines(accept) if accept else _JSON_LINES
        places, began_s = self._places[kind], monotonic()
        until_s = began_s + (limit_s or DEADLINE_S)
        connection: WireConnection | None = None
        try:
            of_node = await places.take(host, until_s)
            has_waited = monotonic() - began_s >= LONG_WAIT_S
            try:
                async with asyncio.timeout(until_s - monotonic()) as limit:
                    connection = self._kept.take(host) or await self._connected(host, where)
                    begin_part = None if limit_s else partial(_begin_part, limit, until_s)
                    if begin_part:
                        begin_part()
                    try:
                        head = await connection.ask(method, path, lines, content, self.identity)
                    except WireFailedError as error:
                        if not error.failure.is_stale:
                            raise
                        # Retry once, also POSTs. A node that closes an idle connection has not read the request. If it
                        # had, the retry would be harmless: reads change nothing, and a drain, a release or a lease
                        # (whose id comes from the router) are idempotent.
                        connection = await self._connected(host, where)
                        head = await connection.ask(method, path, lines, content, self.identity)
                    body = await _body(
                        connection, head, where, max_bytes=max_bytes, accept=accept, begin_part=begin_part
                    )
            finally:
                if connection is not None:
                    self._kept.give_back(connection)
                of_node.give_back()
                places.of_all.give_back()
        except (TimeoutError, WireFailedError, NodeCallError) as error:
            raise self._counted(kind, error, where) from None
        self.counts[kind, CallOutcome.WAITED if has_waited else CallOutcome.ANSWERED] += 1
        return head.status, body

    async def begin(
        self, host: HostInfo, path: str, content: bytes, *, accept: str, limit_s: float
    ) -> WireConnection | tuple[int, bytes]:
        """Begin a stream of the media type `accept`, by POST. Return its connection, which the caller must read and
        give up; or the status and the body of the refusal. A stream takes no place: the number of watchers is limited.
        """
        where, connection = self._url(host, path), None
        try:
            async with asyncio.timeout(limit_s):
                connection = await self._connected(host, where)
                head = await connection.ask("POST", path, _head_lines(accept), content, self.identity)
                if head.status != 200:
                    body = await _body(connection, head, where, max_bytes=MAX_SMALL_REPLY_BYTES, accept="")
                    self.counts[CallKind.WATCH, CallOutcome.ANSWERED] += 1
                    return head.status, body
                if _kind_of(head) != accept:
                    raise BadNodeReplyError(f"the node's reply is {_kind_of(head)[:100]!r}, not {accept}", where=where)
                self.counts[CallKind.WATCH, CallOutcome.ANSWERED] += 1
                stream, connection = connection, None
                return stream
        except (TimeoutError, WireFailedError, NodeCallError) as error:
            raise self._counted(CallKind.WATCH, error, where) from None
        finally:
            if connection is not None:
                connection.give_up(WireError.RESET, "the stream did not begin")

    async def close(self) -> None:
        """Close the connections, unless others use them too."""
        if self._owns_kept:
            self._kept.close()

    def _url(self, host: HostInfo, path: str) -> str:
        return f"{'http' if self.identity.peers is None else 'https'}://{authority_of(host)}{path}"

    async def _get(self, document: type[M], host: HostInfo, path: str) -> M:
        url = self._url(host, path)
        status, body = await self.ask(CallKind.MEMBERSHIP, host, path, None, method="GET", max_bytes=MAX_MESSAGE_BYTES)
        if status in (401, 403):
            raise NodeCallError(f"the node answers {status}: {UNKNOWN_HERE}", where=url, fix=SAME_FILE)
        if status != 200:
            raise NodeCallError(f"the node answers {status}", where=url)
        return await decode(
            document, body, application_id=self._application_id, where=url, give=lambda: asyncio.sleep(0)
        )

    async def _object(
        self, kind: CallKind, host: HostInfo, method: str, path: str, content: bytes | None
    ) -> tuple[int, dict[str, object]]:
        (status, body), url = await self.ask(kind, host, path, content, method=method), self._url(host, path)
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise BadNodeReplyError(f"the node's reply is not JSON: {error}", where=url) from None
        if not isinstance(document, dict):
            raise BadNodeReplyError("the node's reply is not a JSON object", where=url)
        return status, document

    async def _connected(self, host: HostInfo, where: str) -> WireConnection:
        connection = await connect(host, TIMEOUT_S, self.identity)
        if isinstance(connection, HopFailure):
            raise _error_of(connection, where)
        return connection

    def _counted(self, kind: CallKind, error: Exception, where: str) -> NodeCallError:
        """Count a failed call. Convert the exception of its connection to a NodeCallError."""
        if isinstance(error, WireFailedError):
            error = _error_of(error.failure, where)
        elif not isinstance(error, NodeCallError):
            error = NodeTimeoutError("the node does not answer: no reply in time", where=where)
        self.counts[kind, error.outcome] += 1
        return error


def _head_lines(accept: str) -> list[bytes]:
    return [f"accept: {accept}\r\naccept-encoding: identity\r\n".encode()]


_JSON_LINES = _head_lines("application/json")


def _error_of(failure: HopFailure, where: str) -> NodeCallError:
    kind = {WireError.TIMEOUT: NodeTimeoutError, WireError.BAD_REPLY: BadNodeReplyError}.get(
        WireError(failure.reason), NodeCallError
    )
    return kind(f"the node does not answer: {failure.detail}", where=where)


def _kind_of(head: WireReply) -> str:
    """Return the media type of a reply, without its parameters."""
    return head.headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()


def _begin_part(limit: asyncio.Timeout, until_s: float) -> None:
    limit.reschedule(asyncio.get_running_loop().time() + min(TIMEOUT_S, until_s - monotonic()))


async def _body(
    connection: WireConnection,
    head: WireReply,
    url: str,
    *,
    max_bytes: int,
    accept: str,
    begin_part: Callable[[], None] | None = None,
) -> bytes:
    """Return the bytes as they came over the wire; a compressed body may grow a thousandfold, and is refused."""
    kind = _kind_of(head)
    if not (200 <= head.status < 300 or 400 <= head.status < 600):
        raise BadNodeReplyError(f"the node answers {head.status}, neither an answer nor a problem", where=url)
    is_wanted = bool(accept) and kind == accept and head.status == 200
    if kind not in _JSON_TYPES and not is_wanted:
        raise BadNodeReplyError(f"the node's reply is {kind[:100] or 'of no named type'}, not JSON", where=url)
    if head.headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise BadNodeReplyError("the node's reply is compressed, which was not asked for", where=url)
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        if begin_part:
            begin_part()
        part = await connection.read()
        if not part:
            return b"".join(parts)
        size_bytes += len(part)
        if size_bytes > max_bytes:
            raise BadNodeReplyError(f"the node's reply has more than {max_bytes} bytes", where=url)
        parts.append(part)
