"""Flame graphs of a node, of a router under load, and of a node that follows commits, as SVG files.

    python -m benchmarks.flames [--seconds 15] [--rate 500] [--into docs/images] [--tree DIR]

py-spy looks at each process from outside; without it nothing is done. wrk loads node and router as `benchmarks.lookups`
does. The node that follows has 200 tasks, one commit a second and no readers. `--tree` looks at the sources of another
commit.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.big_checkpoint import session, write
from benchmarks.flame_graph import flame_svg, stacks_of, working
from benchmarks.following import FormatV2, step
from benchmarks.lookups import CONNECTIONS, SAMPLED_KEYS, move, wait_for_keys
from benchmarks.servers import CLUSTER_NODE, LOAD_CORE, NODE, ROUTER, SERVER_CORE, Server, pin_load, server, tree_env
from benchmarks.wrk import drive
from understudy.demo.local_redis import local_redis

FOLLOWED_TASKS = 200
FOLLOWED_RETAINED = 10
WAITS = ("Condition.wait", "Event.wait", "_worker (concurrent", "LogWatch._run")
"""Calls in which threads of ours wait for work; py-spy does not always see that they wait."""
IDLE_LOOP = "Runner.run"
"""The call in which an event loop without readers waits."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--rate", type=int, default=500, help="looks a second")
    parser.add_argument("--into", type=Path, default=Path("docs/images"))
    parser.add_argument("--tree", type=Path, default=Path.cwd())
    options = parser.parse_args()
    if shutil.which("py-spy") is None:
        print("skipped: no py-spy", flush=True)
        return
    pin_load()
    options.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        lookups(Path(folder), options)
        following(Path(folder), options)


def lookups(folder: Path, options: argparse.Namespace) -> None:
    """Node and router, each alone on the server's core while it is looked at."""
    spark = session(folder)
    checkpoint = write(spark, folder / "checkpoint", provider="RocksDB", keys=100_000)
    spark.stop()
    numbers = random.Random(0).sample(range(checkpoint.keys), SAMPLED_KEYS)
    paths = [f"/v1/stores/op0/keys/{checkpoint.key(number)}" for number in numbers]
    with ExitStack() as running:
        bus = running.enter_context(local_redis())
        arguments = (str(checkpoint.path), str(folder / "data"), bus.url)
        env = tree_env(options.tree)
        node = running.enter_context(server(CLUSTER_NODE, *arguments, ready_path="/livez", env=env))
        router = running.enter_context(server(ROUTER, bus.url, ready_path="/livez", env=env))
        wait_for_keys(router, paths)
        for name, subject, other in (("node", node, router), ("router", router, node)):
            move(subject, SERVER_CORE)
            move(other, LOAD_CORE)

            def load(port: int = subject.port) -> None:
                drive(port, paths, connections=CONNECTIONS, seconds=options.seconds + 4)

            recorded(name, subject, load, options, WAITS)


def following(folder: Path, options: argparse.Namespace) -> None:
    """Profile a node that follows a query with many tasks."""
    query = FormatV2(folder / "followed", FOLLOWED_TASKS)
    for _ in range(FOLLOWED_RETAINED):
        query.write()
        query.commit()
    env = tree_env(options.tree)
    with server(NODE, str(query.path), str(folder / "following"), ready_path="/readyz", env=env) as node:

        def commits() -> None:
            for _ in range(options.seconds + 4):
                step(query, 1000)

        recorded("following", node, commits, options, (*WAITS, IDLE_LOOP))


def recorded(
    name: str, subject: Server, work: Callable[[], None], options: argparse.Namespace, waits: tuple[str, ...]
) -> None:
    """Look at a process while the work goes on, and draw what it did."""
    load = threading.Thread(target=work)
    load.start()
    time.sleep(2)
    with tempfile.NamedTemporaryFile(suffix=".stacks") as raw:
        command = ["py-spy", "record", "--format", "raw", "--output", raw.name, "--pid", str(subject.pid)]
        limits = ["--rate", str(options.rate), "--duration", str(options.seconds)]
        subprocess.run([*command, *limits], check=True, stdout=subprocess.DEVNULL, timeout=options.seconds + 120)
        stacks = working(stacks_of(Path(raw.name).read_text()), waits)
    load.join()
    path = options.into / f"flames-{name}.svg"
    path.write_text(flame_svg(stacks, f"{name}: {sum(stacks.values()):,} looks"))
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
