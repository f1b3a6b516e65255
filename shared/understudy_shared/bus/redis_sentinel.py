"""Connections to the current primary that sentinels name: a pool for asyncio and one for a thread.

Each new connection asks the sentinels, and the server must then confirm that it is a primary, because a sentinel's
knowledge may be old. Open connections are compared with the sentinels' answer at intervals: a primary that was cut off
and replaced still answers, and a replica accepts PUBLISH without passing it on. While no sentinel answers, open
connections are kept: the server may work although no sentinel does.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from contextlib import suppress
from typing import Any

from redis import asyncio as aio
from redis import sentinel as threads
from redis.asyncio import sentinel as tasks
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.connection import parse_url as parse_url_for_tasks
from redis.connection import Connection, parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from understudy_shared.bus.redis_connection import Parse, SentinelPlace, connection_options
from understudy_shared.bus.redis_replies import OTHER_SHAPE, BadRedisReplyError, BoundedParser, BoundedThreadParser
from understudy_shared.bus.redis_tls import (
    SentinelTlsConnection,
    ThreadSentinelTlsConnection,
    TlsOptions,
    refuse_bad_files,
    with_verified_tls,
)

PRIMARY_CHECK_MS = 2000
"""Longest time that an open connection may stay with a server that is no longer the primary."""

_FAILURE = re.compile(r" - (?:\w+:)?(\w+)")
"""The kind of each sentinel's failure in redis-py's error text; the rest of the text helps no reader."""


class SentinelPool(tasks.SentinelConnectionPool, aio.BlockingConnectionPool):
    """A bounded number of connections to the primary; a call that finds no free one waits."""

    def __init__(self, place: SentinelPlace, *, timeout_s: float, retry: object, **options: Any) -> None:
        """Take the deadline of a call on a connection (`timeout_s`), and the `options` of a BlockingConnectionPool.

        Only files are read. Raises what redis-py raises for options that it does not know, SettingsError for bad files.
        """
        turn_s = _turn_s(place, timeout_s)
        asked = _sentinel_options(place.sentinel_url, parse_url_for_tasks, timeout_s=turn_s, retry=retry)
        ours = {"retry": retry, "parser_class": BoundedParser}
        server_options = _server_options(place, parse_url_for_tasks, SentinelTlsConnection, timeout_s=timeout_s, **ours)
        sentinels = _Sentinel(_shuffled(place), sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
        _bound_replies(sentinels, BoundedParser)
        options = {**server_options, **options, "redis_connect_func": _greet}
        super().__init__(place.service, sentinels, **options)  # type: ignore[no-untyped-call]
        self._check_timeout_s = timeout_s

    async def ensure_connection(self, connection: Any) -> None:
        """Connect this connection to the primary, if it is not connected to it."""
        if connection.is_connected and self.master_address != (connection.host, connection.port):
            await connection.disconnect()  # the primary moved while it was in use
        await super().ensure_connection(connection)

    async def check(self, connection: Any) -> None:
        """Raise redis-py's ConnectionError when sentinels name another primary than this connection's server."""
        with suppress(RedisError, TimeoutError):
            async with asyncio.timeout(self._check_timeout_s):
                await self.get_master_address()  # type: ignore[no-untyped-call]
        primary: Any = self.master_address
        if primary != (connection.host, connection.port):
            raise RedisConnectionError(f"the primary is {primary[0]}:{primary[1]} now")

    async def aclose(self) -> None:
        """Give every connection back, those to sentinels too; no connection may be requested afterwards."""
        try:
            await super().aclose()
        finally:
            await self.sentinel_manager.aclose()


class ThreadSentinelPool(threads.SentinelConnectionPool):
    """One connection to the primary, for a thread that makes one call at a time."""

    def __init__(self, place: SentinelPlace, *, timeout_s: float, retry: object, parser: type) -> None:
        turn_s = _turn_s(place, timeout_s)
        asked = _sentinel_options(place.sentinel_url, parse_url, timeout_s=turn_s, retry=retry)
        ours = {"retry": retry, "parser_class": parser}
        server_options = _server_options(place, parse_url, ThreadSentinelTlsConnection, timeout_s=timeout_s, **ours)
        sentinels = _ThreadSentinel(_shuffled(place), sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
        _bound_replies(sentinels, BoundedThreadParser)
        options = {**server_options, "max_connections": 1, "redis_connect_func": _greet_from_thread}
        super().__init__(place.service, sentinels, **options)  # type: ignore[no-untyped-call]
        self._check_at_s = 0.0

    def get_connection(self, command_name: object = None, *keys: object, **options: object) -> Any:
        """Return a connection to the primary; close an open one first when the primary has moved."""
        if time.monotonic() >= self._check_at_s:
            with suppress(RedisError):
                self.get_master_address()  # type: ignore[no-untyped-call]
            self._check_at_s = time.monotonic() + PRIMARY_CHECK_MS / 1000
        return super().get_connection()

    def close(self) -> None:
        """Give every connection back, those to sentinels too."""
        super().close()
        for sentinel in self.sentinel_manager.sentinels:
            sentinel.close()


class _Sentinel(tasks.Sentinel):
    async def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            host, port = await super().discover_master(service_name)
        except tasks.MasterNotFoundError as error:
            raise tasks.MasterNotFoundError(_unknown(service_name, error)) from None
        except OTHER_SHAPE as error:
            raise _not_a_sentinels(error) from error
        return host, port


class _ThreadSentinel(threads.Sentinel):
    def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            host, port = super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except threads.MasterNotFoundError as error:
            raise threads.MasterNotFoundError(_unknown(service_name, error)) from None
        except OTHER_SHAPE as error:
            raise _not_a_sentinels(error) from error
        return host, port


async def _greet(connection: AbstractConnection) -> None:
    await connection.on_connect()
    await connection.send_command("HELLO")
    _refuse_replica(await connection.read_response())


def _greet_from_thread(connection: Connection) -> None:
    connection.on_connect()  # type: ignore[no-untyped-call]
    connection.send_command("HELLO")  # type: ignore[no-untyped-call]
    _refuse_replica(connection.read_response())


def _refuse_replica(hello: list[Any]) -> None:
    """Raise unless the server is a primary. `hello` alternates names and values; unlike ROLE, HELLO needs no grant."""
    if dict(zip(hello[::2], hello[1::2], strict=True)).get(b"role") != b"master":
        raise RedisConnectionError("the server that the sentinels name is a replica")


def _server_options(
    place: SentinelPlace, parse: Parse, tls_class: type, *, timeout_s: float, **ours: object
) -> dict[str, Any]:
    """Return options for connections to the primary; a pool without a class of its own takes one without TLS."""
    options = connection_options(place.server_url, parse, timeout_s=timeout_s, **ours)
    return with_verified_tls(options, tls_class)


def _sentinel_options(url: str, parse: Parse, *, timeout_s: float, **ours: object) -> dict[str, Any]:
    """Return options for a client of a sentinel. It chooses its connections: `ssl` says whether they use TLS."""
    options = connection_options(url, parse, timeout_s=timeout_s, **ours)
    is_tls = options.pop("connection_class", None) is not None
    if is_tls:
        refuse_bad_files(TlsOptions.of(options))
    return {**options, "ssl": is_tls}


def _bound_replies(sentinels: tasks.Sentinel | threads.Sentinel, parser: type) -> None:
    """Make the clients of the sentinels use this parser; redis-py's clients take no parser argument."""
    for client in sentinels.sentinels:
        client.connection_pool.connection_kwargs["parser_class"] = parser


def _turn_s(place: SentinelPlace, timeout_s: float) -> float:
    """Return the deadline of one sentinel in s: if all but the last hang, time is left for the server."""
    return timeout_s / (len(place.sentinels) + 1)


def _shuffled(place: SentinelPlace) -> list[tuple[str, int]]:
    """Return the sentinels in random order, so that processes do not all ask the same one."""
    return random.SystemRandom().sample(place.sentinels, len(place.sentinels))


def _not_a_sentinels(error: Exception) -> BadRedisReplyError:
    return BadRedisReplyError(
        f"what a sentinel says is not a list of primaries ({type(error).__name__}: {error!s:.80})"
    )


def _unknown(service: str, error: Exception) -> str:
    failures = _FAILURE.findall(str(error))
    rest = f" ({len(failures)} of them failed: {', '.join(sorted(set(failures)))})" if failures else ""
    return f"no sentinel names a living primary of {service!r}{rest}"
