"""What a Spark driver says on the bus: heard by nodes as any other word, and never in the way of the query."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from tests.support.bus.documents import APPLICATION, listening
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.spark.queries import wait_until

from understudy_shared.bus.base import BusError
from understudy_shared.bus.gossip import Gossip, let_go
from understudy_shared.bus.message_auth import MessageAuth
from understudy_shared.bus.messages import AnnouncedStore, Announcement, CommitHint
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.bus.redis_sync import SyncPublisher

ANNOUNCED = Announcement(application_id=APPLICATION, query_id="l1", stores=[AnnouncedStore(operator_id=0, name="x")])


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def publisher(server: RedisServer) -> Iterator[SyncPublisher]:
    publisher = SyncPublisher(server.url, APPLICATION)
    yield publisher
    publisher.close()
    assert not any(thread.name == "understudy-publisher" for thread in threading.enumerate())


async def test_hints_and_announcements_arrive_as_if_a_node_had_sent_them(
    server: RedisServer, publisher: SyncPublisher
) -> None:
    bus = RedisBus(server.url, call_timeout_ms=10_000)
    gossip = Gossip(bus, APPLICATION)
    async with listening(gossip.listen()) as ear:
        publisher.hint(8)
        publisher.announce(ANNOUNCED)
        assert await ear.next() == CommitHint(application_id=APPLICATION, version=8)
        assert await ear.next() == ANNOUNCED
    located = ANNOUNCED.model_copy(update={"checkpoint": "file:/q"})
    publisher.announce(located)
    publisher.announce(located.model_copy(update={"stores": [], "checkpoint": "file:/r"}), if_absent=True)
    assert await gossip.announcement() == located, "names that are there stay"
    await let_go(bus, MessageAuth(APPLICATION), located)
    publisher.announce(located.model_copy(update={"stores": []}), if_absent=True)
    assert await gossip.announcement() == located, "it was let go, and starts again without new data"
    assert publisher.failures == 0
    await bus.close()


@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_an_outage_costs_hints_and_nothing_else(
    server: RedisServer, publisher: SyncPublisher, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    publisher.hint(1)
    if fault == "killed":
        server.kill()
    else:
        server.pause()
    with caplog.at_level(logging.WARNING):
        for version in range(2, 7):
            publisher.hint(version)
    assert publisher.failures == 5
    assert [record.__dict__["count"] for record in caplog.records] == [1, 2, 4], "the log is not flooded"
    with pytest.raises(BusError, match="announcing") as caught:
        publisher.announce(ANNOUNCED)
    assert caught.value.where == server.url
    if fault == "killed":
        server.start()
    else:
        server.resume()

    def is_given() -> bool:
        failures = publisher.failures
        publisher.hint(9)
        return publisher.failures == failures

    wait_until(is_given, what="a hint that is given again")
    publisher.announce(ANNOUNCED)


def test_a_hint_that_cannot_be_a_document_is_a_failure_too(publisher: SyncPublisher) -> None:
    publisher.hint(-1)
    assert publisher.failures == 1


def test_a_closed_publisher_counts_hints_and_refuses_the_rest(publisher: SyncPublisher) -> None:
    publisher.hint(1)
    publisher.close()
    publisher.hint(2)
    assert publisher.failures == 1
    with pytest.raises(BusError, match="closed"):
        publisher.announce(ANNOUNCED)
