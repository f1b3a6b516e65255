"""Connections of redis-py to the Redis of a URL: a bounded pool for the tasks of a loop, and one for a thread.

Files for TLS are read when a pool is made, so that a wrong one is refused at the start; calls open the connections. The
caller of a failed call decides about a retry, within its own deadline. With Sentinel, each new connection asks the
sentinels for the primary, and the server must then confirm that it is one, because a sentinel may be out of date. While
the sentinels are silent, open connections are kept: the server may work without them.

`TaskPool` keeps the books of redis-py's pool by itself. When the bus leaves a server, free connections are closed
at once, and busy ones when their call ends. Giving a place back never waits, so a call gives it back wherever, and
however often, it is cancelled.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import redis
from redis import asyncio as aio
from redis import sentinel as threads
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.connection import parse_url as parse_url_for_tasks
from redis.asyncio.retry import Retry as RetryOfTasks
from redis.backoff import NoBackoff
from redis.connection import Connection, parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from understudy_shared.bus.redis_connection import (
    Parse,
    SentinelPlace,
    connection_options,
    refuse_bad_files,
    sentinel_place,
)

PRIMARY_CHECK_MS = 2000
"""Longest time that an open connection may stay with a server that is no longer the primary."""

_IS_REPLICA = "the server that the sentinels name is a replica"


class TaskPool(aio.ConnectionPool):
    """At most `max_connections` connections for calls; a call that finds no free place waits."""

    def __init__(self, url: str, *, timeout_s: float, max_connections: int) -> None:
        """Read files only. Raises SettingsError for bad files, and redis-py's errors for options that it rejects."""
        place = sentinel_place(url)
        self._place = place
        self._sentinels: aio.Sentinel | None = None
        retry = RetryOfTasks(NoBackoff(), 0)
        server_url = url if place is None else place.server_url
        options = connection_options(server_url, parse_url_for_tasks, timeout_s=timeout_s, retry=retry)
        refuse_bad_files(options)
        if place is not None:
            asked = _sentinel_options(place, parse_url_for_tasks, timeout_s=timeout_s, retry=retry)
            self._sentinels = aio.Sentinel(_shuffled(place), sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
        self._places = asyncio.Semaphore(max_connections)
        self._idle: list[AbstractConnection] = []
        self._used: set[AbstractConnection] = set()
        self._primary: tuple[str, int] | None = None
        self._timeout_s = timeout_s
        self.opened = 0
        """The number of connections that were opened for calls."""
        super().__init__(**options)

    async def connect(self) -> AbstractConnection:
        """Open a connection to the primary, outside of the pool. The caller must disconnect it."""
        connection: AbstractConnection = self.make_connection()  # type: ignore[no-untyped-call]
        try:
            if self._sentinels is not None:
                primary: Any = connection
                primary.host, primary.port = await self._ask_sentinels(self._sentinels)
            await connection.connect()  # type: ignore[no-untyped-call]
            if self._sentinels is not None and not await is_primary(connection):
                raise RedisConnectionError(_IS_REPLICA)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def get_connection(self, command_name: object = None, *keys: object, **options: object) -> AbstractConnection:
        """Take a connection without unread bytes."""
        await self._places.acquire()
        try:
            connection = await self._kept()
            if connection is None:
                connection = await self.connect()
                self.opened += 1
        except BaseException:
            self._places.release()
            raise
        self._used.add(connection)
        return connection

    async def release(self, connection: AbstractConnection) -> None:
        """Take a connection back, and close it if the pool has left its server. Never waits."""
        self._used.discard(connection)
        self._places.release()
        if connection.is_connected and not connection.should_reconnect():  # type: ignore[no-untyped-call]
            self._idle.append(connection)
        else:
            await connection.disconnect(nowait=True)

    async def leave(self) -> None:
        """Close free connections now, and busy ones when their calls give them back."""
        for connection in self._used:
            connection.mark_for_reconnect()  # type: ignore[no-untyped-call]
        await self.disconnect(inuse_connections=False)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close free connections; with `inuse_connections` also busy ones."""
        idle, self._idle = self._idle, []
        for connection in [*idle, *(self._used if inuse_connections else ())]:
            await connection.disconnect(nowait=True)

    async def check(self, connection: AbstractConnection, *, was_primary: bool) -> None:
        """Raise redis-py's ConnectionError if the server of this connection is no longer the primary.

        Without sentinels, it is no longer the primary if the role of the calls' server differs from the role at the
        start of this connection: it has become a replica, or the address leads to another server.
        """
        found: Any = connection
        changed = False
        with suppress(RedisError, OSError):
            async with asyncio.timeout(self._timeout_s):
                if self._sentinels is not None:
                    await self._ask_sentinels(self._sentinels)
                else:
                    changed = was_primary != await self._is_primary()
        if changed:
            raise RedisConnectionError("its server, or the one that its address leads to, has changed its part")
        if self._primary is not None and self._primary != (found.host, found.port):
            raise RedisConnectionError(f"the primary is {self._primary[0]}:{self._primary[1]} now")

    async def aclose(self) -> None:
        """Close all connections, also those to sentinels, and wait until they are closed, so that the loop may end."""
        connections = [*self._idle, *self._used]
        self._idle = []
        try:
            await asyncio.gather(*(each.disconnect() for each in connections), return_exceptions=True)
        finally:
            if self._sentinels is not None:
                await self._sentinels.aclose()

    async def _kept(self) -> AbstractConnection | None:
        """Take a free connection on which nothing has arrived, not even its end."""
        while self._idle:
            connection = self._idle.pop()
            with suppress(RedisError, OSError):
                if not await connection.can_read():
                    return connection
            await connection.disconnect(nowait=True)
        return None

    async def _ask_sentinels(self, sentinels: aio.Sentinel) -> tuple[str, int]:
        """Return the primary's address. If it has changed, leave the old connections."""
        assert self._place is not None
        host, port = await sentinels.discover_master(self._place.service)
        if self._primary != (host, port):
            self._primary = (host, port)
            await self.leave()
        return host, port

    async def _is_primary(self) -> bool:
        """Whether the server of the calls is a primary. Leave it if not: the address may lead to another server now."""
        connection = await self.get_connection()
        try:
            primary = await is_primary(connection)
        finally:
            await self.release(connection)
        if not primary:
            await self.leave()
        return primary


async def is_primary(connection: AbstractConnection) -> bool:
    """Ask a server for its role. HELLO needs no grant, unlike ROLE. A server without HELLO counts as a primary."""
    await connection.send_command("HELLO")
    try:
        return says_primary(await connection.read_response())
    except ResponseError:
        return True


def thread_pool(url: str, *, timeout_s: float) -> redis.ConnectionPool:
    """Make a pool of one connection for a thread that makes one call at a time. Raises SettingsError."""
    place = sentinel_place(url)
    retry = Retry(NoBackoff(), 0)
    server_url = url if place is None else place.server_url
    options = connection_options(server_url, parse_url, timeout_s=timeout_s, retry=retry)
    refuse_bad_files(options)
    pool = (
        redis.ConnectionPool(**{**options, "max_connections": 1})
        if place is None
        else ThreadSentinelPool(place, options, timeout_s=timeout_s, retry=retry)
    )
    pool.connection_class(**pool.connection_kwargs)  # it refuses options that it does not know
    return pool


class ThreadSentinelPool(threads.SentinelConnectionPool):
    """One connection to the primary, for a thread that makes one call at a time."""

    def __init__(self, place: SentinelPlace, options: Mapping[str, Any], *, timeout_s: float, retry: object) -> None:
        asked = _sentinel_options(place, parse_url, timeout_s=timeout_s, retry=retry)
        sentinels = threads.Sentinel(_shuffled(place), sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
        ours = {**options, "ssl": "connection_class" in options, "max_connections": 1, "redis_connect_func": _greet}
        ours.pop("connection_class", None)
        super().__init__(place.service, sentinels, **ours)  # type: ignore[no-untyped-call]
        self._check_at_s = 0.0

    def get_connection(self, command_name: object = None, *keys: object, **options: object) -> Any:
        """Return a connection to the primary. If the primary has moved, close the open connection first."""
        if time.monotonic() >= self._check_at_s:
            with suppress(RedisError):
                self.get_master_address()  # type: ignore[no-untyped-call]
            self._check_at_s = time.monotonic() + PRIMARY_CHECK_MS / 1000
        return super().get_connection()

    def close(self) -> None:
        """Close all connections, also those to sentinels."""
        super().close()
        for sentinel in self.sentinel_manager.sentinels:
            sentinel.close()


def leave_replica(client: redis.Redis) -> None:
    """Close the connection of a client if its server is a replica: the address may lead to a primary now.

    A replica accepts PUBLISH, but subscribers of the primary do not get the message. Raises redis-py's ConnectionError
    if the next connection leads to a replica, too.
    """
    for _ in range(2):
        try:
            if says_primary(client.execute_command("HELLO")):  # type: ignore[no-untyped-call]
                return
        except ResponseError:  # it does not know HELLO
            return
        client.connection_pool.disconnect()
    raise RedisConnectionError("its server is a replica")


def says_primary(hello: Any) -> bool:
    """Whether the answer to HELLO is a primary's: names and values in turn, or a mapping."""
    said = hello if isinstance(hello, Mapping) else dict(zip(hello[::2], hello[1::2], strict=True))
    return bool(said.get(b"role", said.get("role")) in (b"master", "master"))


def _greet(connection: Connection) -> None:
    connection.on_connect()  # type: ignore[no-untyped-call]
    connection.send_command("HELLO")  # type: ignore[no-untyped-call]
    if not says_primary(connection.read_response()):
        raise RedisConnectionError(_IS_REPLICA)


def _sentinel_options(place: SentinelPlace, parse: Parse, *, timeout_s: float, retry: object) -> dict[str, Any]:
    """Return options for a client of a sentinel. Its deadline leaves time for the server, even if all sentinels but the
    last one hang.

    The client chooses its connection class: `ssl` says whether it uses TLS.
    """
    turn_s = timeout_s / (len(place.sentinels) + 1)
    options = connection_options(place.sentinel_url, parse, timeout_s=turn_s, retry=retry)
    refuse_bad_files(options)
    is_tls = options.pop("connection_class", None) is not None
    return {**options, "ssl": is_tls}


def _shuffled(place: SentinelPlace) -> list[tuple[str, int]]:
    """Return the sentinels in random order, so that processes do not all ask the same one."""
    return random.SystemRandom().sample(place.sentinels, len(place.sentinels))
