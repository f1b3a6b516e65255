"""A large cluster over a real Redis: what its gossip costs, how long loops stop, and how long it takes after deaths.

    python -m benchmarks.scale [--nodes 1000] [--replicas 100000] [--seconds 20] [--report FILE]

One real router watches, and one real member of the cluster assigns. The other nodes are simulated by one process: they
send what real ones send, by the same code, and ask for the lease as these do. Real nodes also listen: `--listeners`
adds that many subscribers that only read, in steps, and says what each costs Redis. The router has one core to itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from benchmarks.report import write_report
from benchmarks.scale_nodes import PATIENCE_S
from benchmarks.scale_parts import assigned, assignment_of, costs
from benchmarks.servers import LOAD_CORE, SERVER_CORE, Server, fetch, pin_load, wait_ready
from benchmarks.simulated import APPLICATION, HEARTBEAT_MS, SimulatedNode, task_keys
from understudy.demo.local_redis import LocalRedis, local_redis
from understudy_node.cluster.assignor import Member
from understudy_shared.base.sockets import free_port
from understudy_shared.bus.gossip import Gossip, Names
from understudy_shared.bus.messages import Assignment
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.server.connection_guard import raise_file_limit

LIMIT_S = 180.0
LOOK_S = 0.05
REPLICAS_PER_TASK = 2
DYING = 10
"""One node in so many dies."""

Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--replicas", type=int, nargs="+", help="as many for each size; by default 100 for each node")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--commit-s", type=float, default=1.0, help="between two commits of the query")
    parser.add_argument("--rebalance-delay-ms", type=int, default=15_000)
    parser.add_argument("--listeners", type=int, nargs="*", default=[10, 40])
    parser.add_argument("--no-parts", action="store_true", help="leave out the single steps")
    parser.add_argument("--report", type=Path, help="write the figures to a file, for benchmarks.compare")
    options = parser.parse_args()
    raise_file_limit()
    pin_load()
    rounds: dict[str, list[Figures]] = {}
    for number, nodes in enumerate(options.nodes):
        replicas = options.replicas[number] if options.replicas else 100 * nodes
        name = f"{nodes} nodes, {replicas} replicas"
        print(f"\n{name}", flush=True)
        rounds[name] = [measured(nodes, replicas // REPLICAS_PER_TASK, options)]
        if options.report is not None:
            write_report(options.report, rounds)
    if not options.no_parts:
        print("\nsingle steps", flush=True)
        for cost in costs(options.nodes[-1], (options.replicas or [100_000])[-1]):
            print(cost, flush=True)
            rounds[cost.what] = [{"us": cost.us}]
    if options.report is not None:
        write_report(options.report, rounds)


def measured(nodes: int, tasks: int, options: argparse.Namespace) -> Figures:
    """Measure all figures of one size."""
    with ExitStack() as running:
        cluster = Cluster(running, nodes, tasks, options)
        figures = cluster.gossip(options.seconds)
        show(figures)
        for phase in (cluster.reports, cluster.killed, cluster.hung):
            found = phase()
            show(found)
            figures |= found
        for count in options.listeners:
            found = cluster.heard_by(running, count)
            show(found)
            figures |= found
        return figures


def show(figures: Figures) -> None:
    for name, figure in figures.items():
        print(f"  {name.replace('_', ' '):48}{figure:14,.3f}", flush=True)


class Cluster:
    """Everything that runs."""

    def __init__(self, running: ExitStack, nodes: int, tasks: int, options: argparse.Namespace) -> None:
        self._bus = running.enter_context(local_redis(port=0))
        self._client = running.enter_context(redis.Redis.from_url(self._bus.url, socket_timeout=PATIENCE_S))
        self._names = Names(APPLICATION)
        self._alive = nodes
        self._dead: set[str] = set()
        port, commit_s = free_port(), str(options.commit_s)
        first_s = first_assignment(self._bus, nodes, tasks, port)
        show({"assign_and_write_first_s": first_s})
        arguments = ["--nodes", str(nodes), "--tasks", str(tasks), "--port", str(port), "--commit-s", commit_s]
        self._nodes = running.enter_context(child("benchmarks.scale_nodes", self._bus.url, *arguments))
        self._nodes.read()
        wait_until(lambda: self._keys() >= nodes - 1, "all heartbeats")
        delay_ms = str(options.rebalance_delay_ms)
        assigns = ["assignor", str(port), self._bus.url, str(tasks), delay_ms]
        self._assignor = running.enter_context(child("benchmarks.scale_watched", *assigns))
        wait_until(lambda: self._client.exists(self._names.lease), "the lease")
        self._nodes.ask({"do": "want the lease"})
        router_port = free_port()
        self._router = running.enter_context(
            child("benchmarks.scale_watched", "router", str(router_port), self._bus.url, core=SERVER_CORE)
        )
        wait_ready(router_port, "/readyz", self._router.process)
        self._server = Server(router_port, self._router.process.pid)
        wait_until(lambda: len(self._router.ask({})["nodes"]) == nodes, "a router that knows all nodes")
        time.sleep(3 * HEARTBEAT_MS / 1000)

    def gossip(self, seconds: float) -> Figures:
        """Measure a while of heartbeats and commits, and nothing else."""
        self._router.ask({})
        self._assignor.ask({})
        before, began_s = self._spent(), time.monotonic()
        time.sleep(seconds)
        passed_s = time.monotonic() - began_s
        spent = {name: after - before[name] for name, after in self._spent().items()}
        pauses, assignor = self._router.ask({}), self._assignor.ask({})
        return {
            "heartbeats_per_s": spent["published"] / passed_s,
            "calls_without_answer": float(self._nodes.ask({"do": "count"})["failed"]),
            "into_redis_mb_per_s": spent["in"] / passed_s / 1e6,
            "out_of_redis_mb_per_s": spent["out"] / passed_s / 1e6,
            "redis_core": spent["redis"] / passed_s,
            "router_core": spent["router"] / passed_s,
            "router_resident_mb": self._server.resident_bytes() / 1e6,
            **pauses_of("", pauses),
            "assignor_core": spent["assignor"] / passed_s,
            **pauses_of("assignor_", assignor),
        }

    def reports(self) -> Figures:
        """Measure the reports of a router: how long each takes, and how long nothing else is answered."""
        found: Figures = {}
        for name, path in (
            ("readyz", "/readyz"),
            ("metrics", "/metrics"),
            ("explain_key", "/v1/stores/aircraft/metadata/some-key"),
            ("store_metadata", "/v1/stores/aircraft/metadata"),
            ("lag_report", "/admin/v1/lag"),
        ):
            self._router.ask({})
            began_s = time.perf_counter()
            status, body = fetch(self._server.port, path)
            found[f"{name}_ms"] = (time.perf_counter() - began_s) * 1000
            assert status == 200, (path, status, body[:200])
            found[f"{name}_pause_ms"] = float(self._router.ask({})["longest_ms"])
        return found

    def killed(self) -> Figures:
        return self._deaths(hang=False)

    def hung(self) -> Figures:
        return self._deaths(hang=True)

    def _deaths(self, *, hang: bool) -> Figures:
        """Let a tenth of the nodes die, and measure until the router takes none of them for alive, follows an
        assignment in which none of them is active, and, after the rebalance delay, one that does not name them.
        """
        self._router.ask({})
        self._assignor.ask({})
        before, named = self._client.info("stats")["total_net_output_bytes"], self._assignment().holders
        began_s = time.monotonic()
        dead = set(self._nodes.ask({"do": "die", "count": self._alive // DYING, "hang": hang})["dead"])
        self._alive -= len(dead)
        assert dead <= named, "a node without tasks dies unseen"
        heard_s = time.monotonic() - began_s
        what = "hung" if hang else "killed"
        gone_s = self._until(lambda known, found: not dead & set(known["nodes"]), began_s)
        promoted_s = self._until(lambda known, found: followed(known, found) and not dead & actives(found), began_s)
        replaced_s = self._until(lambda known, found: followed(known, found) and not dead & found.holders, began_s)
        pauses, assignor = self._router.ask({}), self._assignor.ask({})
        sent = self._client.info("stats")["total_net_output_bytes"] - before
        return {
            f"{what}_nodes": len(dead),
            f"{what}_all_heard_s": heard_s,
            f"{what}_none_alive_to_router_s": gone_s,
            f"{what}_none_active_s": promoted_s,
            f"{what}_none_named_s": replaced_s,
            f"{what}_sent_by_redis_mb": sent / 1e6,
            **pauses_of(f"{what}_", pauses),
            **pauses_of(f"{what}_assignor_", assignor),
        }

    def heard_by(self, running: ExitStack, count: int) -> Figures:
        """Measure the same gossip with so many more listeners, as each real node is one."""
        listener = running.enter_context(child("benchmarks.scale", "listen", self._bus.url, str(count)))
        listener.read()
        seconds = 5.0
        before = self._spent()
        time.sleep(seconds)
        spent = {name: after - before[name] for name, after in self._spent().items()}
        return {
            f"with_{count}_more_listeners_redis_core": spent["redis"] / seconds,
            f"with_{count}_more_listeners_out_mb_per_s": spent["out"] / seconds / 1e6,
        }

    def _spent(self) -> Figures:
        stats, cpu = self._client.info("stats"), self._client.info("cpu")
        return {
            "in": stats["total_net_input_bytes"],
            "out": stats["total_net_output_bytes"],
            "published": self._client.info("commandstats")["cmdstat_publish"]["calls"],
            "redis": cpu["used_cpu_user"] + cpu["used_cpu_sys"],
            "router": self._server.cpu_s(),
            "assignor": Server(0, self._assignor.process.pid).cpu_s(),
        }

    def _keys(self) -> int:
        return sum(1 for _ in self._client.scan_iter(f"{self._names.nodes}*", count=1000))

    def _until(self, holds: Callable[[dict[str, Any], Assignment], bool], began_s: float) -> float:
        """Return the seconds until the router's tables, and the assignment on the bus, are so."""
        order, found = b"", None
        while time.monotonic() - began_s < LIMIT_S:
            head = self._client.getrange(self._names.assignment, 0, 63).split(b"\n")[0]
            if head != order or found is None:
                order, found = head, self._assignment()
            if holds(self._router.ask({}, forget=False), found):
                return time.monotonic() - began_s
            time.sleep(LOOK_S)
        return float("inf")

    def _assignment(self) -> Assignment:
        _, _, value = self._client.get(self._names.assignment).partition(b"\n")  # the line of the bus
        return Assignment.decode(value.partition(b"\n")[2], application_id=APPLICATION, where="Redis")


def followed(known: dict[str, Any], found: Assignment) -> bool:
    """Whether the router follows this assignment."""
    return tuple(known["order"]) == found.order


def actives(assignment: Assignment) -> set[str | None]:
    return {task.active for task in assignment.tasks.values()}


def pauses_of(prefix: str, status: dict[str, Any]) -> Figures:
    """Return a loop's pauses; print the code that ran during long ones."""
    for doing, times in status["doing"]:
        print(f"    {prefix or 'router '}paused {times} x in {doing}", flush=True)
    return {
        f"{prefix}longest_pause_ms": status["longest_ms"],
        f"{prefix}longest_own_pause_ms": status["longest_own_ms"],
        f"{prefix}longest_collection_ms": status["longest_collection_ms"],
        f"{prefix}p99_pause_ms": status["p99_ms"],
        f"{prefix}pauses_above_20_ms": float(status["above_20_ms"]),
    }


def first_assignment(bus: LocalRedis, nodes: int, tasks: int, port: int) -> float:
    """Write the assignment that the cluster begins with, under a lease; seconds that this takes."""

    async def write() -> None:
        gossip = Gossip(RedisBus(bus.url), APPLICATION)
        fence = await gossip.take_lease("benchmark", above=0, expiry_ms=600_000)
        assert fence is not None
        simulated = [SimulatedNode(number, port=port, tasks=tasks) for number in range(nodes)]
        found = assigned([Member(each.node_id, each.zone) for each in simulated], task_keys(tasks), {}, {})
        await gossip.write_assignment(assignment_of(simulated, found, 1), fence)
        await gossip.give_lease_up(fence)

    began_s = time.monotonic()
    asyncio.run(write())
    return time.monotonic() - began_s


class Child:
    """A process that answers each line with a JSON object."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, command: dict[str, object], *, forget: bool = True) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({**command, "forget": forget}) + "\n")
        self.process.stdin.flush()
        return self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended with {self.process.wait(10)}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def child(module: str, *arguments: str, core: int = LOAD_CORE) -> Iterator[Child]:
    """Run a module until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        if len(os.sched_getaffinity(0)) > 1 or os.cpu_count() != 1:
            os.sched_setaffinity(process.pid, {core})
        yield Child(process)
    finally:
        process.kill()
        process.wait(30)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def listen(url: str, count: int) -> None:
    """Run so many subscribers that read and forget."""
    host, _, port = url.removeprefix("redis://").partition("/")[0].partition(":")
    names = Names(APPLICATION)
    sockets = [socket.create_connection((host, int(port))) for _ in range(count)]
    for each in sockets:
        each.sendall(b"SUBSCRIBE %b\r\n" % names.channel.encode())
    print("{}", flush=True)
    threads = [threading.Thread(target=_drain, args=(each,), daemon=True) for each in sockets]
    for thread in threads:
        thread.start()
    threads[0].join()


def _drain(connection: socket.socket) -> None:
    into = bytearray(1 << 20)
    while connection.recv_into(into):
        time.sleep(0.02)


def wait_until(condition: Callable[[], object], what: str) -> None:
    limit_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > limit_s:
            raise RuntimeError(f"the wait of {LIMIT_S:.0f} s for {what} was in vain")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    if sys.argv[1:2] == ["listen"]:
        listen(sys.argv[2], int(sys.argv[3]))
    else:
        main()
