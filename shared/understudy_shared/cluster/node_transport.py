"""The HTTP transport of calls to nodes: httpx's own, with connections that a cancelled call cannot leave open.

httpcore closes the connections that a pool no longer needs one after the other, within some request, and waits for each
of them. If that request is cancelled meanwhile, the rest stay open, as does one whose TLS handshake is cancelled.
"""

# ruff: noqa: ASYNC109  # httpcore names the parameters

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable

import anyio._backends._asyncio  # noqa: F401  # otherwise the first call imports it, and for 65 ms no lookup is answered
import httpcore
import httpx

CLOSE_TIMEOUT_S = 1.0
"""Deadline of the connections that still close when their transport does."""


class NodeTransport(httpx.AsyncHTTPTransport):
    """A transport that reports every failed connection as a ConnectError, and has closed them all after `aclose`."""

    def __init__(self, *, verify: ssl.SSLContext | bool, limits: httpx.Limits) -> None:
        # Nodes are reached directly, whatever proxy the environment names.
        super().__init__(verify=verify, limits=limits, trust_env=False)
        self._closing: set[asyncio.Task[None]] = set()
        self._pool._network_backend = _Connections(self._closing)  # noqa: SLF001  # httpx has no argument for it

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except (AttributeError, OSError) as error:
            # If the peer resets a connection while it is made, there is no socket any more, and anyio raises an
            # AttributeError because it asks the socket for its peer's name.
            raise httpx.ConnectError(str(error), request=request) from error

    async def aclose(self) -> None:
        await super().aclose()
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_TIMEOUT_S)


class _Connections(httpcore.AnyIOBackend):
    """The maker of a pool's connections. `closing` has the tasks that close some."""

    def __init__(self, closing: set[asyncio.Task[None]]) -> None:
        self._closing = closing

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Connection(await super().connect_tcp(host, port, timeout, local_address, socket_options), self._closing)


class _Connection(httpcore.AsyncNetworkStream):
    """A connection whose `aclose` never waits: it starts a task that closes it."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, closing: set[asyncio.Task[None]]) -> None:
        self._stream = stream
        self._closing = closing

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        task = asyncio.get_running_loop().create_task(self._stream.aclose(), name="close a connection")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        try:
            return _Connection(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._closing)
        except BaseException:
            await self.aclose()
            raise

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)
