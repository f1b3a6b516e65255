"""A bus in this process that a test takes away and gives back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tests.support.bus.local_bus import LocalBus

from understudy_shared.bus.base import Back, BusError, Lost, Stored


class FragileBus(LocalBus):
    """Calls fail and the subscription is lost while it is away; what it has stays."""

    def __init__(self, *, away: bool = False) -> None:
        super().__init__()
        self.is_away = away
        self.gets = 0
        """The number of keys that were read."""
        self._turned = asyncio.Event()

    def turn(self, *, away: bool) -> None:
        self.is_away = away
        self._turned.set()

    async def get(self, key: str) -> Stored | None:
        self.gets += 1
        return await super().get(key)

    def _open(self) -> None:
        if self.is_away:
            raise BusError("it was taken away", where="the test")
        super()._open()

    async def listen(self, *channels: str) -> AsyncIterator[bytes | Lost | Back]:
        while True:
            if self.is_away:
                yield Lost("it was taken away")
            while self.is_away:
                self._turned.clear()
                await self._turned.wait()
            heard = super().listen(*channels)
            next_one = asyncio.ensure_future(anext(heard))
            turned = asyncio.ensure_future(self._turned.wait())
            try:
                while not self.is_away:
                    self._turned.clear()
                    await asyncio.wait({next_one, turned}, return_when=asyncio.FIRST_COMPLETED)
                    if next_one.done():
                        yield next_one.result()
                        next_one = asyncio.ensure_future(anext(heard))
                    if turned.done():
                        turned = asyncio.ensure_future(self._turned.wait())
            finally:
                next_one.cancel()
                turned.cancel()
                await asyncio.wait({next_one, turned})
                await heard.aclose()  # type: ignore[attr-defined]  # LocalBus.listen is a generator
