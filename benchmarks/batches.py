"""Batches of 100 hot keys, at a node and through a router, in both forms, beside FastAPI with a Redis `MGET`.

    python -m benchmarks.batches [--rounds 3] [--seconds 4] [--connections 8] [--against DIR] [--report FILE]

The server that is measured has one core to itself; the load, and what the server asks, share the other. Servers take
turns, round by round; figures are medians. Each answer is compared with lookups of its keys alone before anything is
timed. `constant` answers with as many bytes without looking at a key: its p99 over p50 is what the load and the sockets
make of latency. `--cold` asks for 100,000 keys at random. `--against` measures the long form of another tree, in turns.
"""

from __future__ import annotations

import argparse
import http.client
import random
import re
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import redis

from benchmarks.big_checkpoint import BigCheckpoint, session, write
from benchmarks.lookups import SAMPLED_KEYS, move, wait_for_keys
from benchmarks.report import write_report
from benchmarks.servers import (
    CLUSTER_NODE,
    CONSTANT_BATCH,
    LOAD_CORE,
    REDIS_MGET,
    ROUTER,
    SERVER_CORE,
    Server,
    fetch,
    pin_load,
    server,
    tree_env,
)
from benchmarks.wrk import drive_posts, has_wrk
from understudy.commands.reading import expanded
from understudy.demo.local_redis import local_redis

PEER = "FastAPI + redis-py MGET"
BATCH_KEYS = 100
CHECKED_BATCHES = 10
STORE = "/v1/stores/op0"
LONG, COMPACT = f"{STORE}/lookup", f"{STORE}/lookup?compact=true"


@dataclass(frozen=True, slots=True)
class Subject:
    """A server to measure, and what it is asked."""

    name: str
    server: Server
    path: str
    bodies: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Figure:
    """One round of one subject."""

    keys_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_key: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--cold", action="store_true", help="all keys at random, not 1,000 hot ones")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="", help="a regular expression: measure these, and the peer")
    parser.add_argument("--report", type=Path, help="write every round to a file, for benchmarks.compare")
    options = parser.parse_args()
    pin_load()
    trees = {"": Path.cwd()} | ({} if options.against is None else {f" ({options.against.name})": options.against})
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        spark = session(Path(folder))
        checkpoint = write(spark, Path(folder) / "checkpoint", provider="RocksDB", keys=options.keys)
        spark.stop()
        numbers = random.Random(0).sample(range(options.keys), options.keys if options.cold else SAMPLED_KEYS)
        with ExitStack() as running:
            keys = [checkpoint.key(number) for number in numbers]
            subjects = list(started(checkpoint, keys, Path(folder), trees, running))
            chosen = [each for each in subjects if each.name == PEER or re.search(options.only, each.name)]
            rounds: dict[str, list[Figure]] = {subject.name: [] for subject in chosen}
            for _ in range(options.rounds):
                for subject in chosen:
                    figure = measured(subject, subjects, connections=options.connections, seconds=options.seconds)
                    rounds[subject.name].append(figure)
    if options.report is not None:
        write_report(options.report, {name: [asdict(each) for each in figures] for name, figures in rounds.items()})
    print_table(rounds, connections=options.connections)


def started(
    checkpoint: BigCheckpoint, keys: list[str], folder: Path, trees: Mapping[str, Path], running: ExitStack
) -> Iterator[Subject]:
    """Start every server; yield each one after it answered as it should."""
    parts = [keys[start : start + BATCH_KEYS] for start in range(0, len(keys), BATCH_KEYS)]
    bodies = [orjson.dumps({"keys": [[key] for key in part]}) for part in parts]
    values = running.enter_context(local_redis())
    checked = keys[: CHECKED_BATCHES * BATCH_KEYS]
    for number, (tree, path) in enumerate(trees.items()):
        bus = running.enter_context(local_redis())
        arguments = (str(checkpoint.path), str(folder / f"data-{number}"), bus.url)
        env = tree_env(path)
        node = running.enter_context(server(CLUSTER_NODE, *arguments, ready_path="/livez", env=env))
        router = running.enter_context(server(ROUTER, bus.url, ready_path="/livez", env=env))
        wait_for_keys(router, [f"{STORE}/keys/{key}" for key in checked])
        for name, each in (("node", node), ("router", router)):
            for form, target in (("long", LONG), ("compact", COMPACT))[: 1 if number else 2]:
                check(each, target, checked, bodies)
                yield Subject(f"{name}, {form}{tree}", each, target, bodies)
        if number == 0:
            yield peer(running, values.url, router, parts)
            for form, target in (("long", LONG), ("compact", COMPACT)):
                size = str(len(asked(node, target, bodies[0])))
                constant = running.enter_context(server(CONSTANT_BATCH, size, ready_path="/"))
                yield Subject(f"constant, as long as {form}", constant, "/", bodies)


def peer(running: ExitStack, url: str, router: Server, parts: list[list[str]]) -> Subject:
    """Copy the same answers into Redis by their keys, and serve them."""
    with redis.Redis.from_url(url) as client:
        for part in parts:
            answers = orjson.loads(asked(router, LONG, orjson.dumps({"keys": [[key] for key in part]})))["results"]
            client.mset({key: orjson.dumps(answer) for key, answer in zip(part, answers, strict=True)})
    mget = running.enter_context(server(REDIS_MGET, url, ready_path="/ready"))
    bodies = [orjson.dumps({"keys": part}) for part in parts]
    got = orjson.loads(asked(mget, "/batch", bodies[0]))["results"]
    if [each["key"]["key"] for each in got] != parts[0]:
        raise RuntimeError(f"not what was stored: {got}")
    return Subject(PEER, mget, "/batch", bodies)


def check(subject: Server, path: str, keys: list[str], bodies: Sequence[bytes]) -> None:
    """Raise RuntimeError unless each key of the first batches is answered as it is alone."""
    answers = [answer for body in bodies[:CHECKED_BATCHES] for answer in results_of(asked(subject, path, body))]
    for key, answer in zip(keys, answers, strict=True):
        status, body = fetch(subject.port, f"{STORE}/keys/{key}")
        alone: dict[str, Any] = {"status": status, **orjson.loads(body)}
        if without_age(answer) != without_age(alone):
            raise RuntimeError(f"{path} says {answer}, of the key alone {alone}")


def results_of(body: bytes) -> list[dict[str, Any]]:
    """Return the results of an answer in either form."""
    return expanded(orjson.loads(body))


def without_age(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without the members that change with time."""
    return {name: member for name, member in answer.items() if name != "lag"}


def asked(subject: Server, path: str, body: bytes) -> bytes:
    """Return the answer to one POST."""
    connection = http.client.HTTPConnection("127.0.0.1", subject.port, timeout=30)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {answer[:500]!r}")
        return answer
    finally:
        connection.close()


def measured(subject: Subject, subjects: list[Subject], *, connections: int, seconds: float) -> Figure:
    """Measure one round: the subject has a core to itself."""
    for other in subjects:
        move(other.server, SERVER_CORE if other.server is subject.server else LOAD_CORE)
    port, path, bodies = subject.server.port, subject.path, subject.bodies
    drive_posts(port, path, bodies, connections=connections, seconds=1)
    before_s = subject.server.cpu_s()
    load = drive_posts(port, path, bodies, connections=connections, seconds=seconds)
    keys = load.per_second * BATCH_KEYS
    cpu_us = (subject.server.cpu_s() - before_s) / (keys * seconds) * 1e6
    return Figure(keys, load.p50_ms, load.p99_ms, cpu_us)


def print_table(rounds: Mapping[str, list[Figure]], *, connections: int) -> None:
    """Print medians; the ratio is against the peer, round by round."""
    peers = [figure.keys_per_second for figure in rounds[PEER]]
    print(f"load: {'wrk' if has_wrk() else 'Python'}, {connections} connections, batches of {BATCH_KEYS}\n")
    heads = f"{'keys/s':>11}{'of the MGET':>20}{'p50':>8}{'p99 ms':>8}{'p99/p50':>9}{'CPU us/key':>12}"
    print(f"{'':34}{heads}")
    for name, figures in rounds.items():
        ratios = [figure.keys_per_second / limit for figure, limit in zip(figures, peers, strict=True)]
        middle = {field: statistics.median(asdict(figure)[field] for figure in figures) for field in asdict(figures[0])}
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        tail = statistics.median(figure.p99_ms / figure.p50_ms for figure in figures)
        print(
            f"{name:34}{middle['keys_per_second']:11,.0f}{spread:>20}{middle['p50_ms']:8.2f}{middle['p99_ms']:8.2f}"
            f"{tail:9.1f}{middle['cpu_us_per_key']:12.2f}"
        )


if __name__ == "__main__":
    main()
