"""`understudy node --processes 2`: two whole nodes under one supervisor, each with its ports, name and folder."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.in_process import (
    APPLICATION,
    HEARTBEAT_MS,
    TASKS,
    VERSION,
    ClusterRouter,
    cluster_router,
    rests,
)
from tests.support.cluster.served_node import Served
from tests.support.cluster.watch import reading
from tests.support.services.process_table import processes_below
from tests.support.services.supervised import LIMIT_S, kill, wait_to_be_gone
from tests.support.spark.queries import wait_until

from understudy_node.cluster.serve import nodes_of
from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_shared.base.errors import SettingsError

CODE = """
import sys
from understudy_node.cluster.serve import main
checkpoint, redis, folder, application, heartbeat_ms = sys.argv[1:]
main({"checkpoint": checkpoint, "redis": redis, "port": 0, "processes": 2, "node_id": "n", "data_dir": folder,
      "application_id": application, "lag_refresh_ms": int(heartbeat_ms), "shutdown_delay_ms": 100,
      "rebalance_delay_ms": 3_600_000}, started=lambda nodes: print(nodes.host.port, flush=True))
"""


class NodesProcess(Served):
    """The supervisor of two nodes, and a client of the first one's port."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        super().__init__(port)
        self.process = process

    def nodes(self) -> list[int]:
        return processes_below(self.process.pid)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, module_redis: RedisServer) -> Iterator[NodesProcess]:
    folder = tmp_path_factory.mktemp("nodes")
    made = HandmadeCheckpoint(folder / "checkpoint", partitions=TASKS).create().add(*range(1, VERSION + 1))
    arguments = [str(made.path), module_redis.url, str(folder / "data"), APPLICATION, str(HEARTBEAT_MS)]
    process = subprocess.Popen([sys.executable, "-c", CODE, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield NodesProcess(process, int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def router(nodes: NodesProcess, module_redis: RedisServer) -> Iterator[ClusterRouter]:
    with cluster_router(module_redis.url) as found:
        wait_until(lambda: is_at_rest(found), what="rest", limit_s=LIMIT_S)
        yield found


def is_at_rest(router: ClusterRouter) -> bool:
    return router.not_ready() == "" and rests(router, ["n-0", "n-1"], 2, VERSION)


def metric(client: Served, name: str) -> float:
    found = re.search(rf"(?m)^{re.escape(name)} (\S+)$", client.text("/metrics"))
    return float(found[1]) if found else 0.0


def test_they_share_the_tasks_and_each_speaks_for_itself(nodes: NodesProcess, router: ClusterRouter) -> None:
    living = router.living()
    assert [living[name]["active"] for name in ("n-0", "n-1")] == [TASKS // 2, TASKS // 2]
    for node in living.values():
        client = Served(node["port"])
        wait_until(lambda client=client: client.not_ready() == "", what="readiness", limit_s=LIMIT_S)  # type: ignore[misc]
        roles = [f'understudy_replicas{{role="{role}",state="RUNNING",store="op0"}}' for role in ("active", "standby")]
        assert [metric(client, role) for role in roles] == [TASKS // 2, TASKS // 2]


def test_a_node_that_is_killed_is_started_again_and_no_read_fails(nodes: NodesProcess, router: ClusterRouter) -> None:
    first = nodes.nodes()
    with reading(router) as reader:
        reader.wait_for_answers()
        kill(first[0])
        wait_until(lambda: len(set(nodes.nodes()) - {first[0]}) == 2, what="the restart", limit_s=LIMIT_S)
        wait_until(lambda: is_at_rest(router), what="rest", limit_s=LIMIT_S)
        reader.wait_for_answers()


def test_they_end_together_in_good_order(nodes: NodesProcess) -> None:
    running = nodes.nodes()
    nodes.process.send_signal(signal.SIGTERM)
    assert nodes.process.wait(60) == -signal.SIGTERM
    wait_to_be_gone(running)


def settings(**given: Any) -> ClusterNodeSettings:
    return ClusterNodeSettings(checkpoint="/c", redis="redis://h", processes=3, **given)


def test_each_has_a_port_a_name_and_a_folder_of_its_own() -> None:
    port, own = 7101, {"host": "127.0.0.37", "advertise_host": "h", "advertise_port": 9000}  # nobody else's loopback
    host, orders = nodes_of(settings(port=port, node_id="n", data_dir=Path("/d"), **own))
    assert (host.host, host.port) == ("h", 9000)
    found = [ClusterNodeSettings(**order.settings) for order in orders]
    assert [(each.port, each.advertise_port, each.node_id, str(each.data_dir)) for each in found] == [
        (port + number, 9000 + number, f"n-{number}", f"/d/{number}") for number in range(3)
    ]


def test_without_names_each_is_named_by_its_port_and_keeps_its_copies_apart() -> None:
    _, orders = nodes_of(settings(port=0))
    found = [ClusterNodeSettings(**order.settings) for order in orders]
    assert len({each.port for each in found} | {0}) == 4
    assert len({each.data_directory for each in found}) == 3
    assert [(each.node_id, each.advertise_port) for each in found] == [("", 0)] * 3


def test_an_advertised_port_beyond_the_last_is_refused() -> None:
    with pytest.raises(SettingsError, match="65536"):
        nodes_of(settings(port=0, advertise_port=65_534))


def test_what_no_node_can_start_with_is_said_once_with_the_exit_code(module_redis: RedisServer, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "understudy", "node", str(tmp_path / "nowhere"), "--redis", module_redis.url]
    command += ["--port", "0", "--processes", "2", "--data-dir", str(tmp_path), "--checkpoint-wait-ms", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count(str(tmp_path / "nowhere")) == done.stderr.count("error: ") == 1, done.stderr
