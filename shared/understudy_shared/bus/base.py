"""The bus: keys with an expiry, one channel per application, and writes that only the owner may make.

The bus decides atomically about everything that must hold between processes. No process checks first and then writes:
- an *owned* value is written and deleted by its owner alone, until it expires;
- a *lease* has one owner at a time, and each new owner gets a higher term;
- a *fenced* value is written only by the lease's current owner and term, and its (term, epoch) only grows.

An `Inbox` has the unread messages of one subscriber. A subscriber that is too slow loses them all, and gets `Lost` and
`Back` instead. It then reads the keys again, as after any other loss.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.bus.messages import MAX_MESSAGE_BYTES

MAX_VALUE_BYTES = MAX_MESSAGE_BYTES + 8192
"""Limit on the bytes read of a value, which has a header line and a document. The rest of a longer value is ignored."""

MAX_SCANNED = 4096
"""Limit on the values of one scan: four times the largest planned cluster, the same as in view.py."""

MAX_KEYS_VISITED = 100_000
"""Limit on the keys that one listing visits, of whatever kind: other programs may use the same Redis."""

MAX_SCANNED_BYTES = 64 * 1024 * 1024
"""Limit on the bytes of one scan: an ordinary heartbeat has less than 1 kB."""

LONGEST_EXPIRIES, LONGEST_LEFT_MS = 60, 900_000
"""Limits that reveal an abandoned lease or key. A live owner renews with a short expiry. If more time is left than
LONGEST_LEFT_MS, and than LONGEST_EXPIRIES times the expiry of the process that wants it, no owner renews it, and its
expiry is cut to that of this process.
"""


class BusError(UnderstudyError):
    """The bus cannot be reached, or refused the call. It is unknown whether anything was written: try again later."""


class BusRefusedError(BusError):
    """The bus answered and refused the call: reading and publishing may still work."""


class Stored(NamedTuple):
    """A value, and the time until it expires (None: never)."""

    payload: bytes
    left_ms: int | None


class ListedKeys(NamedTuple):
    """Keys that exist. `is_all` is False when there may be more than were read."""

    found: list[str]
    is_all: bool


class Lost(NamedTuple):
    """The subscription broke: messages may be lost. The reader must read the keys again after the next `Back`."""

    why: str


class Back(NamedTuple):
    """The subscription works, at first or again after a loss. A subscriber that now reads the keys misses nothing."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to write: it belongs to the owner of `lease_key` under `term`."""

    lease_key: str
    owner: str
    term: int


class Bus(Protocol):
    """The contract of a bus. Payloads are bytes, keys text. Calls raise BusError when they miss their deadline."""

    async def get(self, key: str) -> Stored | None:
        """Return the payload of `put`, `put_owned` or `put_fenced`; an empty one if another program wrote the value."""

    async def scan(self, prefix: str, *, known: Collection[str] = ()) -> dict[str, Stored]:
        """Return owned values whose key begins with `prefix`: those of `known` keys first, then others up to
        MAX_SCANNED values and MAX_SCANNED_BYTES.
        """

    async def keys(self, prefix: str, *, limit: int | None = None) -> ListedKeys:
        """List keys of any kind that begin with `prefix`: up to `limit` (MAX_SCANNED), of MAX_KEYS_VISITED at most."""

    async def put(self, key: str, payload: bytes, *, expiry_ms: int | None = None) -> None:
        """Write a value that any process may write."""

    async def put_owned(self, key: str, owner: str, payload: bytes, *, expiry_ms: int, channel: str) -> bool:
        """Write and publish `payload`, unless the key has another owner: False then, and nothing was written."""

    async def delete_owned(self, key: str, owner: str, payload: bytes, *, channel: str) -> None:
        """Delete the key and publish `payload`, unless the key has another owner."""

    async def publish(self, channel: str, payload: bytes) -> None:
        """Publish to the current subscribers."""

    def listen(self, *channels: str) -> AsyncIterator[bytes | Lost | Back]:
        """Yield messages in order, with `Back` when the subscription works and `Lost` when it broke. It never ends by
        itself and never raises BusError; it reconnects with growing, jittered pauses. Its queue is bounded: a
        subscriber that is too slow gets `Lost`.
        """

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
        """Take a free lease, and return its new term; None while the lease has an owner. The term is above all earlier
        terms, above `above`, and above the term of the value under `fenced_key`. A stored term that cannot plausibly
        follow `above` (plausible.py) is ignored. A lease whose owner is `over` counts as free.
        """

    async def renew(self, fence: Fence, *, expiry_ms: int) -> bool:
        """Keep the lease; False when it no longer belongs to the fence."""

    async def release(self, fence: Fence) -> None:
        """Release the lease, if it belongs to the fence."""

    async def lease_holder(self, lease_key: str) -> str | None:
        """Return the owner of the lease; None while it is free."""

    async def put_fenced(
        self, key: str, payload: bytes, *, epoch: int, fence: Fence, channel: str, change: bytes | None = None
    ) -> bool:
        """Write and publish if the fence holds and (term, epoch) is above that of the stored value; else False.

        If `change` is given, it is published instead of the payload.

        A stored (term, epoch) that is implausible beside the new one (plausible.py) is ignored.
        """

    async def close(self) -> None:
        """Close all connections."""


MAX_MESSAGES = 10_000
MAX_BYTES = 64 * 1024 * 1024
"""Limit on the waiting bytes: sixteen messages of the largest size; an ordinary heartbeat has less than 1 kB."""

Heard = bytes | Lost | Back


class Inbox:
    """Messages in the order of arrival."""

    def __init__(self, *, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._waiting: deque[Heard] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._end: BaseException | None = None
        self._ended = False

    def put(self, heard: Heard) -> None:
        """Store a message. If there is no room, drop all messages and store `Lost` in their place."""
        if self._ended:
            return
        self._waiting.append(heard)
        self._bytes += _size(heard)
        if len(self._waiting) > self._max_messages or self._bytes > self._max_bytes:
            self._overflow(heard)
        self._arrived.set()

    def end(self, error: BaseException | None = None) -> None:
        """End the inbox: after the waiting messages the reader gets `error`, if there is one."""
        self._ended = True
        self._end = self._end or error
        self._arrived.set()

    async def take(self) -> Heard | None:
        """Wait for the next message; None after the end."""
        while not self._waiting:
            if self._end is not None:
                raise self._end
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        heard = self._waiting.popleft()
        self._bytes -= _size(heard)
        return heard

    def _overflow(self, last: Heard) -> None:
        why = f"more than {self._max_messages} messages or {self._max_bytes} bytes waited: the reader is too slow"
        self._waiting.clear()
        self._bytes = 0
        self._waiting.append(Lost(why))
        if not isinstance(last, Lost):
            self._waiting.append(Back())


def _size(heard: Heard) -> int:
    return len(heard) if isinstance(heard, bytes) else 0
