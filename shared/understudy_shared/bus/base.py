"""The bus: keys with an expiry, one channel per application, and writes that only their owner may do.

Everything that must hold between processes is decided in one step inside the bus, never by a check before a write:
- a *owned* value is written and deleted by its owner alone, until it expires;
- a *lease* has one owner at a time, and each change of hands has a higher term;
- a *fenced* value is written only by the lease's current owner and term, and its (term, epoch) only grows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from understudy_shared.errors import UnderstudyError
from understudy_shared.messages import MAX_MESSAGE_BYTES

MAX_VALUE_BYTES = MAX_MESSAGE_BYTES + 8192
"""Of one value that is read: a document, and what stands before it. Of a longer one the rest is not read."""

MAX_SCANNED = 4096
"""Values of one scan: four times the largest cluster that is planned for, as in crowd.py."""

MAX_KEYS_VISITED = 100_000
"""Keys of any kind that one listing of keys looks at: others may use the same Redis."""

MAX_SCANNED_BYTES = 64 * 1024 * 1024
"""Of one scan: ordinary heartbeats have less than 1 kB."""

LONGEST_EXPIRIES, LONGEST_LEFT_MS = 60, 900_000
"""A lease or an owned key that lives on for longer than so many expiries of the process that wants it, and than this,
was written by none that renews it: it gets the expiry of one.
"""


class BusError(UnderstudyError):
    """The bus cannot be reached, or refused: try again later; nothing is known to have been written."""


class BusRefusedError(BusError):
    """The bus answered, and refused: reading and publishing may still work."""


class Stored(NamedTuple):
    """A value, and how long it lives on (None: for ever)."""

    payload: bytes
    left_ms: int | None


class Keys(NamedTuple):
    """Keys that exist. `is_all` is False when there may be more than were read."""

    found: list[str]
    is_all: bool


class Lost(NamedTuple):
    """The subscription broke: messages may have been missed since. What is held must be read again when it is back."""

    why: str


class Back(NamedTuple):
    """The subscription stands (at first, and after each loss): keys that are read now miss no later message."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Who may write: the owner of `lease_key` under `term`."""

    lease_key: str
    owner: str
    term: int


class Bus(Protocol):
    """Every call raises BusError when the bus cannot do it within its deadline. Payloads are bytes, keys are text."""

    async def get(self, key: str) -> Stored | None:
        """The payload of `put`, `put_owned` or `put_fenced`; an empty one if no bus wrote what stands there."""

    async def scan(self, prefix: str, *, known: Collection[str] = ()) -> dict[str, Stored]:
        """Owned values whose key begins with `prefix`; what is not owned is left out. Those of `known` keys first, then
        others up to MAX_SCANNED values and MAX_SCANNED_BYTES.
        """

    async def keys(self, prefix: str) -> Keys:
        """Keys of any kind that begin with `prefix`: up to MAX_SCANNED, from MAX_KEYS_VISITED at most."""

    async def put(self, key: str, payload: bytes, *, expiry_ms: int | None = None) -> None:
        """Write a value that anybody may write."""

    async def put_owned(self, key: str, owner: str, payload: bytes, *, expiry_ms: int, channel: str) -> bool:
        """Write and publish `payload`, unless the key has another owner: False then, and nothing happened."""

    async def delete_owned(self, key: str, owner: str, payload: bytes, *, channel: str) -> None:
        """Delete the key if it is the owner's, and publish `payload`. When it has another owner, nothing happens."""

    async def publish(self, channel: str, payload: bytes) -> None:
        """Publish to the current subscribers."""

    def listen(self, channel: str) -> AsyncIterator[bytes | Lost | Back]:
        """Messages as they come, with `Back` when the subscription stands and `Lost` when it broke. Never ends by
        itself, never raises BusError; reconnects with growing, jittered pauses. Its queue is bounded: a reader that is
        too slow gets `Lost`.
        """

    async def acquire(
        self, lease_key: str, term_key: str, owner: str, *, above: int, expiry_ms: int, fenced_key: str | None = None
    ) -> int | None:
        """Take a free lease under a new term, higher than any before, than `above`, and than that of the value under
        `fenced_key`; None when somebody has it. A stored term that cannot follow `above` (plausible.py) counts as none.
        """

    async def renew(self, fence: Fence, *, expiry_ms: int) -> bool:
        """Keep the lease; False when it is no longer the fence's."""

    async def release(self, fence: Fence) -> None:
        """Give the lease up, if it is the fence's."""

    async def lease_holder(self, lease_key: str) -> str | None:
        """Who has the lease."""

    async def put_fenced(self, key: str, payload: bytes, *, epoch: int, fence: Fence, channel: str) -> bool:
        """Write and publish, if the fence holds and (term, epoch) is above what the key has; else False. What the key
        has counts as nothing if it cannot be, beside the (term, epoch) that is to be written (plausible.py).
        """

    async def close(self) -> None:
        """Give connections back."""
