"""The names of a lease and its channel, and taking it, for tests of the bus."""

from __future__ import annotations

from tests.support.bus.documents import eventually

from understudy_shared.bus.base import Bus, Fence

CHANNEL = "us:{flights}:events"
LEASE, TERM = "us:{flights}:lease", "us:{flights}:term"
LONG_MS, SHORT_MS = 600_000, 20
"""An expiry that no test lives to see, and one that a test waits for."""


async def taken(bus: Bus, owner: str, *, above: int = 0, expiry_ms: int = LONG_MS) -> Fence:
    """The lease, which is free."""
    term = await bus.acquire(LEASE, TERM, owner, above=above, expiry_ms=expiry_ms)
    assert term is not None
    return Fence(LEASE, owner, term)


async def lapsed(bus: Bus) -> None:
    """Wait until the lease has no holder."""

    async def is_free() -> bool:
        return await bus.lease_holder(LEASE) is None

    await eventually(is_free, what="the end of the lease")
