"""What a node says of other applications on its bus."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.bus.documents import eventually, heartbeat
from tests.support.bus.fragile_bus import FragileBus

from understudy_node.cluster import neighbour_applications
from understudy_node.cluster.neighbour_applications import alone_text, log_other_applications
from understudy_shared.bus.applications import Applications
from understudy_shared.bus.base import ListedKeys
from understudy_shared.bus.gossip import Gossip


class CountingBus(FragileBus):
    """Counts the listings of its keys."""

    listings = 0

    async def keys(self, prefix: str, *, limit: int | None = None) -> ListedKeys:
        self.listings += 1
        return await super().keys(prefix, limit=limit)

    async def was_asked(self) -> bool:
        return self.listings > 0


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, None),
        ({"fligths": 1}, None),
        ({"fligths": 2, "flights": 3}, None),
        ({"fligths": 1, "words": 1}, "others there: 'words'."),
        ({"fligths": 1, "flights": 0}, "others there: 'flights'. Did you mean 'flights'?"),
    ],
    ids=["nothing", "alone", "with-its-like", "beside-another", "only-announced"],
)
def test_only_a_node_without_its_like_names_other_applications(found: dict[str, int], text: str | None) -> None:
    said = alone_text("fligths", Applications(found), where="redis://h")
    assert said == (text and f"this is the only node of application 'fligths' on redis://h; {text}")


async def test_it_is_logged_once_when_the_bus_is_there(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbour_applications, "RETRY_S", 0.001)
    caplog.set_level("INFO")
    bus = CountingBus()
    assert await Gossip(bus, "flights").beat(heartbeat())
    bus.turn(away=True)
    task = asyncio.ensure_future(log_other_applications(Gossip(bus, "fligths"), where="redis://h"))
    await eventually(bus.was_asked, what="a look in vain")
    bus.turn(away=False)

    async def is_logged() -> bool:
        return any(getattr(record, "action", "") == "other-applications" for record in caplog.records)

    await eventually(is_logged, what="the line in the log")
    assert not task.done(), "a task that ends counts as dead"
    task.cancel()
    assert len(caplog.records) == 1
