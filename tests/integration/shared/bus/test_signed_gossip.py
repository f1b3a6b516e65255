"""With a key a stranger who can write to Redis changes nothing: what is forged, replayed or unsigned is left out. A
process without the key says so, takes no lease, and loses the one it has.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.bus.absurd_messages import AbsurdMessages
from tests.support.bus.documents import APPLICATION as FLIGHTS
from tests.support.bus.documents import assignment, heartbeat, listening
from tests.support.bus.local_bus import LocalBus
from tests.support.bus.recorder import Recorder, recorder
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import APPLICATION, LIMIT_S, VERSION, Cluster, cluster
from tests.support.cluster.watch import reading
from tests.support.spark.queries import wait_until

from understudy_shared.base.clock import SystemClock
from understudy_shared.bus.gossip import Gossip, Names, digest_of
from understudy_shared.bus.message_auth import Keyring, MessageAuth
from understudy_shared.bus.messages import Announcement, Catalogue, CommitHint, Farewell
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.bus.redis_scripts import owned
from understudy_shared.bus.redis_sync import SyncPublisher

KEY, OLD = b"k" * 32, b"o" * 32
NAMES = Names(APPLICATION)
EXPIRY_MS = 600_000


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "gossip.key"
    file.write_bytes(KEY)
    file.chmod(0o600)
    return file


@pytest.fixture
def known(tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer, key_file: Path) -> Iterator[Cluster]:
    """Three nodes and a router that remembers, all with the key, at rest."""
    with cluster(checkpoint.path, tmp_path, redis.url, routers=0, gossip_key_file=key_file) as known:
        known.start_router(gossip_key_file=key_file, data_dir=tmp_path / "r1")
        known.wait_to_rest(copies=2, version=VERSION)
        yield known


@pytest.fixture
def stranger(redis: RedisServer) -> Iterator[Recorder]:
    with recorder(redis.url, APPLICATION) as made:
        yield made


@asynccontextmanager
async def two(url: str, one: MessageAuth | None, other: MessageAuth | None) -> AsyncIterator[tuple[Gossip, Gossip]]:
    """The gossip of two processes."""
    buses = [RedisBus(url, call_timeout_ms=10_000) for _ in range(2)]
    try:
        yield Gossip(buses[0], FLIGHTS, one), Gossip(buses[1], FLIGHTS, other)
    finally:
        for bus in buses:
            await bus.close()


def auth(*keys: bytes, sender: str = "n1") -> MessageAuth:
    return MessageAuth(FLIGHTS, Keyring(keys), sender=sender)


# Over a real Redis, whose scripts compare what they compared before


@pytest.mark.parametrize(
    ("writes", "reads"),
    [((KEY,), (KEY,)), ((OLD, KEY), (KEY, OLD)), ((KEY, OLD), (OLD, KEY)), ((KEY,), ())],
    ids=["one key", "signs with the old one", "signs with the new one", "reads without a key"],
)
async def test_every_kind_of_document_passes_signed(
    writes: tuple[bytes, ...], reads: tuple[bytes, ...], redis: RedisServer
) -> None:
    reader = auth(*reads) if reads else None
    async with two(redis.url, auth(*writes), reader) as (one, other), listening(other.listen()) as ear:
        assert await one.beat(heartbeat())
        fence = await one.take_lease("n1", above=4, expiry_ms=EXPIRY_MS)
        assert fence is not None
        assigned = assignment(term=fence.term, epoch=1)
        assert await one.write_assignment(assigned, fence)
        assert not await one.write_assignment(assigned, fence), "the script compares term and epoch as before"
        catalogue = Catalogue(application_id=FLIGHTS, lineage="l1", partitions=2, stores=[])
        await one.write_catalogue(digest_of(catalogue), catalogue)
        publisher = SyncPublisher(redis.url, FLIGHTS, auth(*writes, sender="pipeline"))
        announced = Announcement(application_id=FLIGHTS, query_id="l1", stores=[])
        publisher.announce(announced)
        publisher.hint(8)
        publisher.close()
        farewell = Farewell(application_id=FLIGHTS, node_id="n1", incarnation="i1")
        assert [seen.heartbeat for seen in await other.nodes()] == [heartbeat()]
        await one.leave(farewell)
        hint = CommitHint(application_id=FLIGHTS, version=8)
        assert [await ear.next() for _ in range(5)] == [heartbeat(), assigned, announced, hint, farewell]
        assert await other.assignment() == assigned
        assert await other.announcement() == announced
        assert await other.catalogue(digest_of(catalogue)) == catalogue
        assert await other.nodes() == []
        assert not other.refused


async def test_a_process_with_another_key_is_not_heard_and_named_once(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with two(redis.url, auth(OLD, sender="n9"), auth(KEY)) as (foreign, ours), listening(ours.listen()) as ear:
        with caplog.at_level(logging.WARNING):
            for sequence in range(1, 6):
                await foreign.beat(heartbeat("n9", sequence=sequence))
            await ours.hint(CommitHint(application_id=FLIGHTS, version=1))
            assert await ear.next() == CommitHint(application_id=FLIGHTS, version=1)
            assert await ours.nodes() == []
        assert ours.refused == {"forged": 6}
    lines = [record.getMessage() for record in caplog.records if record.__dict__.get("kind") == "forged"]
    assert len(lines) == 1
    assert "'n9', signed with key" in lines[0]
    assert "The key file here has" in lines[0]


# A whole cluster


def counted(known: Cluster, kind: str) -> list[int]:
    """What each process has refused by that kind, as its metrics say."""
    found = []
    for each, service in [(known.router, "router"), *((node, "node") for node in known.nodes.values())]:
        mark = f'understudy_{service}_refused_messages_total{{kind="{kind}"}} '
        lines = [line for line in each.text("/metrics").splitlines() if line.startswith(mark)]
        found.append(int(float(lines[0].removeprefix(mark))) if lines else 0)
    return found


def unchanged(known: Cluster) -> dict[str, Any]:
    """What a stranger must not change: who lives where, and who has what."""
    tables = known.router.router.tables
    assert tables.assignment is not None
    return {
        "nodes": {node_id: node.heartbeat.endpoint for node_id, node in tables.nodes.items()},
        "tasks": tables.assignment.tasks,
        "incarnations": {node_id: node.heartbeat.incarnation for node_id, node in tables.nodes.items()},
    }


def test_nothing_that_a_stranger_says_or_writes_is_used_and_nobody_connects_to_where_it_points(
    known: Cluster, stranger: Recorder, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    before = unchanged(known)
    wait_until(lambda: len(stranger.said_by("n1")) > 0, what="a heartbeat to forge", limit_s=LIMIT_S)
    genuine = stranger.said_by("n1")[-1]
    line, _, document = genuine.split(b"\n", 2)
    forger = AbsurdMessages(redis.url, APPLICATION)
    with socket.create_server(("127.0.0.1", 0)) as trap, reading(known.router) as reader:
        trap.settimeout(0)
        here = {"host": "127.0.0.1", "port": trap.getsockname()[1]}
        beat = orjson.loads(document)
        moved = orjson.dumps(beat | {"endpoint": here, "sequence": beat["sequence"] + 1000})
        with caplog.at_level(logging.WARNING):
            forger.all_at_once(members=50)
            for _ in range(20):
                stranger.say(b"heartbeat\n" + moved, line + b"\nheartbeat\n" + moved)
            for payload in (b"heartbeat\n" + moved, line + b"\nheartbeat\n" + moved):
                value = owned(beat["incarnation"]) + payload
                stranger.write(NAMES.node("n1"), value, expiry_ms=EXPIRY_MS)
                stranger.write(NAMES.node("n7"), value, expiry_ms=EXPIRY_MS)
            known.router.router.watcher.refresh()
            wait_until(lambda: all(counted(known, "forged")), what="the forged ones to be counted", limit_s=LIMIT_S)
            wait_until(lambda: all(counted(known, "unsigned")), what="the unsigned ones too", limit_s=LIMIT_S)
            reader.wait_for_answers(200)
        with pytest.raises(BlockingIOError):
            trap.accept()
    forger.close()
    assert unchanged(known) == before
    named = [record.getMessage() for record in caplog.records if record.__dict__.get("kind") == "forged"]
    assert 0 < len(named) <= 2 * 4, "each of four processes names it once, for the channel and for a key"
    known.wait_to_rest(copies=2, version=VERSION)


def test_what_a_dead_node_once_said_does_not_bring_it_back(known: Cluster, stranger: Recorder) -> None:
    wait_until(lambda: len(stranger.said_by("n3")) > 2, what="heartbeats to record", limit_s=LIMIT_S)
    stranger.keep()
    known.end("n3")
    recorded = stranger.said_by("n3")
    with reading(known.router):
        wait_until(lambda: "n3" not in known.router.living(), what="its end", limit_s=LIMIT_S)
        stranger.say(*recorded)
        stranger.put_back(NAMES.node("n3"))
        known.router.router.watcher.refresh()
        wait_until(lambda: all(counted(known, "replayed")), what="the replayed ones to be counted", limit_s=LIMIT_S)
        assert "n3" not in known.router.living()
    assert sum(counted(known, "replayed")) >= len(recorded)


@pytest.mark.full
def test_an_assignment_that_is_put_back_is_overwritten_and_followed_by_nobody(
    known: Cluster, stranger: Recorder
) -> None:
    stranger.keep()
    before = known.router.order()
    known.stop("n3")
    wait_until(lambda: known.router.order() > before, what="the next assignment", limit_s=LIMIT_S)
    known.wait_to_rest(copies=2, version=VERSION)
    after = known.router.order()
    stranger.put_back(NAMES.assignment)
    known.router.router.watcher.refresh()
    known.start_router(gossip_key_file=known._settings["gossip_key_file"])  # it reads the old one
    wait_until(lambda: known.routers[1].order() >= after, what="the later one, from the nodes", limit_s=LIMIT_S)
    assert known.router.order() >= after
    wait_until(lambda: known.routers[1].not_ready() == "", what="its catalogue", limit_s=LIMIT_S)
    with reading(*known.routers):
        pass


@pytest.mark.full
def test_signing_is_switched_on_one_process_after_the_other_while_every_read_is_answered(
    tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer, key_file: Path
) -> None:
    def restart_all(known: Cluster, **settings: object) -> None:
        known._settings.update(settings)
        for node_id in ("n1", "n2"):
            known.stop(node_id)
            known.start(node_id)
            known.wait_to_rest(copies=2, version=VERSION)
        known.start_router(**known._settings)
        wait_until(lambda: known.routers[-1].not_ready() == "", what="a router with it", limit_s=LIMIT_S)

    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2) as known:
        known.wait_to_rest(copies=2, version=VERSION)
        with reading(known.router):
            restart_all(known, gossip_key_file=key_file, gossip_accept_unsigned=True)
        for each in (known.routers[1], *known.nodes.values()):
            assert "unsigned gossip is accepted" in str(each.get("/readyz").body["degraded"])
            assert 'degraded{cause="gossip-unsigned"} 1.0' in each.text("/metrics")
        with reading(known.routers[1]):
            restart_all(known, gossip_accept_unsigned=False)
        for each in (known.routers[2], *known.nodes.values()):
            wait_until(lambda each=each: each.get("/readyz").body["degraded"] is None, what="all well", limit_s=LIMIT_S)  # type: ignore[misc]
        # An assignment that was stored before the switch may be refused until a node that signs has written its own.
        refused = dict(known.routers[2].router.gossip.refused)
        assert refused.keys() <= {"unsigned"}
        with reading(*known.routers):
            pass
        assert known.routers[2].router.gossip.refused == refused


@pytest.mark.parametrize("bus_kind", ["redis", "in memory"])
async def test_a_lease_that_is_not_signed_is_taken_over_by_who_has_the_key_and_by_nobody_else(
    bus_kind: str, redis: RedisServer
) -> None:
    bus = RedisBus(redis.url) if bus_kind == "redis" else LocalBus(SystemClock())
    keyless = Gossip(bus, APPLICATION)
    n1, n2 = (Gossip(bus, APPLICATION, MessageAuth(APPLICATION, Keyring([KEY]), sender=each)) for each in ("n1", "n2"))
    try:
        unsigned = await keyless.take_lease("keyless/1", above=0, expiry_ms=60_000)
        assert unsigned is not None
        signed = await n1.take_lease("n1/1", above=0, expiry_ms=60_000)
        assert signed is not None
        assert signed.term > unsigned.term
        assert "keyless/1 had the lease" in n1.auth.causes()["lease-held-by-unsigned"]
        assert not await keyless.keep_lease(unsigned, expiry_ms=60_000)
        assert not await keyless.write_assignment(assignment(term=unsigned.term, epoch=9), unsigned)
        for other in (keyless, n2):
            assert await other.take_lease("other/1", above=0, expiry_ms=60_000) is None
        assert await n1.keep_lease(signed, expiry_ms=60_000)
        assert n2.auth.causes() == {}
        await n1.give_lease_up(signed)
        assert await keyless.take_lease("n1/1", above=0, expiry_ms=60_000) is not None
        assert await n2.take_lease("n2/1", above=0, expiry_ms=60_000) is not None, "a name is no signature"
    finally:
        await bus.close()


def test_a_router_without_the_key_says_so(
    tmp_path: Path, checkpoint: HandmadeCheckpoint, redis: RedisServer, key_file: Path
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=1, routers=0, gossip_key_file=key_file) as known:
        router = known.start_router()
        wait_until(lambda: "gossip-key-missing" in router.router.causes(), what="it to say so", limit_s=LIMIT_S)
        assert "this process has no key" in str(router.get("/readyz").body["degraded"])
