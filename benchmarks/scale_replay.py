"""A large cluster in parts: each process alone on its core, with what the others would say recorded beforehand.

    python -m benchmarks.scale_replay [--nodes 1000] [--seconds 20]

The router is a real one, over a real Redis: it hears recorded heartbeats of all nodes at the times at which the nodes
would send them, then that one node is silent, then an assignment without it. The assignor is the one of a real node,
called with recorded heartbeats. A death costs what the two take together, beside the three heartbeats until it is
noticed. So one machine of two cores measures what a cluster of a thousand machines does.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import redis

from benchmarks.report import write_report
from benchmarks.scale import Figures, child, pauses_of, show, wait_until
from benchmarks.scale_parts import Cluster
from benchmarks.servers import SERVER_CORE, Server, fetch, pin_load, wait_ready
from benchmarks.simulated import APPLICATION, CHECKPOINT, HEARTBEAT_MS, LINEAGE, task_keys
from understudy.demo.local_redis import local_redis
from understudy_node.cluster.assignor import members_of
from understudy_node.cluster.context import MemberId
from understudy_node.cluster.leader import Leadership, TaskSet
from understudy_node.settings import ClusterNodeSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.sockets import free_port
from understudy_shared.bus import redis_scripts as scripts
from understudy_shared.bus.gossip import AgedHeartbeat, Gossip, sealed
from understudy_shared.bus.message_auth import MessageAuth
from understudy_shared.bus.messages import Assignment
from understudy_shared.bus.redis_bus import RedisBus

TICK_S = 0.005
REPLICAS_PER_NODE, REPLICAS_PER_TASK = 100, 2
DYING = 17
"""The number of the node that dies."""

KEPT_MS = 600_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000])
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--dying", type=int, default=10, help="one node in so many dies at the end; 0: none does")
    parser.add_argument("--report", type=Path, help="write the figures to a file, for benchmarks.compare")
    options = parser.parse_args()
    pin_load()
    rounds: dict[str, list[Figures]] = {}
    for nodes in options.nodes:
        name = f"{nodes} nodes, {nodes * REPLICAS_PER_NODE} replicas, in parts"
        print(f"\n{name}", flush=True)
        rounds[name] = [measured(nodes, options.seconds, options.dying)]
        if options.report is not None:
            write_report(options.report, rounds)


def measured(nodes: int, seconds: int, dying: int) -> Figures:
    """Measure the assignor, then the router."""
    cluster = Cluster(nodes, nodes * REPLICAS_PER_NODE // REPLICAS_PER_TASK)
    before = cluster.assignment(1)
    figures, after = judged(cluster, before, dying)
    show(figures)
    with ExitStack() as running:
        heard = routed(running, cluster, before, after, seconds)
    show(heard)
    composed = {"death_known_to_new_assignment_at_router_s": figures["one_death_s"] + heard["followed_s"]}
    show(composed)
    return figures | heard | composed


def judged(cluster: Cluster, before: Assignment, dying: int) -> tuple[Figures, Assignment]:
    """Measure what the node with the lease does, in CPU time. Return the assignment after one death, too."""
    placement = Leadership(
        Gossip(RedisBus("redis://127.0.0.1:1"), APPLICATION),
        ClusterNodeSettings(
            checkpoint=CHECKPOINT, redis="redis://127.0.0.1:1", application_id=APPLICATION, data_dir=Path("unused")
        ),
        MemberId(cluster.nodes[0].node_id, "assignor"),
        clock=SystemClock(),
    )
    placement._learn(before)  # noqa: SLF001  # as `turn` does, without a bus
    placement._stored = before  # noqa: SLF001
    tasks = TaskSet(LINEAGE, len(cluster.tasks), task_keys(len(cluster.tasks)))
    beats = iter([AgedHeartbeat(each, 0) for each in cluster.heartbeats(number, number)] for number in range(1, 6))

    def next_of(dead: Callable[[int], bool]) -> tuple[float, Assignment | None]:
        all_beats = next(beats)
        away = [each for number, each in enumerate(members_of(all_beats, LINEAGE)) if dead(number)]
        living = [each for number, each in enumerate(all_beats) if not dead(number)]
        members = members_of(living, LINEAGE)
        began_s = time.process_time()
        found = placement._next(living, members, away, tasks, (1, 2))  # noqa: SLF001
        return time.process_time() - began_s, found

    first_s, _ = next_of(lambda number: False)
    commit_s, nothing = next_of(lambda number: False)
    assert nothing is None
    death_s, after = next_of(lambda number: number == DYING)
    assert after is not None
    began_s = time.process_time()
    after.encode()
    encode_s = time.process_time() - began_s
    figures = {
        "first_judgement_after_a_takeover_s": first_s,
        "judgement_after_a_commit_s": commit_s,
        "judgement_after_one_death_s": death_s,
        "write_the_assignment_s": encode_s,
        "one_death_s": death_s + encode_s,
    }
    if dying:
        figures["judgement_after_many_deaths_s"], _ = next_of(lambda number: number % dying == dying // 2)
    return figures, after


def routed(running: ExitStack, cluster: Cluster, before: Assignment, after: Assignment, seconds: int) -> Figures:
    """Measure a router that hears all nodes, while all is well and around a death."""
    bus = running.enter_context(local_redis(port=0))
    client = running.enter_context(redis.Redis.from_url(bus.url))
    gossip = Gossip(RedisBus(bus.url), APPLICATION)
    first = asyncio.run(_written(bus.url, before, cluster))
    recorded = list(_recorded(cluster, 2 * seconds + 60))
    for node, payload in zip(cluster.nodes, recorded[0], strict=True):
        value = scripts.owned(f"{node.node_id}-simulated-incarnation") + payload
        client.set(gossip.names.node(node.node_id), value, px=KEPT_MS)
    player = Player(bus.url, gossip.names.heartbeats, recorded[1:])
    running.callback(player.stop)
    port = free_port()
    router = running.enter_context(child("benchmarks.scale_watched", "router", str(port), bus.url, core=SERVER_CORE))
    wait_ready(port, "/readyz", router.process)
    wait_until(
        lambda: len(router.ask({}, forget=False)["nodes"]) == len(cluster.nodes), "a router that knows all nodes"
    )
    server = Server(port, router.process.pid)
    time.sleep(2 * HEARTBEAT_MS / 1000)
    spent_s, began_s = server.cpu_s(), time.monotonic()
    time.sleep(seconds)
    quiet = {
        "router_core": (server.cpu_s() - spent_s) / (time.monotonic() - began_s),
        "router_resident_mb": server.resident_bytes() / 1e6,
    }
    router.ask({})  # from now on its pauses are measured, which takes time of its core
    time.sleep(seconds)
    quiet |= pauses_of("", router.ask({}))
    player.dead = DYING
    time.sleep(4 * HEARTBEAT_MS / 1000)
    silent = pauses_of("death_", router.ask({}))
    began_s = time.monotonic()
    order = asyncio.run(_written(bus.url, after, cluster, first)).order
    wait_until(lambda: tuple(router.ask({}, forget=False)["order"]) == order, "the assignment at the router")
    followed_s = time.monotonic() - began_s
    time.sleep(1)
    assert fetch(port, "/readyz")[0] == 200
    return {**quiet, **silent, "followed_s": followed_s, **pauses_of("assignment_", router.ask({}))}


def _recorded(cluster: Cluster, seconds: int) -> Iterator[list[bytes]]:
    """Yield what the nodes say in each second: one commit a second, and one heartbeat of each node."""
    auth, catalogue = MessageAuth(APPLICATION), cluster.nodes[0].catalogue()[0]
    for second in range(1, seconds + 1):
        now_ms = second * 1000.0
        found = []
        for each in cluster.nodes:
            each.committed(second, now_ms)
            heartbeat = each.heartbeat(sequence=second, order=(1, 1), catalogue=catalogue, now_ms=now_ms)
            found.append(sealed(auth, heartbeat))
        yield found


async def _written(url: str, assignment: Assignment, cluster: Cluster, before: Assignment | None = None) -> Assignment:
    """Write the catalogue, and an assignment under a lease; return it, of the lease's term."""
    gossip = Gossip(RedisBus(url, call_timeout_ms=60_000), APPLICATION)
    await gossip.write_catalogue(*cluster.nodes[0].catalogue())
    fence = await gossip.take_lease("benchmark", above=0, expiry_ms=KEPT_MS)
    assert fence is not None
    written = assignment.model_copy(update={"term": fence.term})
    assert await gossip.write_assignment(written, fence, before)
    await gossip.give_lease_up(fence)
    return written


class Player:
    """Publishes recorded heartbeats at their times, for as long as there are any. Node `dead` is silent."""

    def __init__(self, url: str, channel: str, recorded: Sequence[Sequence[bytes]]) -> None:
        host, _, port = url.removeprefix("redis://").partition("/")[0].partition(":")
        self.dead = -1
        self._connection = socket.create_connection((host, int(port)))
        self._head = b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n" % (len(channel), channel.encode())
        self._recorded = recorded
        self._ended = threading.Event()
        threading.Thread(target=self._play, daemon=True).start()
        threading.Thread(target=self._drain, daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _play(self) -> None:
        began_s = time.monotonic()
        for second, said in enumerate(self._recorded):
            sent = 0
            while sent < len(said) and not self._ended.is_set():
                due = min(len(said), int((time.monotonic() - began_s - second) * len(said)))
                few = [said[number] for number in range(sent, due) if number != self.dead]
                sent = max(sent, due)
                self._connection.sendall(b"".join(self._head + b"$%d\r\n%b\r\n" % (len(each), each) for each in few))
                time.sleep(TICK_S)

    def _drain(self) -> None:
        while self._connection.recv(1 << 20):
            pass


if __name__ == "__main__":
    main()
