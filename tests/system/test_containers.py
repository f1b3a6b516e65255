"""A real engine builds the images and starts the compose file; then nodes, Redis and routers come and go under reads.

Skipped where no engine can start. It wants the machine for itself: run it with nothing beside it.
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
from tests.support.containers.engine import BUILD_LIMIT_S, KEPT, NAMESPACE, Engine, client, engine
from tests.support.containers.stack import NETWORK, NODES, PORTS, ROUTERS, START_LIMIT_S, Stack, until
from tests.support.measurements import measured
from tests.support.repository import ROOT
from tests.support.services.deploy_files import IMAGES, SERVICES, STACK

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * BUILD_LIMIT_S)]

URLS = [f"http://127.0.0.1:{port}" for port in PORTS.values()]
ENOUGH_READS = 50
ROUNDS = 2
"""How often each node and router is restarted."""

HEALTHY = "health_status: healthy"
EVENTS = ["--filter", "event=start", "--filter", "event=health_status"]
EVENTS += ["--format", "{{.TimeNano}} {{.Actor.Attributes.name}} {{.Action}}"]


@pytest.fixture(scope="module")
def running(built: None) -> Iterator[tuple[Engine, Stack]]:
    """The stack, from its start to its first lookup."""
    with engine(namespace=NAMESPACE) as found:
        stack = Stack(found, STACK)
        told = KEPT / "events.log"
        events = found.beside([client(), "events", *EVENTS], told)
        began_s = time.monotonic()
        try:
            # Each waits until what it depends on is healthy: Valkey, then nodes, then routers. Nodes await the query.
            stack.command("up", "-d", "--no-build", "pipeline", *ROUTERS, limit_s=START_LIMIT_S)
            up_s = time.monotonic() - began_s
            until(lambda: stack.finds(URLS[0]), what="the first lookup")
            measured(f"compose: routers start after {up_s:.0f} s, first lookup at {time.monotonic() - began_s:.0f} s")
            stack.command("up", "-d", "--no-build", limit_s=START_LIMIT_S)
            until(lambda: is_whole(stack), what="a whole stack")
            measured(f"compose: whole, and monitored, at {time.monotonic() - began_s:.0f} s")
            until(lambda: healthy_after_s(told.read_text()).keys() == SERVICES.keys(), what="every container's health")
            healthy = healthy_after_s(told.read_text())
            measured("compose, from start to healthy: " + ", ".join(f"{name} {s:.0f} s" for name, s in healthy.items()))
            yield found, stack
        finally:
            events.terminate()
            events.wait(60)
            (KEPT / "compose.log").write_text(stack.command("logs", "--no-color", "--tail", "3000"))
            stack.command("down", "--volumes", "--timeout", "5")


def healthy_after_s(events: str) -> dict[str, float]:
    """Seconds from the start of each container until it was healthy first, by what the engine told as it happened."""
    times: dict[tuple[str, str], int] = {}
    for line in events.splitlines():
        nanoseconds, name, action = line.split(" ", 2)
        times.setdefault((name.removeprefix("understudy-"), action), int(nanoseconds))
    return {
        name: (times[name, HEALTHY] - times[name, "start"]) / 1e9
        for name in SERVICES
        if {(name, HEALTHY), (name, "start")} <= times.keys()
    }


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
        until(file.exists, what="the first read")
        yield counts
        before = sum(json.loads(file.read_text()).values())
        until(lambda: sum(json.loads(file.read_text()).values()) >= before + ENOUGH_READS, what="reads after the fault")
    finally:
        reader.terminate()
        reader.wait(60)
    counts.update(json.loads(file.read_text()))


def unanswered(counts: dict[str, int]) -> dict[str, int]:
    """What was no answer, by outcome."""
    assert counts.get("found", 0) > ENOUGH_READS
    return {outcome: count for outcome, count in counts.items() if outcome not in ("found", "absent")}


def report(what: str, counts: dict[str, int]) -> None:
    """Show what readers saw."""
    measured(f"compose, {what}: {sum(counts.values())} reads, {sum(unanswered(counts).values())} failed")


@pytest.fixture
def stack(running: tuple[Engine, Stack]) -> Stack:
    return running[1]


@pytest.mark.parametrize("image", ["node", "router"])
def test_an_image_has_what_settings_switch_on_and_no_compiler_no_spark_and_no_other_service(
    image: str, running: tuple[Engine, Stack]
) -> None:
    found, _ = running
    name = next(SERVICES[each]["image"] for each, own in IMAGES.items() if own == image)
    code = (
        "import importlib.util as u, shutil, os; "
        "names = ('pyspark', 'understudy_node', 'understudy_router', 'understudy_pipeline', "
        "'understudy_aligned', 'opentelemetry.sdk', 'jwt', 'obstore'); "
        "print([m for m in names if u.find_spec(m)], "
        "[c for c in ('cc', 'gcc', 'g++', 'java') if shutil.which(c)], os.getuid())"
    )
    options = ("run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL")
    said = found.docker(*options, name, "python", "-c", code).strip()
    store = ["obstore"] if image == "node" else []
    assert said == f"{[f'understudy_{image}', 'opentelemetry.sdk', 'jwt', *store]} [] 10001"


@pytest.mark.parametrize("image", sorted(set(IMAGES.values())))
def test_an_image_says_its_version_its_commit_and_what_is_in_it(image: str, running: tuple[Engine, Stack]) -> None:
    found, _ = running
    name = next(SERVICES[each]["image"] for each, own in IMAGES.items() if own == image)
    labels = json.loads(found.docker("image", "inspect", "--format", "{{json .Config.Labels}}", name))
    version = name.rpartition(":")[2]
    assert labels["org.opencontainers.image.version"] == version
    assert labels["org.opencontainers.image.revision"] not in ("", "unknown")
    listed = json.loads((ROOT / "dist" / f"understudy-{image}-{version}.cdx.json").read_text())
    packages = {f"{each['name'].lower()}=={each['version']}" for each in listed["components"]}
    code = (
        "import importlib.metadata as m; "
        "print(*(f'{d.name.lower()}=={d.version}' for d in m.distributions()), sep='\\n')"
    )
    said = found.docker("run", "--rm", "--network", "none", name, "python", "-c", code)
    inside = set(said.replace("_", "-").split())
    assert inside - {f"understudy-{each}=={version}" for each in ("spark", "aligned")} <= packages


def test_containers_run_without_root_and_cannot_write_their_root(stack: Stack) -> None:
    for service in (*NODES, *ROUTERS, "pipeline"):
        said = stack.on(service, "inspect", "--format", "{{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}}")
        assert said.split() == ["true", "[ALL]"]
        assert stack.inside(service, "id -u").strip() == "10001"
        for place in ("/opt/venv/x", "/x", "/nonexistent/x"):
            assert "touch: " in stack.inside(service, "touch", place)
        assert stack.inside(service, "touch /tmp/x") == ""
    for node in NODES:
        assert "Read-only file system" in stack.inside(node, "touch /checkpoint/x")


def test_prometheus_sees_every_node_and_router(stack: Stack) -> None:
    def up() -> int:
        said = stack.ask("http://127.0.0.1:9090/api/v1/query?query=sum(up)")
        found = json.loads(said)["data"]["result"] if said else []
        return int(found[0]["value"][1]) if found else 0

    until(lambda: up() == len(NODES) + len(ROUTERS), what="all targets")


@pytest.mark.parametrize("fault", ["paused", "cut off", "killed"])
def test_a_node_that_goes_costs_no_read(fault: str, running: tuple[Engine, Stack], tmp_path: Path) -> None:
    found, stack = running
    victim = NODES[0]
    causes = {
        "paused": lambda: stack.on(victim, "pause"),
        "cut off": lambda: stack.on(victim, "network", "disconnect", NETWORK),
        "killed": lambda: stack.on(victim, "kill", "-s", "KILL"),
    }
    mends = {
        "paused": lambda: stack.on(victim, "unpause"),
        "cut off": lambda: stack.on(victim, "network", "connect", "--alias", victim, NETWORK),
        "killed": lambda: stack.on(victim, "start"),
    }
    until(lambda: is_whole(stack), what="a whole stack")
    with reads(found, tmp_path) as counts:
        causes[fault]()
        until(lambda: not living(stack)[victim], what=f"routers to notice that it is {fault}")
        mends[fault]()
        until(lambda: is_whole(stack), what="a whole stack again")
    report(f"a node {fault}", counts)
    assert unanswered(counts) == {}


def test_a_redis_that_hangs_costs_no_read(running: tuple[Engine, Stack], tmp_path: Path) -> None:
    found, stack = running
    until(lambda: is_whole(stack), what="a whole stack")
    with reads(found, tmp_path) as counts:
        stack.on("valkey", "pause")
        try:
            until(lambda: "Redis is away" in stack.ask(f"{URLS[0]}/readyz"), what="a router that misses Redis")
        finally:  # the next test wants it
            stack.on("valkey", "unpause")
        until(lambda: is_whole(stack), what="a whole stack again")
    report("Redis paused", counts)
    assert unanswered(counts) == {}


def test_a_rolling_restart_costs_no_read(running: tuple[Engine, Stack], tmp_path: Path) -> None:
    found, stack = running
    until(lambda: is_whole(stack), what="a whole stack")
    with reads(found, tmp_path) as counts:
        for service in ROUNDS * (*NODES, *ROUTERS):
            stack.on(service, "restart", "--time", "20")
            for url in URLS:
                until(partial(is_whole, stack, url), what=f"{url} after {service}")
    report("rolling restart", counts)
    assert unanswered(counts) == {}
