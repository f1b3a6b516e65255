"""Rare HTTP calls to nodes besides lookups: for their heartbeat, catalogue and assignment, and to drain them.

They are ordinary HTTP with httpx. Rule: a reply must be JSON within limits of time and size, otherwise it is refused
unread; redirects are not followed, and nothing is decompressed. Documents are then validated as if they came over
the bus; with a key they must be signed for this very request.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec
from typing import NamedTuple, TypeVar
from urllib.parse import quote

import httpx
import orjson

from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.message_auth import (
    LARGE_BYTES,
    NONCE_HEADER,
    SIGNATURE_HEADER,
    MessageAuth,
    UnauthenticError,
)
from understudy_shared.bus.messages import (
    MAX_MESSAGE_BYTES,
    Assignment,
    Catalogue,
    Heartbeat,
    Message,
)
from understudy_shared.bus.sliced_assignment import decode
from understudy_shared.cluster.node_transport import NodeTransport

if find_spec("sniffio") is None:
    # httpcore tries to import it for each of its locks. The search for a missing module takes half of a call's time.
    sys.modules["sniffio"] = None  # type: ignore[assignment]  # Python's own sign for that

TIMEOUT_S = 1.0
"""Timeout of a connection, and of each part of a reply."""

DEADLINE_S = 3.0
"""Deadline of a whole reply, so that a node that sends byte by byte cannot hold a call."""

MAX_CONNECTIONS = 32
"""Most connections to all nodes together; heartbeats of a thousand nodes still pass within a second."""

MAX_SMALL_REPLY_BYTES = 64 * 1024
"""Size limit of a reply of a few values, such as that to a drain."""

UNKNOWN_HERE = "it does not know this service as one of its cluster"
SAME_FILE = "Give all nodes and routers the same --cluster-secret-file, and certificates of the same authority"

_JSON_TYPES = frozenset(("application/json", "application/problem+json"))

M = TypeVar("M", bound=Message)


class NodeCallError(UnderstudyError):
    """A node did not answer, or not with the document that was asked for."""


class NodeTimeoutError(NodeCallError):
    """A node did not answer in time."""


class BadReplyError(NodeCallError):
    """A node answered with something that no Understudy node sends, or too much of it. The reply was not used."""


class _Reply(NamedTuple):
    status: int
    body: bytes
    signature: str | None


def node_client(identity: ClusterIdentity, *, max_connections: int = MAX_CONNECTIONS) -> httpx.AsyncClient:
    """Make the HTTP client of calls to nodes, which trusts the certificates of `identity`."""
    limits = httpx.Limits(max_connections=max_connections, max_keepalive_connections=MAX_CONNECTIONS)
    return httpx.AsyncClient(
        timeout=TIMEOUT_S,
        transport=NodeTransport(verify=identity.peers or True, limits=limits),
        trust_env=False,
        follow_redirects=False,  # no Understudy node redirects its callers
        headers={"accept": "application/json", "accept-encoding": "identity"},
    )


class NodeCalls:
    """The HTTP calls to the nodes of one application. `identity` authenticates this process to them."""

    def __init__(
        self,
        application_id: str,
        auth: MessageAuth | None = None,
        identity: ClusterIdentity | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        """Set the keys of the calls. `auth` verifies the signatures of documents; without it they are not verified.
        `identity` authenticates this process to the nodes. `client`: one that others use too, and close.
        """
        self.identity = identity or ClusterIdentity(None, application_id)
        self._application_id = application_id
        self._auth = auth or MessageAuth(application_id)
        self._owns_client = client is None
        self._client = client or node_client(self.identity)

    async def heartbeat(self, host: HostInfo) -> Heartbeat:
        return await self._get(Heartbeat, host, "/internal/v1/lags")

    async def catalogue(self, host: HostInfo) -> Catalogue:
        return await self._get(Catalogue, host, "/internal/v1/catalogue")

    async def assignment(self, host: HostInfo) -> Assignment:
        return await self._get(Assignment, host, "/internal/v1/assignment")

    async def drain(self, host: HostInfo, *, drain: bool) -> tuple[int, dict[str, object]]:
        """Return the status and the JSON object of the node's reply."""
        url = self._url(host, "/admin/v1/drain")
        return await self._object("POST", url, orjson.dumps({"drain": drain}))

    async def let_go(self, host: HostInfo) -> tuple[int, dict[str, object]]:
        """Ask the node to let the application go. Return the status and the JSON object of its reply."""
        path = f"/admin/v1/applications/{quote(self._application_id, safe='')}"
        return await self._object("DELETE", self._url(host, path), None)

    async def position_at(self, host: HostInfo, at_us: int) -> tuple[int, dict[str, object]]:
        """Return the status and the JSON object of the reply: the position of the newest version at a moment."""
        return await self._object("GET", self._url(host, f"/internal/v1/position?at_us={at_us}"), None)

    async def _object(self, method: str, url: str, content: bytes | None) -> tuple[int, dict[str, object]]:
        reply = await self._exchange(method, url, content, max_bytes=MAX_SMALL_REPLY_BYTES)
        try:
            document = orjson.loads(reply.body)
        except orjson.JSONDecodeError as error:
            raise BadReplyError(f"the node's reply is not JSON: {error}", where=url) from None
        if not isinstance(document, dict):
            raise BadReplyError("the node's reply is not a JSON object", where=url)
        return reply.status, document

    async def ask(
        self, host: HostInfo, path: str, content: bytes, *, max_bytes: int, limit_s: float, kind: str = ""
    ) -> tuple[int, bytes]:
        """Send JSON by POST to a node that may work for a while. Return the status and the unparsed reply, which is
        JSON, or of this `kind`.

        Raises NodeTimeoutError when it takes longer than `limit_s`.
        """
        url = self._url(host, path)
        reply = await self._exchange("POST", url, content, max_bytes=max_bytes, limit_s=limit_s, kind=kind)
        return reply.status, reply.body

    def _url(self, host: HostInfo, path: str) -> str:
        name = f"[{host.host}]" if ":" in host.host else host.host
        return f"{'http' if self.identity.peers is None else 'https'}://{name}:{host.port}{path}"

    async def close(self) -> None:
        """Close the connections, unless others use them too."""
        if self._owns_client:
            await self._client.aclose()

    async def _get(self, kind: type[M], host: HostInfo, path: str) -> M:
        url = self._url(host, path)
        nonce = self._auth.new_nonce()
        reply = await self._exchange("GET", url, None, max_bytes=MAX_MESSAGE_BYTES, nonce=nonce)
        if reply.status in (401, 403):
            raise NodeCallError(f"the node answers {reply.status}: {UNKNOWN_HERE}", where=url, fix=SAME_FILE)
        if reply.status != 200:
            raise NodeCallError(f"the node answers {reply.status}", where=url)
        await self._authenticate(kind, reply, nonce, url)
        return await decode(kind, reply.body, application_id=self._application_id, where=url, give=_give)

    async def _authenticate(self, kind: type[Message], reply: _Reply, nonce: str | None, url: str) -> None:
        """Refuse a reply that no process of this cluster has signed for this request. Raises BadReplyError."""
        name = kind.__name__.lower().encode()
        try:
            if self._auth.is_on and len(reply.body) > LARGE_BYTES:
                await asyncio.to_thread(self._auth.check_answer, reply.signature, nonce, name, reply.body)
            else:
                self._auth.check_answer(reply.signature, nonce, name, reply.body)
        except UnauthenticError as error:
            self._auth.on_refused(error, url)
            raise BadReplyError(f"the node's reply is refused: {error.what}", where=url, fix=error.fix) from None

    async def _exchange(
        self,
        method: str,
        url: str,
        content: bytes | None,
        *,
        max_bytes: int,
        nonce: str | None = None,
        limit_s: float | None = None,
        kind: str = "",
    ) -> _Reply:
        """Return the status, the JSON and the signature of a reply. Raises NodeCallError."""
        sent = {} if content is None else {"content-type": "application/json"}
        headers = {**sent, **({"accept": kind} if kind else {}), **self.identity.headers}
        if nonce is not None:
            headers[NONCE_HEADER] = nonce
        timeout = httpx.Timeout(TIMEOUT_S, read=limit_s or TIMEOUT_S)
        try:
            async with (
                asyncio.timeout(limit_s or DEADLINE_S),
                self._client.stream(method, url, content=content, headers=headers, timeout=timeout) as reply,
            ):
                body = await _body(reply, url, max_bytes, kind)
                return _Reply(reply.status_code, body, reply.headers.get(SIGNATURE_HEADER))
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:  # ValueError: a malformed host
            trouble = self.identity.tls_failure(url.split("/")[2], error)
            what = f"the node does not answer: {trouble or error or type(error).__name__}"
            is_late = isinstance(error, TimeoutError | httpx.TimeoutException)
            raise (NodeTimeoutError if is_late else NodeCallError)(what, where=url) from None


async def _give() -> None:
    await asyncio.sleep(0)


async def _body(reply: httpx.Response, url: str, max_bytes: int, wanted: str) -> bytes:
    """Return the bytes as they came over the wire; a compressed body may grow a thousandfold, and is refused."""
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not (200 <= reply.status_code < 300 or 400 <= reply.status_code < 600):
        raise BadReplyError(f"the node answers {reply.status_code}, neither an answer nor a problem", where=url)
    is_wanted = bool(wanted) and kind == wanted and reply.status_code == 200
    if kind not in _JSON_TYPES and not is_wanted:
        raise BadReplyError(f"the node's reply is {kind[:100] or 'of no named type'}, not JSON", where=url)
    if reply.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise BadReplyError("the node's reply is compressed, which was not asked for", where=url)
    parts: list[bytes] = []
    size_bytes = 0
    async for part in reply.aiter_raw():
        size_bytes += len(part)
        if size_bytes > max_bytes:
            raise BadReplyError(f"the node's reply has more than {max_bytes} bytes", where=url)
        parts.append(part)
    return b"".join(parts)
