"""A process without the gossip key that has the lease and keeps it, while two nodes die one after the other.

Those with the key must take the lease over and go on reassigning: when the second node dies, each partition of the
first must have found two other nodes. Otherwise readers of what both had get no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, defaultdict

from tests.support.spark.queries import wait_until
from tests.system.proof.processes import Service
from tests.system.proof.world import APPLICATION, NODES, World

from understudy_shared.bus.base import BusError, Fence
from understudy_shared.bus.gossip import Gossip, Names
from understudy_shared.bus.redis_bus import RedisBus

OWNER = "keyless/1"
EXPIRY_MS = 2000
TURN_S = 0.1
TAKEN_LIMIT_S = 30.0
REASSIGNED_LIMIT_S = 30.0
"""Far more than the signed world's `rebalance_delay_ms`, for which a dead node keeps its places."""

NEAR_VERSIONS = 3


class UnsignedLease:
    """One such process, in a thread, and its victims: the second has most of what the first has."""

    def __init__(self, world: World, first: Service) -> None:
        self.first = first
        self._world = world
        self._second = world.nodes[_partner(world, first.name)]
        self._has_taken = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._keep_lease()), name="keyless", daemon=True)

    def inject(self) -> None:
        """Take the lease, kill the first, wait until its tasks have other places, and kill the second."""
        self._world.redis.command("DEL", Names(APPLICATION).lease)  # as if its holder had died
        self._thread.start()
        assert self._has_taken.wait(TAKEN_LIMIT_S), "the process without a key does not get the lease"
        self.first.kill()
        with contextlib.suppress(AssertionError):  # readers show what this means
            wait_until(self._is_reassigned, what="other places", limit_s=REASSIGNED_LIMIT_S, every_s=0.2)
        self._second.kill()

    def heal(self) -> None:
        """End the process, and start the nodes again."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        for node in (self.first, self._second):
            if not node.is_running:
                node.start()

    async def _keep_lease(self) -> None:
        bus = RedisBus(self._world.redis.url)
        gossip = Gossip(bus, APPLICATION)
        fence: Fence | None = None
        while not self._over.is_set():
            with contextlib.suppress(BusError):
                if fence is None or not await gossip.keep_lease(fence, expiry_ms=EXPIRY_MS):
                    fence = await gossip.take_lease(OWNER, above=0, expiry_ms=EXPIRY_MS)
                if fence is not None:
                    self._has_taken.set()
                elif not self._has_taken.is_set():
                    self._world.redis.command("DEL", Names(APPLICATION).lease)
            await asyncio.sleep(TURN_S)
        await bus.close()

    def _is_reassigned(self) -> bool:
        """Whether each partition is on two nodes beside the first."""
        return all(len(nodes - {self.first.name}) > 1 for nodes in _holders(self._world).values())


def _holders(world: World) -> dict[tuple[str, int], set[str]]:
    """The nodes that have each store partition, near its end."""
    found: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    for store in world.lag_report()["stores"]:
        for replica in store["partitions"]:
            near = found[store["store"], replica["partition"]]
            current = replica["current_offset_position"]
            if current is not None and current >= world.watch.version - NEAR_VERSIONS:
                near.add(replica["node_id"])
    return found


def _partner(world: World, name: str) -> str:
    """The node that shares most partitions with another."""
    shared = Counter(node for nodes in _holders(world).values() if name in nodes for node in nodes - {name})
    return max((node for node in NODES if node != name), key=shared.__getitem__)
