"""Bugs of calls that are cancelled, as patches of a running router."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def keep_cancelled_calls() -> None:
    """Leave the place of a call to a node taken when its caller stops waiting."""
    from understudy_shared.cluster.node_calls import CallKind, NodeCalls

    ask = NodeCalls.ask

    async def asked(self: NodeCalls, kind: CallKind, *of: Any, **how: Any) -> tuple[int, bytes]:
        try:
            return await ask(self, kind, *of, **how)
        except CancelledError:
            self._places[kind].of_all.free -= 1
            raise

    NodeCalls.ask = asked  # type: ignore[method-assign]


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
