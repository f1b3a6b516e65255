"""The cost of following for a node: CPU per commit and task, and CPU while nothing is committed.

    python -m benchmarks.following [--tasks 12,200,1000] [--commits 40] [--against DIR] [--report FILE]

The checkpoint is made by hand, as Spark writes format v2: per commit, one changelog of 100 changes for each task, into
a folder of `--retained` files. The changelogs are there a while before their commit, as with a running batch.
`--against` measures the source tree of another commit in turns with this one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import orjson
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import KEY, VALUE, HandmadeCheckpoint

from benchmarks.report import write_report
from benchmarks.servers import NODE, Server, fetch, pin_load, server, tree_env
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.unsafe_row import compile_row_encoder

CHANGES = 100
IDLE_S = 5.0
LIMIT_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="12,200,1000")
    parser.add_argument("--commits", type=int, default=40)
    parser.add_argument("--retained", type=int, default=40)
    parser.add_argument("--interval-ms", type=int, default=1000, help="between two commits")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--report", type=Path, help="write the figures to a file, for benchmarks.compare")
    options = parser.parse_args()
    pin_load()
    rounds: dict[str, list[dict[str, float]]] = {}
    for tasks in map(int, options.tasks.split(",")):
        with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name:
            query = FormatV2(Path(name) / "checkpoint", tasks)
            for _ in range(options.retained):
                query.write()
                query.commit()
            trees = {"here": Path.cwd()} | ({} if options.against is None else {"against": options.against})
            for tree, found in measured(query, trees, Path(name), options).items():
                print(f"{tasks:5} tasks, {tree:8} {found}", flush=True)
                rounds[f"{tasks} tasks" if tree == "here" else f"{tasks} tasks, {tree}"] = [found.figures()]
    if options.report is not None:
        write_report(options.report, rounds)


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of one node. `busy` and `idle` are shares of a core."""

    per_commit_ms: float
    busy: float
    idle: float
    tasks: int

    def figures(self) -> dict[str, float]:
        per_task_ms = self.per_commit_ms / self.tasks
        return {"per_commit_and_task_ms": per_task_ms, "busy_core": self.busy, "idle_core": self.idle}

    def __str__(self) -> str:
        return (
            f"{self.per_commit_ms / self.tasks:6.2f} ms per commit and task ({self.busy:.1%} of a core)   "
            f"idle {self.idle:.1%}"
        )


def measured(query: FormatV2, trees: dict[str, Path], folder: Path, options: argparse.Namespace) -> dict[str, Cost]:
    """Measure the CPU of a node per source tree, all following the same query on a shared core."""
    with ExitStack() as running:
        nodes: dict[str, Server] = {}
        for tree, root in trees.items():
            arguments = (str(query.path), str(folder / tree))
            nodes[tree] = running.enter_context(server(NODE, *arguments, ready_path="/readyz", env=tree_env(root)))
        for _ in range(3):
            step(query, options.interval_ms)
        wait_for(nodes, query.version)
        busy_s, busy_wall_s = spent(nodes), time.monotonic()
        for _ in range(options.commits):
            step(query, options.interval_ms)
        wait_for(nodes, query.version)
        busy_wall_s = time.monotonic() - busy_wall_s
        busy_s = {tree: after - busy_s[tree] for tree, after in spent(nodes).items()}
        time.sleep(2 * IDLE_S)  # polls grow rarer
        idle_s = spent(nodes)
        time.sleep(IDLE_S)
        idle_s = {tree: after - idle_s[tree] for tree, after in spent(nodes).items()}
    return {
        tree: Cost(
            busy_s[tree] / options.commits * 1000, busy_s[tree] / busy_wall_s, idle_s[tree] / IDLE_S, query.partitions
        )
        for tree in nodes
    }


def step(query: FormatV2, interval_ms: int) -> None:
    """Write one batch: its files, some time, its commit."""
    due_s = time.monotonic() + interval_ms / 1000
    query.write()
    time.sleep(max(0.0, (due_s - time.monotonic()) / 2))
    query.commit()
    time.sleep(max(0.0, due_s - time.monotonic()))


def spent(nodes: dict[str, Server]) -> dict[str, float]:
    return {tree: node.cpu_s() for tree, node in nodes.items()}


def wait_for(nodes: dict[str, Server], version: int) -> None:
    """Return when every task of every node shows a version."""
    limit_s = time.monotonic() + LIMIT_S
    for node in nodes.values():
        while True:
            stores = orjson.loads(fetch(node.port, "/admin/v1/lag")[1])["stores"]
            shown = [each["current_offset_position"] for store in stores for each in store["partitions"]]
            if shown and set(shown) == {version}:
                break
            if time.monotonic() > limit_s:
                raise RuntimeError(f"version {version} is not shown after {LIMIT_S} s: {sorted(set(map(str, shown)))}")
            time.sleep(0.1)


def changed_words(numbers: Iterable[int]) -> bytes:
    """Return the records of a changelog that sets some words."""
    encode, value = KeyCodec(KEY).encode, compile_row_encoder(VALUE)
    return spark.plain([(b"\x00" + encode((f"word-{n}",)), b"\x00" + value((n, n))) for n in numbers])


class FormatV2:
    """A query over RocksDB in checkpoint format v2, with changelogs only."""

    def __init__(self, path: Path, partitions: int) -> None:
        self.path = path
        self.partitions = partitions
        self.version = 0
        self._made = HandmadeCheckpoint(path, provider=spark.ROCKSDB, partitions=partitions).create()
        self._records = changed_words(range(CHANGES))

    def write(self, records: bytes | None = None) -> None:
        """Write the offsets and the changelogs of the next version: the same changes to each task, by default the same
        as ever.
        """
        version = self.version + 1
        offsets = spark.offsets(provider=spark.ROCKSDB, partitions=self.partitions)
        self._made.write(f"offsets/{version - 1}", offsets)
        for partition in range(self.partitions):
            before = [(version - 1, self._attempt(version - 1, partition))] if version > 1 else []
            content = spark.utf("v3") + spark.lineage(before) + (records or self._records)
            name = f"{version}_{self._attempt(version, partition)}.changelog"
            self._made.write(f"state/0/{partition}/{name}", spark.lz4(content))

    def commit(self) -> None:
        self.version += 1
        ids = [[self._attempt(self.version, partition)] for partition in range(self.partitions)]
        self._made.write(f"commits/{self.version - 1}", spark.commit(unique_ids={"0": ids}))

    def _attempt(self, version: int, partition: int) -> str:
        return str(UUID(int=version * 1_000_000 + partition))


if __name__ == "__main__":
    main()
