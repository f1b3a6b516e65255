"""httpx as a transport, for programs that have one configured: proxies, its own TLS, its instrumentation.

    Client(url, transport=HttpxTransport(httpx.Client(proxy="http://proxy:3128")))

It costs a multiple of the default for each call. While a head comes, httpx counts its timeout anew for each read; the
rest of a reply, and all of one on a loop, ends with the deadline.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import httpx

from understudy.client.core.exchange import Failure, FailureKind, Reply, Send
from understudy.client.transports.base import MAX_REPLY_BYTES

_LATE = Failure(FailureKind.TIMEOUT, "no reply in time")


class HttpxTransport:
    """A transport by an `httpx.Client`, which its owner configures and closes."""

    def __init__(self, client: httpx.Client, *, max_reply_bytes: int = MAX_REPLY_BYTES) -> None:
        self._client, self._max_reply_bytes = client, max_reply_bytes

    def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its reply, or the reason without one, by its deadline."""
        body = _Body(self._max_reply_bytes)
        try:
            with self._client.stream(**_request(send)) as response:
                for part in response.iter_raw():
                    if monotonic() > send.deadline_s:
                        return _LATE
                    if (failure := body.add(part)) is not None:
                        return failure
            return body.reply(response)
        except httpx.HTTPError as error:
            return _failure(error)

    def close(self) -> None:
        """Leave the client open: it is its owner's."""


class AsyncHttpxTransport:
    """A transport by an `httpx.AsyncClient`, which its owner configures and closes."""

    def __init__(self, client: httpx.AsyncClient, *, max_reply_bytes: int = MAX_REPLY_BYTES) -> None:
        self._client, self._max_reply_bytes = client, max_reply_bytes

    async def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its reply, or the reason without one, by its deadline."""
        body = _Body(self._max_reply_bytes)
        try:
            async with asyncio.timeout(max(0.001, send.deadline_s - monotonic())):
                async with self._client.stream(**_request(send)) as response:
                    async for part in response.aiter_raw():
                        if (failure := body.add(part)) is not None:
                            return failure
                return body.reply(response)
        except TimeoutError:
            return _LATE
        except httpx.HTTPError as error:
            return _failure(error)

    async def aclose(self) -> None:
        """Leave the client open: it is its owner's."""


class _Body:
    """The body of a reply as it comes."""

    def __init__(self, max_bytes: int) -> None:
        self._parts: list[bytes] = []
        self._size, self._max_bytes = 0, max_bytes

    def add(self, part: bytes) -> Failure | None:
        """Take a part; return the failure of a body that is too large."""
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._max_bytes:
            return Failure(FailureKind.BAD_REPLY, f"a body above {self._max_bytes} bytes")
        return None

    def reply(self, response: httpx.Response) -> Reply | Failure:
        """Return the whole reply."""
        if response.headers.get("content-encoding", "identity") != "identity":
            return Failure(FailureKind.BAD_REPLY, "a compressed reply, which was not asked for")
        kind, advice, tag = [response.headers.get(name, "") for name in ("content-type", "retry-after", "etag")]
        return Reply(response.status_code, kind, b"".join(self._parts), advice, tag)


def _request(send: Send) -> dict[str, Any]:
    """Return the arguments of a request: no redirects, which would take the credential elsewhere."""
    return {
        "method": send.request.method,
        "url": send.endpoint.url + send.request.target,
        "content": send.request.body,
        "headers": dict(send.headers),
        "timeout": max(0.001, send.deadline_s - monotonic()),
        "follow_redirects": False,
        "extensions": {"sni_hostname": send.endpoint.tls_name} if send.endpoint.tls_name else {},
    }


def _failure(error: httpx.HTTPError) -> Failure:
    why = str(error) or type(error).__name__
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)):
        return Failure(FailureKind.NOT_SENT, f"cannot connect: {why}")
    if isinstance(error, httpx.TimeoutException):
        return _LATE
    is_cut = isinstance(error, (httpx.NetworkError, httpx.RemoteProtocolError))
    return Failure(FailureKind.CUT if is_cut else FailureKind.BAD_REPLY, why)
