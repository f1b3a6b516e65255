"""The messages between processes, over every kind of bus: names, types, and what is left out.

In one process, over a real Redis, and over one that real sentinels name.
"""

from __future__ import annotations

import orjson
import pytest
from tests.support.bus.documents import APPLICATION, assignment, enveloped, eventually, heartbeat, listening

from understudy_shared.bus.base import Bus
from understudy_shared.bus.gossip import Gossip, digest_of
from understudy_shared.bus.messages import (
    AnnouncedStore,
    Announcement,
    Catalogue,
    CommitHint,
    Farewell,
    Message,
)

CHANNEL = "us:{flights}:events"
LONG_MS = 600_000
"""An expiry that no test lives to see."""


async def test_two_nodes_see_each_other_and_how_old_their_word_is(bus: Bus, other: Bus) -> None:
    one, two = Gossip(bus, APPLICATION), Gossip(other, APPLICATION)
    first, second = heartbeat("n1"), heartbeat("n/2 é", incarnation="i2")
    async with listening(two.listen()) as ear:
        assert await one.beat(first)
        assert await two.beat(second)
        assert [await ear.next(), await ear.next()] == [first, second]
    for gossip in (one, two):
        seen = await gossip.nodes()
        assert [entry.heartbeat for entry in seen] == [second, first]
        assert all(0 <= entry.age_ms < 3 * 20_000 for entry in seen)

    async def has_aged() -> bool:
        return all(entry.age_ms >= 5 for entry in await one.nodes())

    await eventually(has_aged, what="an age that grows as the expiry shrinks")


async def test_a_second_process_with_a_nodes_id_is_refused(bus: Bus, other: Bus) -> None:
    one, rival = Gossip(bus, APPLICATION), Gossip(other, APPLICATION)
    assert await one.beat(heartbeat())
    assert not await rival.beat(heartbeat(incarnation="i2"))
    await rival.leave(Farewell(application_id=APPLICATION, node_id="n1", incarnation="i2"))
    assert [entry.heartbeat.incarnation for entry in await rival.nodes()] == ["i1"]
    await one.leave(Farewell(application_id=APPLICATION, node_id="n1", incarnation="i1"))
    assert await rival.beat(heartbeat(incarnation="i2"))


async def test_assignments_catalogues_announcements_and_hints_arrive(bus: Bus, other: Bus) -> None:
    one, two = Gossip(bus, APPLICATION), Gossip(other, APPLICATION)
    assert (await two.assignment(), await two.announcement(), await two.catalogue("x")) == (None, None, None)
    fence = await one.take_lease("n1", above=4, expiry_ms=LONG_MS)
    assert fence is not None
    assert await two.take_lease("n2", above=4, expiry_ms=LONG_MS) is None
    assert await two.lease_holder() == "n1"
    first = assignment(term=fence.term, epoch=1)
    announced = Announcement(application_id=APPLICATION, query_id="l1", stores=[AnnouncedStore(operator_id=0)])
    hint = CommitHint(application_id=APPLICATION, version=8)
    catalogue = Catalogue(application_id=APPLICATION, lineage="l1", partitions=2, stores=[])
    async with listening(two.listen()) as ear:
        assert await one.write_assignment(first, fence)
        assert not await one.write_assignment(first, fence)
        await one.announce(announced)
        await one.hint(hint)
        assert [await ear.next() for _ in range(3)] == [first, announced, hint]
    await one.write_catalogue(digest_of(catalogue), catalogue)
    assert await two.assignment() == first
    assert await two.announcement() == announced
    assert await two.catalogue(digest_of(catalogue)) == catalogue
    assert await one.keep_lease(fence, expiry_ms=LONG_MS)
    await one.give_lease_up(fence)
    assert await two.lease_holder() is None
    assert not one.refused
    assert not two.refused


def changed(message: Message, **fields: object) -> bytes:
    return b"heartbeat\n" + orjson.dumps({**message.model_dump(mode="json"), **fields})


BAD_HEARTBEATS = {
    "no envelope": b"garbage without a line end",
    "not UTF-8": b"heartbeat\n\xff\xfe",
    "deeply nested": b"heartbeat\n" + b"[" * 100_000,
    "out of range": changed(heartbeat(), end_version=-1),
    "of an unknown kind": changed(heartbeat()).replace(b"heartbeat\n", b"heartbeats\n", 1),
}


@pytest.mark.parametrize("bad", BAD_HEARTBEATS.values(), ids=BAD_HEARTBEATS)
async def test_a_bad_document_is_counted_and_left_out_and_good_ones_still_arrive(bus: Bus, bad: bytes) -> None:
    gossip = Gossip(bus, APPLICATION)
    good = heartbeat("n2", incarnation="i2")
    async with listening(gossip.listen()) as ear:
        written = await bus.put_owned(gossip.names.node("n1"), "x", bad, expiry_ms=LONG_MS, channel=CHANNEL)
        assert written
        assert await gossip.beat(good)
        assert await ear.next() == good
        assert gossip.refused.total() == 1
    assert [entry.heartbeat for entry in await gossip.nodes()] == [good]
    assert gossip.refused.total() == 2
    assert gossip.refused["heartbeat"] >= 1
    await bus.put(gossip.names.assignment, bad)
    assert await gossip.assignment() is None
    assert gossip.refused["assignment"] == 1


async def test_unknown_fields_are_ignored_so_that_releases_mix(bus: Bus) -> None:
    gossip = Gossip(bus, APPLICATION)
    newer = changed(heartbeat(), mood="sunny", endpoint={"host": "127.0.0.1", "port": 7101, "scheme": "https"})
    async with listening(gossip.listen()) as ear:
        await bus.put_owned(gossip.names.node("n1"), "i1", newer, expiry_ms=LONG_MS, channel=CHANNEL)
        assert await ear.next() == heartbeat()
    assert [entry.heartbeat for entry in await gossip.nodes()] == [heartbeat()]
    assert not gossip.refused


async def test_a_heartbeat_under_another_nodes_key_is_counted_and_left_out(bus: Bus) -> None:
    gossip = Gossip(bus, APPLICATION)
    key = gossip.names.node("n2")
    await bus.put_owned(key, "i1", enveloped(heartbeat("n1")), expiry_ms=LONG_MS, channel=CHANNEL)
    assert await gossip.nodes() == []
    assert gossip.refused["heartbeat"] == 1


async def test_applications_do_not_hear_or_see_each_other(bus: Bus, other: Bus) -> None:
    flights, trains = Gossip(bus, APPLICATION), Gossip(other, "flights}:x")
    async with listening(trains.listen()) as ear:
        await flights.beat(heartbeat())
        await trains.hint(CommitHint(application_id="flights}:x", version=1))
        assert await ear.next() == CommitHint(application_id="flights}:x", version=1)
    assert await trains.nodes() == []
    assert not trains.refused
