"""The duty that keeps a router's tables tells a pause of the process from a bus that hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from tests.support.bus.documents import APPLICATION
from tests.support.bus.local_bus import LocalBus
from tests.support.clock import ManualClock

from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.base.words import HostInfo

TURNS = 60
HANG_MS = 1002


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the duty for some turns; each sleep takes so much longer. Returns how often it read the keys."""

    def run(*, late_ms: float) -> int:
        clock, turns, reads = ManualClock(), 0, 0
        settings = RouterSettings(redis="redis://unused", application_id=APPLICATION)
        watcher = Router(settings, LocalBus(), host=HostInfo("127.0.0.1", 1), clock=clock).watcher

        async def sleep(seconds: float) -> None:
            nonlocal turns
            turns += 1
            if turns > TURNS:
                raise asyncio.CancelledError
            clock.advance(seconds * 1000 + late_ms)

        async def hang() -> None:
            nonlocal reads
            reads += 1
            clock.advance(HANG_MS)
            watcher.bus_lost_why = "it hangs"  # as the real one does when the bus did not answer

        watcher.bus_lost_why = None
        monkeypatch.setattr(asyncio, "sleep", sleep)
        monkeypatch.setattr(watcher.cluster, "read", hang)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(watcher._keep())
        return reads

    return run


def test_a_redis_that_hangs_is_no_pause_of_the_process(
    kept: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        reads = kept(late_ms=0)
    assert reads == 1
    assert "paused" not in caplog.text


def test_a_pause_of_the_process_is_logged_and_the_keys_are_read_again(
    kept: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        reads = kept(late_ms=1500)
    assert reads == TURNS
    assert "this process paused for 1500 ms" in caplog.text
