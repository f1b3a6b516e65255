"""Bugs of calls that are cancelled, as patches of a running router."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any


def keep_cancelled_calls() -> None:
    """Leave the place of a call to a node taken when its caller stops waiting."""
    from understudy_shared.cluster.node_calls import _Places

    held = _Places.held

    @asynccontextmanager
    async def kept(self: _Places, *of: Any) -> AsyncIterator[bool]:
        try:
            async with held(self, *of) as waited:
                yield waited
        except CancelledError:
            self._free._value -= 1
            raise

    _Places.held = kept  # type: ignore[method-assign,assignment]


def keep_cancelled_exports() -> None:
    """Count an export whose reader has left as one that is in flight."""
    from understudy_shared.questions.scan.long_reads import LongReads

    begun_changes = LongReads.begun_changes

    @contextmanager
    def begun(self: LongReads) -> Iterator[None]:
        with begun_changes(self):
            try:
                yield
            except CancelledError:
                self.exports_in_flight += 1
                raise

    LongReads.begun_changes = begun  # type: ignore[method-assign]
