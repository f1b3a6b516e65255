"""Any message on the bus is used, or refused by type: nothing else is raised, and no task dies of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from random import Random

import orjson
import pytest
from tests.fuzz.documents import ASSIGNMENT, CATALOGUE, HEARTBEAT, SPOKEN, WIDE, envelope_of
from tests.fuzz.hunting import MEMORY_BASE, MEMORY_PER_BYTE, hunt, peak_bytes, sizes
from tests.fuzz.mutation import bad_document
from tests.support.bus.documents import APPLICATION
from tests.support.bus.local_bus import LocalBus
from tests.support.checkpoint.handmade import HandmadeCheckpoint

from understudy_node.checkpoint.files import LocalFiles
from understudy_node.cluster.context import MemberId
from understudy_node.cluster.member import ClusterMember
from understudy_node.node import Node
from understudy_node.settings import ClusterNodeSettings
from understudy_router.admin.lag_report import LagQuery, lag_tree
from understudy_router.admin.sampling import Looking
from understudy_router.cluster.catalogue import stores_of
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import Back, Lost
from understudy_shared.bus.gossip import Gossip, _Turns
from understudy_shared.bus.messages import MAX_MESSAGE_BYTES, Catalogue, Heartbeat
from understudy_shared.cluster.node_calls import NodeCallError, NodeCalls
from understudy_shared.reads.bounds import NO_BOUND

HOST = HostInfo("127.0.0.1", 7101)


@pytest.fixture(autouse=True)
def no_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forged nodes are not called: their addresses are anybody's. And what is refused is not logged here."""

    async def refused(*_: object, **__: object) -> tuple[int, bytes]:
        raise NodeCallError("not called in this test")

    monkeypatch.setattr(NodeCalls, "ask", refused)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class ScriptedBus(LocalBus):
    """A bus on which others said these messages, and nothing more."""

    def __init__(self, said: Sequence[bytes]) -> None:
        super().__init__()
        self._said = said

    async def listen(self, *channels: str) -> AsyncIterator[bytes | Lost | Back]:
        yield Back()
        for each in self._said:
            yield each


def spoken(rng: Random, count: int) -> list[bytes]:
    """Messages of all kinds, some under the name of another kind."""
    messages = []
    for _ in range(count):
        kind = rng.choice(SPOKEN)
        name = envelope_of(rng.choice(SPOKEN) if rng.random() < 0.05 else kind)
        messages.append(name + bad_document(kind.encode(), rng))
    return messages


async def keys_of(bus: LocalBus, payloads: Sequence[bytes]) -> None:
    """The same bytes where documents stand."""
    names = Gossip(bus, APPLICATION).names
    for number, payload in enumerate(payloads):
        await bus.put_owned(names.node(f"n{number}"), "i", payload, expiry_ms=60_000, channel="none")
    for payload in payloads[-2:]:
        await bus.put(names.assignment, payload)
        await bus.put(names.announcement, payload)


async def router_hears(payloads: Sequence[bytes]) -> None:
    bus = ScriptedBus(payloads)
    await keys_of(bus, payloads)
    settings = RouterSettings(redis="redis://unused", application_id=APPLICATION)
    router = Router(settings, bus, host=HOST, clock=SystemClock())
    watcher = router.watcher
    await watcher.cluster.run()
    await watcher.cluster.read()
    router.tables.expire(SystemClock().monotonic_ms())
    watcher._note_nodes()
    digest = router.tables.catalogue_digest
    if digest is not None:
        await watcher.catalogue.read(digest)
    stores = stores_of(CATALOGUE, "0" * 32)
    for partition in range(2):
        router.forwarder.context.choices.choose(stores.by_name["words"], partition, NO_BOUND)
    watcher.catalogue.stores = stores
    for store in (None, "words"):
        snapshot = await Looking(router).snapshot()
        orjson.loads(b"".join(lag_tree(snapshot, LagQuery(store=store))))
    assert router.dead is None
    await router.nodes.close()


async def node_hears(payloads: Sequence[bytes], node: Node, settings: ClusterNodeSettings) -> None:
    bus = ScriptedBus(payloads)
    await keys_of(bus, payloads)
    member = ClusterMember(node, Gossip(bus, settings.application), settings, MemberId("me", "i"), clock=SystemClock())
    await member.cluster.run()
    await member.beat.turn()
    assert isinstance(member.heartbeat(), Heartbeat)
    assert member.dead is None


@sizes(30_000)
def test_no_message_on_the_bus_ends_what_a_router_does(inputs: int) -> None:
    hunt("bus", inputs, spoken, lambda batch: asyncio.run(router_hears(batch)))


@sizes(20_000)
def test_no_message_on_the_bus_ends_what_a_node_does(inputs: int, tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    settings = ClusterNodeSettings(
        checkpoint=str(checkpoint.path), redis="redis://unused", application_id=APPLICATION, data_dir=tmp_path / "data"
    )

    node = Node(settings, LocalFiles(checkpoint.path), host=HOST, clock=SystemClock())
    hunt("bus", inputs, spoken, lambda batch: asyncio.run(node_hears(batch, node, settings)))


@sizes(10_000)
def test_no_catalogue_ends_what_a_router_does(inputs: int) -> None:
    gossip = Gossip(LocalBus(), APPLICATION)

    def catalogues(rng: Random, count: int) -> list[bytes]:
        return [b"catalogue\n" + bad_document(rng.choice((CATALOGUE, WIDE)).encode(), rng) for _ in range(count)]

    def attempt(batch: Sequence[bytes]) -> None:
        for payload in batch:
            try:
                found = asyncio.run(gossip._open(Catalogue, gossip.auth.opened(payload), _Turns(), where="test"))
                if found is None:
                    continue
                stores = stores_of(found, "0" * 32)
                for route in stores.by_name.values():
                    route.described()
                    for key in (["x"], [1, None], {"word": "x"}, []):
                        row = route.codec.parse_json(key)
                        route.codec.partition(row, route.partitions)
                        route.codec.encode(row)
                stores.get("another")
            except UnderstudyError:
                continue

    hunt("catalogue", inputs, catalogues, attempt)


EXTREME = {
    "wrong values": HEARTBEAT.encode().replace(b'"held":["0_0","0_1"]', b'"held":[' + b"1," * 500_000 + b"1]"),
    "wrong tasks": ASSIGNMENT.encode().replace(
        b'"tasks":{', b'"tasks":{' + b",".join(b'"1_%d":{}' % number for number in range(50_000)) + b","
    ),
    "deep": b'{"format":1,"x":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
    "deep and open": b'{"x":' * 300_000,
    "a long list": b'{"format":1,"application_id":"flights","held":[' + b'"0_0",' * 500_000 + b'"0_0"]}',
    "long names": b'{"' + b"x" * 2_000_000 + b'":1,"' + b"y" * 1_900_000 + b'":2}',
    "many names": b"{" + b",".join(b'"%d":0' % number for number in range(300_000)) + b"}",
    "the same name": b"{" + b'"format":1,' * 300_000 + b'"format":1}',
    "a long number": b'{"format":1,"term":' + b"9" * 4_000_000 + b"}",
    "surrogates": b'{"format":1,"application_id":"' + b"\\ud800" * 600_000 + b'"}',
    "too long": b" " * (MAX_MESSAGE_BYTES + 1),
    "zeros": bytes(MAX_MESSAGE_BYTES),
}


@pytest.mark.parametrize("payload", EXTREME.values(), ids=EXTREME)
@pytest.mark.parametrize("kind", [b"heartbeat", b"assignment", b"announcement"])
def test_the_largest_nonsense_costs_a_known_multiple_of_its_size(kind: bytes, payload: bytes) -> None:
    gossip = Gossip(LocalBus(), APPLICATION)
    peak = peak_bytes(lambda: asyncio.run(gossip._hear(kind + b"\n" + payload, _Turns())))
    assert gossip.refused.total() == 1
    assert peak < MEMORY_BASE + MEMORY_PER_BYTE * len(payload)
