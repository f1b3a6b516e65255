"""The bus over Redis or Valkey: each operation of the contract is one command or one script inside the server.

Only a broken subscription is retried here. Any other call fails within its deadline and with a reason, and its caller
decides about a retry: a caller that renews a lease or a key calls again in its next turn.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any
from urllib.parse import quote

import redis.asyncio as redis
from redis.exceptions import RedisError

from understudy_shared.base.masking import masked
from understudy_shared.base.plausible import limit_above
from understudy_shared.bus import redis_scripts as scripts
from understudy_shared.bus.base import (
    MAX_KEYS_VISITED,
    MAX_SCANNED,
    MAX_SCANNED_BYTES,
    MAX_VALUE_BYTES,
    Back,
    BusError,
    Fence,
    Inbox,
    ListedKeys,
    Lost,
    Stored,
)
from understudy_shared.bus.redis_connection import (
    FAILURES,
    OTHER_SHAPE,
    Refusals,
    bus_error,
    checked,
    closed_transport_as_os_error,
)
from understudy_shared.bus.redis_pools import TaskPool
from understudy_shared.bus.redis_subscription import Subscription

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
"""Limit on the calls in flight. Further calls wait, within their deadlines."""

SCAN_COUNT = 1000
SCAN_DEADLINES = 5
"""A scan may take this many deadlines: it needs several round trips, and more if applications share the database."""

_Found = dict[str, tuple[scripts.OpenedValue | None, int | None]]
"""Values by key (None: another program wrote the value), with their remaining expiry in ms."""


READ_AT_ONCE = 1000


def batched(keys: Iterable[str]) -> Iterator[list[str]]:
    """Yield the keys in groups, each for one round trip."""
    waiting = iter(keys)
    while few := list(islice(waiting, READ_AT_ONCE)):
        yield few


def pattern_of(prefix: str) -> str:
    """Return the pattern of SCAN for keys that begin with `prefix`."""
    return re.sub(r"([*?\[\]\\^-])", r"\\\1", prefix) + "*"


def decoded(keys: Iterable[bytes | str]) -> list[str]:
    """Return keys as text."""
    return [key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key) for key in keys]


class RedisBus:
    """Keys and channels in a Redis that other programs may use, too. `Bus` documents the calls."""

    def __init__(self, url: str, *, call_timeout_ms: int = 1000) -> None:
        """Prepare the connections without opening one. Raises SettingsError for a URL that names no Redis."""
        self.where = masked(url)
        self._url = url
        self._timeout_ms = call_timeout_ms
        timeout_s = call_timeout_ms / 1000
        self._pool = checked(url, lambda: TaskPool(url, timeout_s=timeout_s, max_connections=MAX_CONNECTIONS))
        checked(url, self._pool.make_connection)
        self._client: redis.Redis = redis.Redis(connection_pool=self._pool)
        self._subscription: Subscription | None = None
        """The connection of the listeners; `None` without listeners."""
        self._closed = False
        self._refusals = Refusals()
        self._random = random.SystemRandom()
        self._bounded = 0
        """The number of scans that left values out."""

    def __repr__(self) -> str:
        return f"RedisBus({self.where}, {len(self._subscription or ())} readers)"

    async def get(self, key: str) -> Stored | None:
        """Return the value under a key; an empty payload if another program wrote it."""
        found: _Found = await self._call(f"reading {key}", lambda: self._read([key]))
        if key not in found:
            return None
        value, left_ms = found[key]
        return Stored(b"" if value is None else value.payload, left_ms)

    async def scan(self, prefix: str, *, known: Collection[str] = ()) -> dict[str, Stored]:
        found: _Found = await self._call(
            f"scanning {prefix}*", lambda: self._scan(prefix, known), limit_ms=SCAN_DEADLINES * self._timeout_ms
        )
        return {
            key: Stored(value.payload, left_ms)
            for key, (value, left_ms) in found.items()
            if value is not None and value.kind == b"owned"
        }

    async def keys(self, prefix: str, *, limit: int | None = None) -> ListedKeys:
        found: ListedKeys = await self._call(
            f"listing {prefix}*",
            lambda: self._list(prefix, limit or MAX_SCANNED),
            limit_ms=SCAN_DEADLINES * self._timeout_ms,
        )
        return found

    async def put(self, key: str, payload: bytes, *, expiry_ms: int | None = None) -> None:
        await self._call(f"writing {key}", lambda: self._client.set(key, scripts.PUT + payload, px=expiry_ms))
        await self._wrote()

    async def put_owned(self, key: str, owner: str, payload: bytes, *, expiry_ms: int, channel: str) -> bool:
        arguments = (scripts.owned(owner), payload, expiry_ms, channel)
        return bool(await self._run(scripts.PUT_OWNED, [key], *arguments, doing=f"writing {key}"))

    async def delete_owned(self, key: str, owner: str, payload: bytes, *, channel: str) -> None:
        arguments = (scripts.owned(owner), payload, channel)
        await self._run(scripts.DELETE_OWNED, [key], *arguments, doing=f"deleting {key}")

    async def publish(self, channel: str, payload: bytes) -> None:
        await self._call(f"publishing on {channel}", lambda: self._client.publish(channel, payload))

    async def acquire(
        self,
        lease_key: str,
        term_key: str,
        owner: str,
        *,
        above: int,
        expiry_ms: int,
        fenced_key: str | None = None,
        over: str | None = None,
    ) -> int | None:
        keys = [lease_key, term_key, fenced_key or term_key]
        replaced = "" if over is None else quote(over, safe="")
        arguments = (quote(owner, safe=""), above, expiry_ms, limit_above(above), replaced)
        term = await self._run(scripts.ACQUIRE, keys, *arguments, doing=f"taking {lease_key}")
        if term < 0:
            log.warning(
                "a term in %s or %s cannot follow %d: terms go on from %d", term_key, fenced_key, above, -term,
                extra={"action": "absurd-term", "term": -term},
            )  # fmt: skip
        return abs(term) or None

    async def renew(self, fence: Fence, *, expiry_ms: int) -> bool:
        key = fence.lease_key
        value = scripts.lease(fence.owner, fence.term)
        return bool(await self._run(scripts.RENEW, [key], value, expiry_ms, doing=f"keeping {key}"))

    async def release(self, fence: Fence) -> None:
        key = fence.lease_key
        await self._run(scripts.RELEASE, [key], scripts.lease(fence.owner, fence.term), doing=f"giving up {key}")

    async def lease_holder(self, lease_key: str) -> str | None:
        """Return the owner of the lease; None while it is free, or if another program wrote the value."""
        found: _Found = await self._call(f"reading {lease_key}", lambda: self._read([lease_key]))
        opened, _ = found.get(lease_key, (None, None))
        return None if opened is None else scripts.holder_of(opened)

    async def put_fenced(
        self, key: str, payload: bytes, *, epoch: int, fence: Fence, channel: str, change: bytes | None = None
    ) -> bool:
        told = (channel, limit_above(fence.term), limit_above(epoch), *(() if change is None else (change,)))
        arguments = (scripts.lease(fence.owner, fence.term), fence.term, epoch, payload, *told)
        keys = [fence.lease_key, key]
        return bool(await self._run(scripts.PUT_FENCED, keys, *arguments, doing=f"writing {key}"))

    async def listen(self, *channels: str) -> AsyncIterator[bytes | Lost | Back]:
        """Yield messages in their order. All listeners share one connection, which is open while there are any."""
        self._open()
        inbox = Inbox()
        subscription = self._subscription
        if subscription is None:
            subscription = self._subscription = Subscription(self._pool, self._failed, timeout_ms=self._timeout_ms)
            subscription.start()
        subscription.add(inbox, *channels)
        try:
            while (heard := await inbox.take()) is not None:
                yield heard
        finally:
            subscription.remove(inbox)
            if not subscription and self._subscription is subscription:
                self._subscription = None
                await subscription.stop()

    async def close(self) -> None:
        """End every subscription and give connections back; later calls are refused."""
        self._closed = True
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.stop()  # Stop it now, so that it asks for no connection after this.
        await self._client.aclose()
        await self._pool.aclose()

    async def _read(self, keys: list[str]) -> _Found:
        """Return the value under each key that exists, and its remaining expiry."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.getrange(key, 0, MAX_VALUE_BYTES)
            pipeline.pttl(key)
        replies = await pipeline.execute(raise_on_error=False)
        found: _Found = {}
        for key, value, left_ms in zip(keys, replies[::2], replies[1::2], strict=True):
            if isinstance(left_ms, RedisError):
                raise left_ms
            if not isinstance(left_ms, int):
                raise TypeError("PTTL")
            if isinstance(value, RedisError) and not str(value).startswith("WRONGTYPE"):
                raise value
            if left_ms != -2:  # -2: the key does not exist, or expired between the two commands
                is_ours = isinstance(value, bytes)
                found[key] = (scripts.opened(value) if is_ours else None, None if left_ms == -1 else left_ms)
        return found

    async def _scan(self, prefix: str, known: Collection[str]) -> _Found:
        """Read values up to a number and a size, so that a full database cannot fill this process."""
        pattern = pattern_of(prefix)
        found: _Found = {}
        keys = list(known)
        left_bytes, cursor = MAX_SCANNED_BYTES, None
        while True:
            for few in batched(dict.fromkeys(key for key in keys if key not in found)):
                lengths = await self._lengths(few)
                fitting = [key for key, length in lengths.items() if 0 < length <= MAX_VALUE_BYTES]
                fitting = fitting[: MAX_SCANNED - len(found)]
                while sum(lengths[key] for key in fitting) > left_bytes:
                    fitting.pop()
                left_bytes -= sum(lengths[key] for key in fitting)
                found |= await self._read(fitting)
                if len(found) >= MAX_SCANNED or left_bytes <= 0:
                    self._note_bounded(prefix)
                    return found
            if cursor == 0:
                return found
            cursor, raw = await self._client.scan(cursor or 0, match=pattern, count=SCAN_COUNT)
            keys = decoded(raw)

    async def _list(self, prefix: str, limit: int) -> ListedKeys:
        """List keys within the limits on visits, because a large database of other programs is not fully searched."""
        found: dict[str, None] = {}  # SCAN may name a key twice
        cursor = 0
        for _ in range(MAX_KEYS_VISITED // SCAN_COUNT):
            cursor, raw = await self._client.scan(cursor, match=pattern_of(prefix), count=SCAN_COUNT)
            found |= dict.fromkeys(decoded(raw))
            if cursor == 0 or len(found) > limit:
                break
        return ListedKeys(list(found)[:limit], cursor == 0 and len(found) <= limit)

    def _note_bounded(self, prefix: str) -> None:
        self._bounded += 1
        if self._bounded & (self._bounded - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
            text = "there is more under %s* than is read: find out what writes it"
            log.warning(text, prefix, extra={"action": "scan-bounded", "count": self._bounded})

    async def _lengths(self, keys: Sequence[str]) -> dict[str, int]:
        """Return the size of each value in bytes; 0 for a value that is not a string."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.strlen(key)
        replies = await pipeline.execute(raise_on_error=False)
        return {key: length if isinstance(length, int) else 0 for key, length in zip(keys, replies, strict=True)}

    async def _run(self, script: str, keys: list[str], *arguments: bytes | str | int, doing: str) -> int:
        """Run a script and return its result."""

        async def work() -> int:
            return int(await self._client.eval(script, len(keys), *keys, *arguments))

        result: int = await self._call(doing, work)
        if result:
            await self._wrote()
        return result

    async def _call(self, doing: str, work: Callable[[], Any], *, limit_ms: int | None = None) -> Any:
        """Do the work within its deadline. Raises BusError."""
        self._open()
        try:
            with closed_transport_as_os_error():
                async with asyncio.timeout((limit_ms or self._timeout_ms) / 1000):
                    return await work()
        except FAILURES as error:
            if isinstance(error, OTHER_SHAPE):
                await self._pool.leave()  # The next bytes on this connection may not be a reply either.
            elif self._refusals.refused(
                error, asyncio.get_running_loop().time(), self._random.random(), opened=self._pool.opened
            ):
                await self._leave(doing, error)
            raise self._failed(error, doing) from error

    async def _leave(self, doing: str, error: BaseException) -> None:
        """Close connections to a server that does not act as a primary: its address may lead to another server now."""
        await self._pool.leave()
        if self._refusals.left == 1:
            log.warning("connects again: %s", self._failed(error, doing), extra={"action": "bus-left"})
            if self._subscription is not None:
                self._subscription.connect_again(f"the server refused {doing}")

    async def _wrote(self) -> None:
        """Record that a primary accepted a write. Other connections may still lead to a server that refused."""
        if self._refusals.accepted(opened=self._pool.opened):
            await self._pool.leave()
            if self._subscription is not None:
                self._subscription.connect_again("the server of the calls has changed")

    def _failed(self, error: BaseException, doing: str) -> BusError:
        return bus_error(error, doing=doing, url=self._url, timeout_ms=self._timeout_ms)

    def _open(self) -> None:
        if self._closed:
            raise BusError("the bus was closed", where=self.where)
