"""The bus within one process: tests use it instead of Redis, under the same contract (tests/contract/shared/bus).

One event loop uses it, with any number of tasks. No operation awaits, so each is atomic for all tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace

from understudy_shared.base.clock import Clock, SystemClock
from understudy_shared.base.plausible import is_plausible, is_plausible_order
from understudy_shared.bus.base import (
    LONGEST_EXPIRIES,
    LONGEST_LEFT_MS,
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


@dataclass(frozen=True, slots=True)
class _Value:
    """A stored value. `owner` is None if any process may write it; `order` is the (term, epoch) of a fenced value."""

    payload: bytes
    ends_ms: float | None
    owner: str | None = None
    order: tuple[int, int] | None = None


class LocalBus:
    """Keys, leases and a channel in memory."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._values: dict[str, _Value] = {}
        self._leases: dict[str, _Value] = {}
        self._terms: dict[str, int] = {}
        self._inboxes: defaultdict[str, list[Inbox]] = defaultdict(list)
        self._closed = False

    def __repr__(self) -> str:
        readers = sum(map(len, self._inboxes.values()))
        return f"LocalBus({len(self._values)} keys, {readers} readers)"

    async def get(self, key: str) -> Stored | None:
        value = self._living(self._values, key)
        return None if value is None else self._stored(value)

    async def scan(self, prefix: str, *, known: Collection[str] = ()) -> dict[str, Stored]:
        """Return owned values under a prefix, known keys first."""
        self._open()
        found: dict[str, Stored] = {}
        size_bytes = 0
        for key in dict.fromkeys([*known, *self._values]):
            value = self._living(self._values, key) if key.startswith(prefix) else None
            if value is None or value.owner is None or len(value.payload) > MAX_VALUE_BYTES:
                continue
            size_bytes += len(value.payload)
            if len(found) >= MAX_SCANNED or size_bytes > MAX_SCANNED_BYTES:
                break
            found[key] = self._stored(value)
        return found

    async def keys(self, prefix: str, *, limit: int | None = None) -> ListedKeys:
        """List keys of any kind under a prefix."""
        self._open()
        living = [key for values in (self._values, self._leases) for key in [*values] if self._living(values, key)]
        found = [key for key in [*living, *self._terms] if key.startswith(prefix)]
        limit = limit or MAX_SCANNED
        return ListedKeys(found[:limit], len(found) <= limit)

    async def put(self, key: str, payload: bytes, *, expiry_ms: int | None = None) -> None:
        """Write a value that any process may write."""
        self._open()
        self._values[key] = _Value(payload, None if expiry_ms is None else self._end(expiry_ms))

    async def put_owned(self, key: str, owner: str, payload: bytes, *, expiry_ms: int, channel: str) -> bool:
        """Write and publish, unless the key has another owner."""
        if self._is_anothers(key, owner):
            self._shorten(self._values, key, expiry_ms)
            return False
        self._values[key] = _Value(payload, self._end(expiry_ms), owner)
        self._send(channel, payload)
        return True

    async def delete_owned(self, key: str, owner: str, payload: bytes, *, channel: str) -> None:
        """Delete the key and publish, unless it has another owner."""
        if self._is_anothers(key, owner):
            return
        value = self._values.get(key)
        if value is not None and value.owner == owner:
            del self._values[key]
        self._send(channel, payload)

    async def publish(self, channel: str, payload: bytes) -> None:
        self._open()
        self._send(channel, payload)

    async def listen(self, *channels: str) -> AsyncIterator[bytes | Lost | Back]:
        """Yield messages in their order. The subscription never breaks, but a reader that is too slow gets `Lost`."""
        self._open()
        inbox = Inbox()
        inbox.put(Back())
        for each in channels:
            self._inboxes[each].append(inbox)
        try:
            while (heard := await inbox.take()) is not None:
                yield heard
        finally:
            for each in channels:
                self._inboxes[each].remove(inbox)

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
        """Take a free lease under a new term."""
        held = self._living(self._leases, lease_key)
        if held is not None and (over is None or held.owner != over):
            self._shorten(self._leases, lease_key, expiry_ms)
            return None
        fenced = None if fenced_key is None else self._living(self._values, fenced_key)
        stored = (self._terms.get(term_key, 0), 0 if fenced is None or fenced.order is None else fenced.order[0])
        term = max([above, *(each for each in stored if is_plausible(each, above))]) + 1
        self._terms[term_key] = term
        self._leases[lease_key] = _Value(b"", self._end(expiry_ms), owner, (term, 0))
        return term

    async def renew(self, fence: Fence, *, expiry_ms: int) -> bool:
        """Keep the lease; False when it no longer belongs to the fence."""
        if not self._holds(fence):
            return False
        self._leases[fence.lease_key] = _Value(b"", self._end(expiry_ms), fence.owner, (fence.term, 0))
        return True

    async def release(self, fence: Fence) -> None:
        """Give the lease up, if it belongs to the fence."""
        if self._holds(fence):
            del self._leases[fence.lease_key]

    async def lease_holder(self, lease_key: str) -> str | None:
        """Return the owner of the lease; None while it is free."""
        lease = self._living(self._leases, lease_key)
        return None if lease is None else lease.owner

    async def put_fenced(
        self, key: str, payload: bytes, *, epoch: int, fence: Fence, channel: str, change: bytes | None = None
    ) -> bool:
        """Write and publish if the fence holds and (term, epoch) is above that of the stored value."""
        value = self._living(self._values, key)
        order = (fence.term, epoch)
        stored = None if value is None else value.order
        if not self._holds(fence) or (stored is not None and stored >= order and is_plausible_order(stored, order)):
            return False
        self._values[key] = _Value(payload, None, None, order)
        self._send(channel, payload if change is None else change)
        return True

    async def close(self) -> None:
        """End every subscription; later calls are refused."""
        self._closed = True
        for inboxes in self._inboxes.values():
            for inbox in inboxes:
                inbox.end()

    def _open(self) -> None:
        if self._closed:
            raise BusError("the bus was closed", where="in this process")

    def _living(self, values: dict[str, _Value], key: str) -> _Value | None:
        self._open()
        value = values.get(key)
        if value is not None and value.ends_ms is not None and value.ends_ms <= self._clock.monotonic_ms():
            del values[key]
            return None
        return value

    def _is_anothers(self, key: str, owner: str) -> bool:
        value = self._living(self._values, key)
        return value is not None and value.owner not in (None, owner)

    def _shorten(self, values: dict[str, _Value], key: str, expiry_ms: int) -> None:
        """Give a value that would live far too long the expiry of a renewed one."""
        value = values[key]
        if value.ends_ms is None or value.ends_ms > self._end(max(LONGEST_EXPIRIES * expiry_ms, LONGEST_LEFT_MS)):
            values[key] = replace(value, ends_ms=self._end(expiry_ms))

    def _holds(self, fence: Fence) -> bool:
        lease = self._living(self._leases, fence.lease_key)
        return lease is not None and lease.owner == fence.owner and lease.order == (fence.term, 0)

    def _end(self, expiry_ms: int) -> float:
        return self._clock.monotonic_ms() + expiry_ms

    def _stored(self, value: _Value) -> Stored:
        left_ms = None if value.ends_ms is None else int(value.ends_ms - self._clock.monotonic_ms())
        return Stored(value.payload[: MAX_VALUE_BYTES + 1], left_ms)

    def _send(self, channel: str, payload: bytes) -> None:
        for inbox in self._inboxes.get(channel, ()):
            inbox.put(payload)
