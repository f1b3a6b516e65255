"""A real engine builds the images and starts the compose file; then nodes, Redis and routers come and go under reads.

Skipped where no engine can start.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.containers.engine import (
    BUILD_LIMIT_S,
    FILES,
    KEPT,
    NAMESPACE,
    ROOT,
    Engine,
    Stack,
    base_image,
    engine,
)
from tests.support.measurements import measured
from tests.support.services.deploy_files import DOCKER, IMAGES, SERVICES, STACK
from tests.support.spark.queries import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]

NODES = [name for name, image in IMAGES.items() if image == "node"]
ROUTERS = [name for name, image in IMAGES.items() if image == "router"]
URLS = [f"http://127.0.0.1:{SERVICES[name]['ports'][0].split(':')[1]}" for name in ROUTERS]
LIMIT_S = 180.0
ENOUGH_READS = 50
OTHERS = {name: SERVICES[name]["image"] for name in ("valkey", "prometheus", "alertmanager")}


def in_image(found: Engine, image: str, code: str) -> str:
    """What a line of Python says in a container of an image."""
    options = ("run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL")
    return found.docker(*options, image, "python", "-c", code).strip()


@pytest.fixture(scope="module")
def built() -> dict[str, int]:
    """Every image that the stack needs, and the bytes of ours. A stand-in is made of what cannot be had."""
    with engine(namespace=None) as found:
        base = str(DOCKER.arguments["PYTHON_IMAGE"])
        base_image(found, base)
        folder = ROOT / "tests" / "support" / "containers"
        for stage, name in OTHERS.items():
            if not found.has_image(name):
                file = str(folder / "others.Dockerfile")
                options = ("--network=host", "--target", stage, "--file", file, "--tag", name, str(folder))
                found.docker("build", *options, limit_s=BUILD_LIMIT_S)
        found.run(
            "deploy/build.sh",
            limit_s=BUILD_LIMIT_S,
            variables={"DOCKER": "/usr/bin/docker", "BUILD_ARGS": "--network=host"},
        )
        names = {image: SERVICES[name]["image"] for name, image in IMAGES.items()}
        sizes = {
            image: int(found.docker("image", "inspect", "--format", "{{.Size}}", name)) for image, name in names.items()
        }
    for image, size in sizes.items():
        measured(f"image of {image}: {size / 1e6:.0f} MB")
    return sizes


@pytest.fixture(scope="module")
def running(built: dict[str, int]) -> Iterator[tuple[Engine, Stack]]:
    """The stack, from its start to its first lookup."""
    file = KEPT / "docker-compose.json"
    # An older docker-compose does not know `name`, and paths are taken from the file's folder.
    stack_of = json.loads(json.dumps(STACK).replace('"./deploy', f'"{ROOT}/deploy'))
    del stack_of["name"]
    for service in stack_of["services"].values():
        if "ulimits" in service:
            service["ulimits"] = {"nofile": {"soft": FILES, "hard": FILES}}
    file.write_text(json.dumps(stack_of))
    with engine(namespace=NAMESPACE) as found:
        stack = Stack(found, file)
        began_s = time.monotonic()
        try:
            stack.command("up", "-d", "--no-build", limit_s=900)
            up_s = time.monotonic() - began_s
            wait_until(lambda: is_whole(stack), what="a whole stack", limit_s=LIMIT_S)
            measured(f"compose: {up_s:.0f} s until all are healthy, {time.monotonic() - began_s:.0f} s until whole")
            yield found, stack
        finally:
            (KEPT / "compose.log").write_text(stack.command("logs", "--no-color", "--tail", "2000"))
            stack.command("down", "--volumes", "--timeout", "5")


def is_whole(stack: Stack, url: str = URLS[0]) -> bool:
    """Whether every node lives, and each may be stopped without a loss."""
    answers = [stack.ask(f"{url}/admin/v1/nodes/{name}/safe-to-stop") for name in NODES]
    return all(answer and json.loads(answer).get("safe") is True for answer in answers) and all(living(stack).values())


def living(stack: Stack, url: str = URLS[0]) -> dict[str, bool]:
    """Whether a router says of each node that it lives; nothing of nodes that it does not name."""
    said = stack.ask(f"{url}/admin/v1/lag")
    nodes: list[dict[str, Any]] = json.loads(said).get("nodes", []) if said else []
    known = {node["node_id"]: node["live"] for node in nodes}
    return {name: known.get(name, False) for name in NODES}


@contextmanager
def reads(found: Engine, folder: Path) -> Iterator[dict[str, int]]:
    """Reads through both routers within the block; then the dictionary says how many of each outcome there were."""
    counts: dict[str, int] = {}
    file, output = folder / "counts.json", folder / "reader.log"
    reader = found.beside([sys.executable, "-m", "tests.support.containers.reader", str(file), *URLS], output)
    try:
        wait_until(file.exists, what="the first read", limit_s=LIMIT_S)
        yield counts
        before = sum(json.loads(file.read_text()).values())
        wait_until(
            lambda: sum(json.loads(file.read_text() or "{}").values()) >= before + ENOUGH_READS,
            what="reads after the fault",
            limit_s=LIMIT_S,
        )
    finally:
        reader.terminate()
        reader.wait(30)
    counts.update(json.loads(file.read_text()))


def unanswered(counts: dict[str, int]) -> dict[str, int]:
    assert counts.get("found", 0) > ENOUGH_READS
    return {outcome: count for outcome, count in counts.items() if outcome not in ("found", "absent")}


@pytest.fixture
def stack(running: tuple[Engine, Stack]) -> Stack:
    return running[1]


@pytest.mark.parametrize("image", ["node", "router"])
def test_an_image_has_no_compiler_no_spark_and_no_other_service(image: str, running: tuple[Engine, Stack]) -> None:
    found, _ = running
    name = next(SERVICES[each]["image"] for each, own in IMAGES.items() if own == image)
    code = (
        "import importlib.util as u, shutil, os; "
        "names = ('pyspark', 'understudy_node', 'understudy_router', 'understudy_pipeline'); "
        "print([m for m in names if u.find_spec(m)], "
        "[c for c in ('cc', 'gcc', 'g++', 'java') if shutil.which(c)], os.getuid())"
    )
    assert in_image(found, name, code) == f"['understudy_{image}'] [] 10001"
    labels = json.loads(found.docker("image", "inspect", "--format", "{{json .Config.Labels}}", name))
    assert labels["org.opencontainers.image.version"] == name.rpartition(":")[2]
    assert labels["org.opencontainers.image.revision"] not in ("", "unknown")


def test_containers_run_without_root_and_cannot_write_their_root(stack: Stack) -> None:
    for service in (*NODES, *ROUTERS, "pipeline"):
        said = stack.on(service, "inspect", "--format", "{{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}}")
        assert said.split() == ["true", "[ALL]"]
        assert stack.command("exec", "-T", service, "id", "-u").strip() == "10001"


def test_prometheus_sees_every_node_and_router(stack: Stack) -> None:
    def up() -> int:
        said = stack.ask("http://127.0.0.1:9090/api/v1/query?query=sum(up)")
        found = json.loads(said)["data"]["result"] if said else []
        return int(found[0]["value"][1]) if found else 0

    wait_until(lambda: up() == len(NODES) + len(ROUTERS), what="all targets", limit_s=LIMIT_S)


@pytest.mark.parametrize("fault", ["paused", "cut off", "killed"])
def test_a_node_that_goes_costs_no_read(fault: str, running: tuple[Engine, Stack], tmp_path: Path) -> None:
    found, stack = running
    victim = NODES[0]
    network = stack.network()
    causes = {
        "paused": lambda: stack.on(victim, "pause"),
        "cut off": lambda: stack.on(victim, "network", "disconnect", network),
        "killed": lambda: stack.on(victim, "kill", "-s", "KILL"),
    }
    mends = {
        "paused": lambda: stack.on(victim, "unpause"),
        "cut off": lambda: stack.on(victim, "network", "connect", "--alias", victim, network),
        "killed": lambda: stack.on(victim, "start"),
    }
    wait_until(lambda: is_whole(stack), what="a whole stack", limit_s=LIMIT_S)
    with reads(found, tmp_path) as counts:
        causes[fault]()
        wait_until(lambda: not living(stack)[victim], what=f"routers to notice that it is {fault}", limit_s=LIMIT_S)
        mends[fault]()
        wait_until(lambda: is_whole(stack), what="a whole stack again", limit_s=LIMIT_S)
    measured(f"compose, a node {fault}: {sum(counts.values())} reads, {sum(unanswered(counts).values())} failed")
    assert unanswered(counts) == {}


def test_a_redis_that_hangs_costs_no_read(running: tuple[Engine, Stack], tmp_path: Path) -> None:
    found, stack = running
    with reads(found, tmp_path) as counts:
        stack.on("valkey", "pause")
        wait_until(lambda: "bus is away" in stack.ask(f"{URLS[0]}/readyz"), what="a lost bus", limit_s=LIMIT_S)
        stack.on("valkey", "unpause")
        wait_until(lambda: is_whole(stack), what="a whole stack again", limit_s=LIMIT_S)
    measured(f"compose, Redis paused: {sum(counts.values())} reads, {sum(unanswered(counts).values())} failed")
    assert unanswered(counts) == {}


def test_a_rolling_restart_costs_no_read(running: tuple[Engine, Stack], tmp_path: Path) -> None:
    found, stack = running
    wait_until(lambda: is_whole(stack), what="a whole stack", limit_s=LIMIT_S)
    with reads(found, tmp_path) as counts:
        for service in (*NODES, *ROUTERS):
            stack.command("restart", "--timeout", "20", service)
            for url in URLS:
                wait_until(partial(is_whole, stack, url), what=f"{url} after {service}", limit_s=LIMIT_S)
    measured(f"compose, rolling restart: {sum(counts.values())} reads, {sum(unanswered(counts).values())} failed")
    assert unanswered(counts) == {}
