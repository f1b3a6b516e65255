"""What is asked of nodes besides lookups, rarely: their heartbeat, catalogue and assignment, and to drain.

Ordinary HTTP with httpx; every call has a deadline, and what comes back is validated as if it came over the bus.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import httpx

from understudy_shared.errors import UnderstudyError
from understudy_shared.messages import (
    MAX_MESSAGE_BYTES,
    Assignment,
    BadMessageError,
    Catalogue,
    Heartbeat,
    Message,
)
from understudy_shared.words import HostInfo

TIMEOUT_S = 1.0
"""For a connection, and for each part of a reply."""

DEADLINE_S = 3.0
"""For a reply as a whole: a node that sends byte by byte is not waited for."""

MAX_CONNECTIONS = 32
"""To all nodes together; heartbeats of a thousand nodes still pass within a second."""

M = TypeVar("M", bound=Message)


class NodeCallError(UnderstudyError):
    """A node did not answer, or not with what was asked for."""


class _Transport(httpx.AsyncHTTPTransport):
    """Of a connection that its peer resets in the moment in which it was made there is no socket any more, and anyio
    asks it for its peer's name. That is an AttributeError there, and a node that cannot be reached here.
    """

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except (AttributeError, OSError) as error:
            raise httpx.ConnectError(str(error), request=request) from error


class NodeCalls:
    """The nodes' HTTP, for one application."""

    def __init__(self, application_id: str) -> None:
        self._application_id = application_id
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS)
        # Nodes are reached directly, whatever proxy the environment names.
        transport = _Transport(limits=limits, trust_env=False)
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, transport=transport, trust_env=False)

    async def heartbeat(self, host: HostInfo) -> Heartbeat:
        return await self._get(Heartbeat, host, "/internal/v1/lags")

    async def catalogue(self, host: HostInfo) -> Catalogue:
        return await self._get(Catalogue, host, "/internal/v1/catalogue")

    async def assignment(self, host: HostInfo) -> Assignment:
        return await self._get(Assignment, host, "/internal/v1/assignment")

    async def drain(self, host: HostInfo, *, drain: bool) -> tuple[int, bytes, str]:
        """Status, body and content type of the node's reply."""
        url = _url(host, "/admin/v1/drain")
        try:
            reply = await self._client.post(url, json={"drain": drain})
        except httpx.HTTPError as error:
            raise NodeCallError(f"the node does not answer: {error or type(error).__name__}", where=url) from None
        return reply.status_code, reply.content, reply.headers.get("content-type", "application/json")

    async def close(self) -> None:
        """Give connections back."""
        await self._client.aclose()

    async def _get(self, kind: type[M], host: HostInfo, path: str) -> M:
        url = _url(host, path)
        try:
            async with asyncio.timeout(DEADLINE_S), self._client.stream("GET", url) as reply:
                if reply.status_code != 200:
                    raise NodeCallError(f"the node answers {reply.status_code}", where=url)
                return kind.decode(await _body(reply, url), application_id=self._application_id, where=url)
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            TimeoutError,
            ValueError,
        ) as error:  # ValueError: a host that is none
            raise NodeCallError(f"the node does not answer: {error or type(error).__name__}", where=url) from None


async def _body(reply: httpx.Response, url: str) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    async for part in reply.aiter_bytes():
        size_bytes += len(part)
        if size_bytes > MAX_MESSAGE_BYTES:
            raise BadMessageError(f"more than {MAX_MESSAGE_BYTES} bytes", where=url)
        parts.append(part)
    return b"".join(parts)


def _url(host: HostInfo, path: str) -> str:
    name = f"[{host.host}]" if ":" in host.host else host.host
    return f"http://{name}:{host.port}{path}"
