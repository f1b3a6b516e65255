"""What the command line says of stopping nodes while Redis is away: three real nodes, a real router."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.services.command_line import ask
from tests.support.spark.queries import wait_until
from tests.system.proof.processes import Service

from understudy_shared.base.sockets import free_port

LIMIT_S = 60.0
NODES = ("node-1", "node-2", "node-3")
PARTITIONS = 2
REFUSED = 3


class Cluster:
    """The nodes, each task on two of them, and the command line against their router."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        checkpoint = HandmadeCheckpoint(folder / "checkpoint", partitions=PARTITIONS).create().add(1, 2, 3)
        self.redis = stack.enter_context(redis_server())
        of_all = ["--application-id", "counting", "--redis", self.redis.url]
        self.nodes = {}
        for name in NODES:
            port, own = free_port(), ["--node-id", name, "--data-dir", str(folder / name)]
            arguments = ["node", str(checkpoint.path), *of_all, *own, "--port", str(port)]
            self.nodes[name] = Service(name, arguments, folder / f"{name}.log", port=port)
        port = free_port()
        arguments = ["router", *of_all, "--port", str(port), "--data-dir", str(folder / "router")]
        self.router = Service("router", arguments, folder / "router.log", port=port)
        for service in (*self.nodes.values(), self.router):
            stack.callback(service.kill)
            service.start()

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return ask(*arguments, variables={"UNDERSTUDY_URL": f"http://127.0.0.1:{self.router.port}"})

    def answer(self, *arguments: str) -> Any:
        return orjson.loads(self.ask(*arguments, "--json").stdout.splitlines()[0])

    def is_safe(self, node_id: str) -> bool:
        """What the command says; its exit code is the same."""
        done = self.ask("safe-to-stop", node_id)
        assert done.returncode == (0 if done.stdout.startswith("yes") else REFUSED), done
        return done.returncode == 0

    def indicators(self) -> dict[str, str]:
        return {each["name"]: each["state"] for each in self.answer("health")["indicators"]}

    def living(self) -> set[str]:
        return {each["node_id"] for each in self.answer("lag")["nodes"] if each["live"]}

    def holders(self) -> list[set[str]]:
        """The nodes of each task that have a replica of it in step, by the report of the router."""
        (store,) = self.answer("lag")["stores"]
        found: dict[int, set[str]] = {}
        for each in store["partitions"]:
            if each["state"] == "RUNNING" and each["offset_lag"] == 0:
                found.setdefault(each["partition"], set()).add(each["node_id"])
        return list(found.values())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        running = Cluster(tmp_path, stack)

        def is_well() -> bool:
            if not running.router.is_ready or running.living() != set(NODES):
                return False
            return [len(nodes) for nodes in running.holders()] == [2] * PARTITIONS

        wait_until(is_well, what="two replicas of each task", limit_s=LIMIT_S)
        yield running


@pytest.mark.full
def test_while_redis_is_away_only_nodes_that_answer_allow_another_one_to_be_stopped(cluster: Cluster) -> None:
    holders = cluster.holders()
    cluster.redis.kill()
    wait_until(lambda: cluster.indicators()["bus"] == "attention", what="Redis is away", limit_s=LIMIT_S)
    assert all(cluster.is_safe(node_id) for node_id in NODES), "each task has another replica, which answers"
    assert "while Redis is away no other becomes active" in cluster.ask("safe-to-stop", min(holders[0])).stdout

    drained = cluster.ask("drain", min(holders[0]), "--within-s", "500")
    assert (drained.returncode, "no task moves until Redis is back" in drained.stderr) == (REFUSED, True), drained
    assert cluster.ask("drain", min(holders[0]), "--undo").returncode == 0

    gone = min(holders[0])
    cluster.nodes[gone].terminate()
    alone = {node_id for nodes in holders if gone in nodes for node_id in nodes - {gone}}
    assert not any(cluster.is_safe(node_id) for node_id in alone), "at once: the only other replica does not answer"
    wait_until(lambda: cluster.living() == set(NODES) - {gone}, what=f"{gone} is left out", limit_s=LIMIT_S)
    found = cluster.indicators()
    assert (found["nodes"], found["redundancy"]) == ("attention", "attention")
    assert not any(cluster.is_safe(node_id) for node_id in alone)

    frozen = min(alone)
    cluster.nodes[frozen].freeze()
    others = set(NODES) - {gone, frozen}
    assert not any(cluster.is_safe(node_id) for node_id in others if any(node_id in each for each in holders))
    cluster.nodes[frozen].thaw()

    cluster.nodes[gone].start()
    wait_until(lambda: all(map(cluster.is_safe, NODES)), what="the node that came back answers", limit_s=LIMIT_S)
