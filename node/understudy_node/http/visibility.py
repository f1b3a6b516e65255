"""Lets lookups wait for a version: a worker thread that publishes one wakes the waiting lookups on the loop."""

from __future__ import annotations

import asyncio


class Visibility:
    """A wake-up for the loop on which it is created."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._waiting = 0

    def changed(self) -> None:
        """Wake the waiting lookups; called from any thread after a version was published."""
        if self._waiting and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    async def wait(self, timeout_s: float) -> None:
        """Return when something was published, or after `timeout_s`."""
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
