"""The simulated nodes of benchmarks/scale.py: one process that sends the messages of many.

Each node has its own connection to Redis and its own address on loopback. It sends a heartbeat at its own time and
after each commit, asks for the lease as every node does, and answers when it is asked for its heartbeat.
Commands come by standard input, a JSON object a line; each is answered by one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Callable
from contextlib import suppress

from benchmarks.simulated import APPLICATION, HEARTBEAT_MS, SimulatedNode
from understudy_shared.base.background import Supervisor
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import Role
from understudy_shared.bus.base import BusError
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.messages import Assignment, Heartbeat
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.server.connection_guard import raise_file_limit

LOOK_S = 0.1
"""Between two looks for a later assignment: real nodes hear of it."""

PATIENCE_S = 60.0
"""Seconds that a measurement waits for Redis, which answers late while a thousand nodes keep it busy."""

LEASE_MS = 2 * HEARTBEAT_MS
COMMIT_SPREAD_S = 0.03
"""Within this time a batch reaches all nodes."""


class LiveNode:
    """One node: its heartbeats on the bus and over HTTP."""

    def __init__(self, node: SimulatedNode, url: str) -> None:
        self.node = node
        self.order = (0, 0)
        self.is_hung = False
        self.failed = 0
        """Calls that Redis did not answer in time."""
        self._gossip = Gossip(RedisBus(url), APPLICATION)
        self._catalogue = node.catalogue()[0]
        self._sequence = 0
        self._clock = SystemClock()
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks = Supervisor()

    async def start(self, *, wants_lease: Callable[[], bool]) -> None:
        self._server = await asyncio.start_server(self._answer, self.node.host.host, self.node.host.port)
        self._tasks.start(self.node.node_id, self._beat(wants_lease))

    async def die(self, *, hang: bool) -> None:
        """Say no more. A node that hangs still accepts connections, one that is dead refuses them."""
        self.is_hung = hang
        await self._tasks.stop()
        if not hang and self._server is not None:
            self._server.close()

    def version_changed(self) -> None:
        """Send a heartbeat soon: the version has changed."""
        self._changed.set()

    async def _beat(self, wants_lease: Callable[[], bool]) -> None:
        await asyncio.sleep(random.uniform(0, HEARTBEAT_MS / 1000))
        while True:
            self._changed.clear()
            try:
                await self._gossip.beat(self._heartbeat())
                if wants_lease():
                    fence = await self._gossip.take_lease(self.node.node_id, above=self.order[0], expiry_ms=LEASE_MS)
                    if fence is not None:
                        await self._gossip.give_lease_up(fence)
            except BusError:
                self.failed += 1
            try:
                async with asyncio.timeout(HEARTBEAT_MS / 1000):
                    await self._changed.wait()
                await asyncio.sleep(random.uniform(0.01, COMMIT_SPREAD_S))
            except TimeoutError:
                pass

    def _heartbeat(self) -> Heartbeat:
        self._sequence += 1
        return self.node.heartbeat(
            sequence=self._sequence, order=self.order, catalogue=self._catalogue, now_ms=self._clock.monotonic_ms()
        )

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (await reader.readuntil(b"\r\n\r\n")) and not self.is_hung:
                body = self._heartbeat().encode()
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
            await asyncio.sleep(3600)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


class Nodes:
    """All of them, and the query that they follow."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._gossip = Gossip(RedisBus(options.redis), APPLICATION)
        self._live = [
            LiveNode(SimulatedNode(number, port=options.port, tasks=options.tasks), options.redis)
            for number in range(1, options.nodes)
        ]
        self._version = 1
        self._clock = SystemClock()
        self._wants_lease = False

    async def run(self) -> None:
        tasks = Supervisor()
        await self._gossip.write_catalogue(*self._live[0].node.catalogue())
        self._commit()
        await self._follow()
        for each in self._live:
            await each.start(wants_lease=lambda: self._wants_lease)
        tasks.start("commit", self._commits())
        tasks.start("follow the assignment", self._follow_on())
        print(json.dumps({"started": len(self._live)}), flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(await self._do(json.loads(line))), flush=True)

    async def _do(self, command: dict[str, object]) -> dict[str, object]:
        if command["do"] == "want the lease":
            self._wants_lease = True
        if command["do"] != "die":
            return {"failed": sum(each.failed for each in self._live)}
        count, hang = int(str(command["count"])), bool(command["hang"])
        dying, self._live = self._live[-count:], self._live[:-count]
        await asyncio.gather(*(each.die(hang=hang) for each in dying))
        return {"dead": [each.node.node_id for each in dying]}

    async def _commits(self) -> None:
        while True:
            await asyncio.sleep(self._options.commit_s)
            self._version += 1
            self._commit()

    def _commit(self) -> None:
        for each in self._live:
            each.node.committed(self._version, self._clock.monotonic_ms())
            each.version_changed()

    async def _follow_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            with suppress(BusError):  # it hears of it in the next turn
                await self._follow()

    async def _follow(self) -> None:
        """Give each node its tasks by the assignment on the bus, if that is a later one."""
        order = self._live[0].order
        head = await self._options.client.getrange(self._gossip.names.assignment, 0, 63)
        fields = head.split(b"\n")[0].split()
        if len(fields) != 4 or (int(fields[2]), int(fields[3])) <= order:
            return
        found = await self._gossip.assignment()
        if found is not None and found.order > order:
            duties = duties_of_all(found)
            for each in self._live:
                each.order = found.order
                each.node.assign(duties.get(each.node.node_id, {}))


def duties_of_all(assignment: Assignment) -> dict[str, dict[str, Role]]:
    """Return the tasks of every node."""
    found: dict[str, dict[str, Role]] = {}
    for task, duty in assignment.tasks.items():
        for node_id in duty.holders:
            found.setdefault(node_id, {})[task] = Role.ACTIVE if node_id == duty.active else Role.STANDBY
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("redis")
    parser.add_argument("--nodes", type=int, required=True, help="with the one that assigns")
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--commit-s", type=float, required=True)
    options = parser.parse_args()
    raise_file_limit()

    async def run() -> None:
        from redis.asyncio import Redis

        options.client = Redis.from_url(options.redis, socket_timeout=PATIENCE_S)
        await Nodes(options).run()

    import uvloop

    uvloop.run(run())


if __name__ == "__main__":
    main()
