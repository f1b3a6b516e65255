"""The two processes that benchmarks/scale.py looks at from inside: a router, and the node that assigns.

    python -m benchmarks.scale_watched router PORT REDIS
    python -m benchmarks.scale_watched assignor PORT REDIS TASKS REBALANCE_DELAY_MS

Both run the product's own code, with a meter of the loop's pauses. Each line on standard input is answered by a JSON
object: pauses since the last one, and what the process knows of the cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import uvloop

from benchmarks.loop_pauses import PauseMeter
from benchmarks.simulated import APPLICATION, CHECKPOINT, HEARTBEAT_MS, SimulatedNode
from understudy_node.cluster.context import MemberId
from understudy_node.cluster.member import ClusterMember
from understudy_node.settings import ClusterNodeSettings
from understudy_router.router import Router
from understudy_router.serve import StartedRouter
from understudy_router.serve import main as serve_router
from understudy_shared.base.background import Supervisor
from understudy_shared.base.clock import SystemClock
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.redis_bus import RedisBus


def router(port: int, redis: str) -> None:
    """Run `understudy router`, watched."""
    meter = PauseMeter()

    def started(found: StartedRouter) -> None:
        assert isinstance(found, Router), "one process"
        meter.start()  # on the loop of the service, which listens from now on
        answer(lambda forget: {**meter.take(forget=forget), **known_to(found)})

    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        serve_router({"port": port, "redis": redis, "application_id": APPLICATION, "data_dir": folder}, started)


def known_to(found: Router) -> dict[str, object]:
    """Return the cluster as a router knows it."""
    tables = found.tables
    return {"nodes": sorted(tables.nodes), "order": tables.order, "version": tables.end_version, "bus": found.degraded}


def assignor(port: int, redis: str, tasks: int, rebalance_delay_ms: int) -> None:
    """Run a member of the cluster with a simulated node: it takes the lease, listens, asks silent nodes and assigns."""
    meter = PauseMeter()
    node = SimulatedNode(0, port=port, tasks=tasks)
    settings = ClusterNodeSettings(
        checkpoint=CHECKPOINT,
        redis=redis,
        application_id=APPLICATION,
        data_dir=Path("unused"),
        zone=node.zone,
        rebalance_delay_ms=rebalance_delay_ms,
    )

    async def run() -> None:
        member = ClusterMember(
            node.as_node,
            Gossip(RedisBus(redis), APPLICATION),
            settings,
            MemberId(node.node_id, "assignor"),
            clock=SystemClock(),
        )

        async def keep_up() -> None:
            while True:  # its end is the one that the others report
                beats = [seen.heartbeat for seen in member.beat._neighbours.alive(SystemClock().monotonic_ms())]  # noqa: SLF001
                version = max((beat.end_version for beat in beats), default=0)
                node.committed(version, SystemClock().monotonic_ms())
                member.changed()
                await asyncio.sleep(HEARTBEAT_MS / 1000)

        async def lags(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            body = member.heartbeat().encode()
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            writer.close()

        await asyncio.start_server(lags, node.host.host, node.host.port)
        meter.start()
        member.start()
        background = Supervisor()
        background.start("keep up", keep_up())
        answer(
            lambda forget: {
                **meter.take(forget=forget),
                "order": member.assignment.order if member.assignment else (0, 0),
            }
        )
        await asyncio.Event().wait()

    uvloop.run(run())


def answer(status: Callable[[bool], dict[str, object]]) -> None:
    """Print the status for each line on standard input, in a thread of its own. A line says whether to begin anew."""

    def run() -> None:
        for line in sys.stdin:
            print(json.dumps(status(json.loads(line)["forget"])), flush=True)
        os._exit(0)  # who asked is gone

    threading.Thread(target=run, daemon=True).start()


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "router":
        router(int(arguments[0]), arguments[1])
    else:
        assignor(int(arguments[0]), arguments[1], int(arguments[2]), int(arguments[3]))
