"""The CPU time of one lookup at a node, step by step, without sockets.

    python -m benchmarks.lookup_parts [--keys 100000] [--rounds 5]

A protocol is fed the bytes of requests for 1,000 keys and writes into nothing. Each step below it is then called alone,
with the result of the step before it. The least of the rounds is the cost of the code.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from benchmarks.big_checkpoint import BigCheckpoint, session, write
from benchmarks.load import get
from benchmarks.nowhere import Nowhere
from understudy_node.checkpoint.files import LocalFiles
from understudy_node.http.app import create_app
from understudy_node.node import Node
from understudy_node.questions.lookup.service import NodeLookups
from understudy_node.settings import NodeSettings
from understudy_shared.auth.principals import UNGUARDED
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.reads.bounds import NO_BOUND
from understudy_shared.server.answers import Answers
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.parsed_cache import MAX_HEAD_BYTES, ParsedCache, ParsedHead
from understudy_shared.server.protocol import HttpProtocol
from understudy_shared.telemetry.spans import Trace

SAMPLED_KEYS = 1_000
START_LIMIT_S = 120.0


class Unheard:
    """An exchange whose reply goes nowhere."""

    trace: Trace | None = None
    authorization = UNGUARDED

    def reply(self, *_: object) -> None: ...

    def when_left(self, callback: Callable[[], None], /) -> None: ...

    def forget(self) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        spark = session(Path(folder))
        checkpoint = write(spark, Path(folder) / "checkpoint", provider="RocksDB", keys=options.keys)
        spark.stop()
        settings = NodeSettings(checkpoint=str(checkpoint.path), data_dir=Path(folder) / "data")
        host = HostInfo("127.0.0.1", 1)
        node = Node(settings, LocalFiles(checkpoint.path), host=host, clock=SystemClock())
        node.start()
        try:
            wait_for(node)
            asyncio.run(measure(create_app(node), node, checkpoint, options.rounds))
        finally:
            node.stop()


def wait_for(node: Node) -> None:
    """Return when every replica can be read from."""
    limit_s = time.monotonic() + START_LIMIT_S
    while node.not_ready():
        if time.monotonic() > limit_s:
            raise RuntimeError(f"the node is not ready: {node.not_ready()}")
        time.sleep(0.02)


async def measure(app: Any, node: Node, checkpoint: BigCheckpoint, rounds: int) -> None:
    """Measure all steps, the outermost first."""
    assert isinstance(app, NodeLookups)
    numbers = random.Random(0).sample(range(checkpoint.keys), min(SAMPLED_KEYS, checkpoint.keys))
    paths = [f"/v1/stores/op0/keys/{checkpoint.key(number)}" for number in numbers]
    targets, requests = [path.encode() for path in paths], [get(path) for path in paths]
    parsed, cold = protocol_of(app, keeps_heads=True), protocol_of(app, keeps_heads=False)
    generation = node.generation
    assert generation is not None
    (reader,) = generation.readers.values()
    keys = [reader.resolve((checkpoint.key(number),)) for number in numbers]
    views = {partition: replica.view for partition, replica in reader.replicas.items()}
    stores = {partition: view.stores[reader.store.store_name] for partition, view in views.items() if view is not None}
    rows = [stores[key.partition].get(key.stored) for key in keys]
    nobody = Unheard()
    # A table of steps; its comprehensions are what counts as branches.
    steps: dict[str, list[Callable[[], object]]] = {
        "a request, its headers parsed before": [partial(parsed.data_received, each) for each in requests],
        "a request, parsed": [partial(cold.data_received, each) for each in requests],
        "  answer, from target to reply": [partial(app.answer_directly, each, nobody) for each in targets],
        "    key of a new target": [partial(reader.resolve, (checkpoint.key(number),)) for number in numbers],
        "    look up": [partial(reader.look_up, key, NO_BOUND) for key in keys],
        "      view, lag and age": [partial(reader.read_from, key.partition, NO_BOUND) for key in keys],
        "      find the row": [partial(stores[key.partition].get, key.stored) for key in keys],
        "      print it": [partial(reader.print_found, row) for row in rows if row is not None],
    }
    for name, calls in steps.items():
        print(f"{name:44}{min(cost_us(calls) for _ in range(rounds)):8.2f} us", flush=True)


def protocol_of(app: NodeLookups, *, keeps_heads: bool) -> HttpProtocol:
    """Make a connection of its own. Without cached heads every request is parsed."""
    config = Config(app, lifespan="off", log_config=None, access_log=False)
    config.load()
    heads = ParsedCache[ParsedHead](max_key_bytes=MAX_HEAD_BYTES if keeps_heads else 0)
    answers = Answers(direct=app, heads=heads)
    protocol = HttpProtocol(config, ServerState(), {}, guard=ConnectionGuard(), answers=answers)
    protocol.connection_made(Nowhere())
    return protocol


def cost_us(calls: Sequence[Callable[[], object]]) -> float:
    """Return the CPU time of one call, less that of calling nothing."""
    nothing: Sequence[Callable[[], object]] = [partial(bool) for _ in calls]
    taken = []
    for each in (nothing, calls):
        began_s = time.process_time()
        for _ in range(10):
            for call in each:
                call()
        taken.append(time.process_time() - began_s)
    return (taken[1] - taken[0]) / len(calls) / 10 * 1e6


if __name__ == "__main__":
    main()
