"""httpx as a transport, for programs that have one configured: proxies, its own TLS, its instrumentation.

    Client(url, transport=HttpxTransport(httpx.Client(proxy="http://proxy:3128")))

It costs a multiple of the default for each call. While a head comes, httpx counts its timeout anew for each read; the
rest of a reply, and all of one on a loop, ends with the deadline.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar, cast

import httpx

from understudy.client.core.exchange import Failure, FailureKind, Opened, Reply, Send
from understudy.client.transports.base import LATE, MAX_REPLY_BYTES, BlockingStream

T = TypeVar("T")

_COMPRESSED = Failure(FailureKind.BAD_REPLY, "a compressed reply, which was not asked for")
_STREAM_READ_S = 60.0
"""Time for which a blocking stream waits for one read: httpx takes it once, at the beginning."""


class HttpxTransport:
    """A transport by an `httpx.Client`, which its owner configures and closes."""

    def __init__(self, client: httpx.Client, *, max_reply_bytes: int = MAX_REPLY_BYTES) -> None:
        self._client, self._max_reply_bytes = client, max_reply_bytes

    def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its whole reply, or the reason without one, by its deadline."""
        outcome = self._begun(send, _left_s(send))
        return outcome if isinstance(outcome, Failure) else self._whole(outcome, send.deadline_s)

    def open(self, send: Send) -> Opened | Reply | Failure:
        """Send a request and return its reply: with status 200 its head, and a `Stream` of the rest."""
        outcome = self._begun(send, max(_STREAM_READ_S, _left_s(send)))
        if isinstance(outcome, Failure):
            return outcome
        is_open = outcome.status_code == 200
        return _opened(outcome, _HttpxStream(outcome)) if is_open else self._whole(outcome, send.deadline_s)

    def close(self) -> None:
        """Leave the client open: it is its owner's."""

    def _begun(self, send: Send, read_s: float) -> httpx.Response | Failure:
        try:
            request = self._client.build_request(**_request(send, read_s))
            return self._client.send(request, stream=True, follow_redirects=False)
        except httpx.HTTPError as error:
            return _failure(error)

    def _whole(self, response: httpx.Response, deadline_s: float) -> Reply | Failure:
        body = _Body(self._max_reply_bytes)
        try:
            for part in response.iter_raw():
                if monotonic() > deadline_s:
                    return LATE
                if (failure := body.add(part)) is not None:
                    return failure
            return body.reply(response)
        except httpx.HTTPError as error:
            return _failure(error)
        finally:
            response.close()


class AsyncHttpxTransport:
    """A transport by an `httpx.AsyncClient`, which its owner configures and closes."""

    def __init__(self, client: httpx.AsyncClient, *, max_reply_bytes: int = MAX_REPLY_BYTES) -> None:
        self._client, self._max_reply_bytes = client, max_reply_bytes

    async def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its whole reply, or the reason without one, by its deadline."""
        return await self._by_deadline(send, self._exchanged(send))

    async def open(self, send: Send) -> Opened | Reply | Failure:
        """Send a request and return its reply: with status 200 its head, and an `AsyncStream` of the rest."""
        return await self._by_deadline(send, self._opened(send))

    async def aclose(self) -> None:
        """Leave the client open: it is its owner's."""

    async def _by_deadline(self, send: Send, doing: Coroutine[Any, Any, T]) -> T | Failure:
        try:
            async with asyncio.timeout(_left_s(send)):
                return await doing
        except TimeoutError:
            return LATE
        except httpx.HTTPError as error:
            return _failure(error)

    async def _exchanged(self, send: Send) -> Reply | Failure:
        return await self._whole(await self._begun(send))

    async def _opened(self, send: Send) -> Opened | Reply | Failure:
        response = await self._begun(send)
        if response.status_code == 200:
            return _opened(response, _AsyncHttpxStream(response))
        return await self._whole(response)

    async def _begun(self, send: Send) -> httpx.Response:
        request = self._client.build_request(**_request(send, None))
        return await self._client.send(request, stream=True, follow_redirects=False)

    async def _whole(self, response: httpx.Response) -> Reply | Failure:
        body = _Body(self._max_reply_bytes)
        try:
            async for part in response.aiter_raw():
                if (failure := body.add(part)) is not None:
                    return failure
            return body.reply(response)
        finally:
            await response.aclose()


class _HttpxStream(BlockingStream):
    """The body of a reply as it comes. A read takes as long as httpx lets it."""

    def __init__(self, response: httpx.Response) -> None:
        self._response, self._parts = response, response.iter_raw()

    def _next(self, deadline_s: float) -> bytes | Failure:
        if monotonic() > deadline_s:
            return LATE
        try:
            return next(self._parts, b"")
        except (httpx.HTTPError, httpx.StreamError) as error:
            return _failure(error)

    def _socket(self) -> socket.socket | None:
        network: Any = self._response.extensions.get("network_stream")
        return None if network is None else cast("socket.socket | None", network.get_extra_info("socket"))

    def _free(self) -> None:
        self._response.close()


class _AsyncHttpxStream:
    """The same for an event loop. A read that was too late ends the stream."""

    def __init__(self, response: httpx.Response) -> None:
        self._response, self._parts = response, response.aiter_raw()
        self._closing: asyncio.Task[None] | None = None

    async def receive(self, deadline_s: float) -> bytes | Failure:
        """See `AsyncStream`."""
        try:
            async with asyncio.timeout(max(0.001, deadline_s - monotonic())):
                return await anext(self._parts, b"")
        except TimeoutError:
            return LATE
        except (httpx.HTTPError, httpx.StreamError) as error:
            return _failure(error)

    def close(self) -> None:
        """See `AsyncStream`. httpx closes by a task; without a loop the connection ends with its client."""
        with suppress(RuntimeError):
            self._closing = asyncio.get_running_loop().create_task(self._response.aclose(), name="close a stream")


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
            return _COMPRESSED
        kind, advice, tag = [response.headers.get(name, "") for name in ("content-type", "retry-after", "etag")]
        return Reply(response.status_code, kind, b"".join(self._parts), advice, tag)


def _opened(response: httpx.Response, stream: object) -> Opened | Failure:
    if response.headers.get("content-encoding", "identity") != "identity":
        return _COMPRESSED
    return Opened(response.headers.get("content-type", ""), dict(response.headers), stream)


def _left_s(send: Send) -> float:
    return max(0.001, send.deadline_s - monotonic())


def _request(send: Send, read_s: float | None) -> dict[str, Any]:
    """Return the arguments of a request; `read_s` is the longest time of a read."""
    return {
        "method": send.request.method,
        "url": send.endpoint.url + send.request.target,
        "content": send.request.body,
        "headers": dict(send.headers),
        "timeout": httpx.Timeout(_left_s(send), read=read_s),
        "extensions": {"sni_hostname": send.endpoint.tls_name} if send.endpoint.tls_name else {},
    }


def _failure(error: httpx.HTTPError | httpx.StreamError) -> Failure:
    why = str(error) or type(error).__name__
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)):
        return Failure(FailureKind.NOT_SENT, f"cannot connect: {why}")
    if isinstance(error, httpx.TimeoutException):
        return LATE
    is_cut = isinstance(error, (httpx.NetworkError, httpx.RemoteProtocolError, httpx.StreamError))
    return Failure(FailureKind.CUT if is_cut else FailureKind.BAD_REPLY, why)
