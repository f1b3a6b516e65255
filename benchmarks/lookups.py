"""Single lookups of hot keys, at a node and through a router, beside a constant application and peers.

    python -m benchmarks.lookups [--rounds 3] [--seconds 4] [--against DIR] [--report FILE]

The server that is measured has one core to itself; the load, and what the server asks, share the other. Servers take
turns, round by round; figures are medians. All answer for a while before the first round: some compile what is hot.
`--against` measures the source tree of another commit in turns with this one. A peer that is not installed is skipped
and named.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import redis

from benchmarks.big_checkpoint import BigCheckpoint, session, write
from benchmarks.kafka_streams_peer import kafka_streams
from benchmarks.report import write_report
from benchmarks.servers import (
    CLUSTER_NODE,
    CONSTANT_APP,
    LOAD_CORE,
    REDIS_GET,
    ROUTER,
    SERVER_CORE,
    Server,
    fetch,
    pin_load,
    server,
    tree_env,
    wait_ready,
)
from benchmarks.wrk import Rates, drive, has_wrk
from understudy.demo.local_redis import local_redis
from understudy_shared.base.sockets import free_port

LIMIT = "constant ASGI app"
SAMPLED_KEYS = 1_000
CONNECTIONS = 64
START_LIMIT_S = 60.0
NGINX = """
worker_processes 1; daemon off; error_log stderr; pid {folder}/{port}.pid;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000;
  upstream other {{ server 127.0.0.1:{other}; keepalive 128; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port};
    location / {{ {what} }} }}
}}
"""
CONSTANT = f'default_type application/json; return 200 "{"x" * 512}";'
FORWARD = 'proxy_pass http://other; proxy_http_version 1.1; proxy_set_header Connection "";'


@dataclass(frozen=True, slots=True)
class Subject:
    """A server to measure, and the paths that it is asked for."""

    name: str
    server: Server
    paths: Sequence[str]
    behind: tuple[Server, ...] = ()
    """The servers that it asks to answer."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One round of one subject. CPU is of one request; `quiet_p50_ms` is of one connection."""

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    behind_cpu_us: float
    quiet_p50_ms: float


Rounds = dict[str, list[Figure]]
"""By the name of the subject."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--warm-up", type=float, default=6.0, help="seconds for each server before the first round")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="", help="a regular expression: measure these, and the constant application")
    parser.add_argument("--report", type=Path, help="write every round to a file, for benchmarks.compare")
    options = parser.parse_args()
    pin_load()
    trees = {"": Path.cwd()} | ({} if options.against is None else {f" ({options.against.name})": options.against})
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        spark = session(Path(folder))
        checkpoint = write(spark, Path(folder) / "checkpoint", provider="RocksDB", keys=options.keys)
        spark.stop()
        with ExitStack() as running:
            subjects = list(started(checkpoint, Path(folder), trees, running))
            chosen = [each for each in subjects if each.name == LIMIT or re.search(options.only, each.name)]
            rounds = in_turns(chosen, subjects, options)
    show(rounds, options.report)


def in_turns(chosen: Sequence[Subject], subjects: Sequence[Subject], options: argparse.Namespace) -> Rounds:
    """Measure the rounds of the chosen subjects, by turns; before the first one each answers for a while."""
    rounds: Rounds = {subject.name: [] for subject in chosen}
    for subject in chosen:
        alone(subject, subjects)
        drive(subject.server.port, subject.paths, connections=CONNECTIONS, seconds=options.warm_up)
    for _ in range(options.rounds):
        for subject in chosen:
            rounds[subject.name].append(measured(subject, subjects, options.seconds))
    return rounds


def show(rounds: Rounds, report: Path | None) -> None:
    """Print the rounds, and write them to a file for `benchmarks.compare` if there is one."""
    if report is not None:
        write_report(report, {name: [asdict(each) for each in figures] for name, figures in rounds.items()})
    print_table(rounds)


def started(
    checkpoint: BigCheckpoint, folder: Path, trees: Mapping[str, Path], running: ExitStack
) -> Iterator[Subject]:
    """Start every server; yield each one after it answered as it should."""
    numbers = random.Random(0).sample(range(checkpoint.keys), SAMPLED_KEYS)
    paths = [f"/v1/stores/op0/keys/{checkpoint.key(number)}" for number in numbers]
    yield Subject(LIMIT, running.enter_context(server(CONSTANT_APP, ready_path="/")), ["/"])
    copies = running.enter_context(local_redis())
    for number, (tree, path) in enumerate(trees.items()):
        bus = running.enter_context(local_redis())
        arguments = (str(checkpoint.path), str(folder / f"data-{number}"), bus.url)
        env = tree_env(path)
        node = running.enter_context(server(CLUSTER_NODE, *arguments, ready_path="/livez", env=env))
        router = running.enter_context(server(ROUTER, bus.url, ready_path="/livez", env=env))
        wait_for_keys(router, paths)
        for each in (node, router):
            check(each, paths, checkpoint, numbers)
        if number == 0:
            with redis.Redis.from_url(copies.url) as client:
                client.mset({str(index): fetch(router.port, path)[1] for index, path in enumerate(paths)})
        yield Subject(f"node{tree}", node, paths)
        yield Subject(f"router{tree}", router, paths, (node, Server(0, bus.pid)))
    get = running.enter_context(server(REDIS_GET, copies.url, ready_path="/0"))
    copied = [f"/{index}" for index in range(len(paths))]
    check(get, copied, checkpoint, numbers)
    yield Subject("FastAPI + redis-py GET", get, copied, (Server(0, copies.pid),))
    yield from nginx_peers(folder, running)
    yield from kafka_streams_peers(checkpoint, folder, numbers, running)


def check(subject: Server, paths: Sequence[str], checkpoint: BigCheckpoint, numbers: Sequence[int]) -> None:
    """Raise RuntimeError unless each of these paths is answered with the value of its key."""
    for path, number in zip(paths, numbers, strict=True):
        status, body = fetch(subject.port, path)
        expected = checkpoint.value(number)
        if status != 200 or tuple(orjson.loads(body)["value"].values()) != expected:
            raise RuntimeError(f"{path} is answered with {status} {body[:300]!r}, not with {expected}")


def nginx_peers(folder: Path, running: ExitStack) -> Iterator[Subject]:
    """Start nginx servers, which show the cost of a hop in C."""
    if shutil.which("nginx") is None:
        print("skipped: no nginx", flush=True)
        return
    origin = running.enter_context(nginx(folder, CONSTANT, 1))
    yield Subject("nginx", origin, ["/"])
    forwarding = running.enter_context(nginx(folder, FORWARD, origin.port))
    yield Subject("nginx, forwarded to nginx", forwarding, ["/"], (origin,))


def kafka_streams_peers(
    checkpoint: BigCheckpoint, folder: Path, numbers: list[int], running: ExitStack
) -> Iterator[Subject]:
    """Start an instance that is asked for its own keys, and for those of another instance in two ways."""
    found = running.enter_context(kafka_streams(checkpoint, folder, numbers))
    if isinstance(found, str):
        print(f"skipped: {found}", flush=True)
        return
    for name, way, keys, behind in (
        ("local", "vertx", found.local_keys, ()),
        ("forwarded with java.net.http", "jdk", found.remote_keys, (found.behind,)),
        ("forwarded with Vert.x", "vertx", found.remote_keys, (found.behind,)),
    ):
        yield Subject(f"Kafka Streams, {name}", found.asked, [f"/{way}/{key}" for key in keys], behind)


@contextmanager
def nginx(folder: Path, what: str, other: int) -> Iterator[Server]:
    """Start one nginx with one worker."""
    port = free_port()
    conf = folder / f"nginx-{port}.conf"
    conf.write_text(NGINX.format(folder=folder, port=port, other=other, what=what))
    process = subprocess.Popen(["nginx", "-c", str(conf), "-p", str(folder)], stderr=subprocess.DEVNULL)
    try:
        wait_ready(port, "/", process)
        worker = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
        yield Server(port, int(worker))
    finally:
        process.terminate()
        process.wait(30)


def measured(subject: Subject, subjects: Sequence[Subject], seconds: float) -> Figure:
    """Measure one round."""
    alone(subject, subjects)
    drive(subject.server.port, subject.paths, connections=CONNECTIONS, seconds=1)
    before_s, behind_s = subject.server.cpu_s(), sum(each.cpu_s() for each in subject.behind)
    busy = drive(subject.server.port, subject.paths, connections=CONNECTIONS, seconds=seconds)
    requests = busy.per_second * seconds
    cpu_us = (subject.server.cpu_s() - before_s) / requests * 1e6
    behind_us = (sum(each.cpu_s() for each in subject.behind) - behind_s) / requests * 1e6
    quiet: Rates = drive(subject.server.port, subject.paths, connections=1, seconds=max(1.0, seconds / 2))
    return Figure(busy.per_second, busy.p50_ms, busy.p99_ms, cpu_us, behind_us, quiet.p50_ms)


def alone(subject: Subject, subjects: Sequence[Subject]) -> None:
    """Give the subject's server a core to itself."""
    for other in subjects:
        for each in (other.server, *other.behind):
            move(each, SERVER_CORE if each.pid == subject.server.pid else LOAD_CORE)


def move(subject: Server, core: int) -> None:
    """Keep all threads of a server on one core."""
    if (os.cpu_count() or 1) > 1:
        for thread in Path(f"/proc/{subject.pid}/task").iterdir():
            with suppress(ProcessLookupError):  # it has ended since
                os.sched_setaffinity(int(thread.name), {core})


def wait_for_keys(router: Server, paths: list[str]) -> None:
    """Return when the router answers for all of these keys, whose partitions open one after another."""
    limit_s = time.monotonic() + START_LIMIT_S
    for path in paths:
        while fetch(router.port, path)[0] != 200:
            if time.monotonic() > limit_s:
                raise RuntimeError(f"{path} is not answered: {fetch(router.port, path)}")
            time.sleep(0.02)


def print_table(rounds: Mapping[str, list[Figure]]) -> None:
    """Print medians; the ratio is against the constant application, round by round."""
    limits = [figure.per_second for figure in rounds[LIMIT]]
    print(f"load: {'wrk' if has_wrk() else 'Python'}, {CONNECTIONS} connections\n")
    heads = f"{'requests/s':>11}{'of the constant app':>26}{'p50':>8}{'p99 ms':>8}{'CPU us':>8}{'behind':>8}"
    print(f"{'':46}{heads}{'1 conn. p50':>13}")
    for name, figures in rounds.items():
        ratios = [figure.per_second / limit for figure, limit in zip(figures, limits, strict=True)]
        middle = {field: statistics.median(asdict(figure)[field] for figure in figures) for field in asdict(figures[0])}
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        print(
            f"{name:46}{middle['per_second']:11,.0f}{spread:>26}{middle['p50_ms']:8.2f}{middle['p99_ms']:8.2f}"
            f"{middle['cpu_us']:8.1f}{middle['behind_cpu_us']:8.1f}{middle['quiet_p50_ms']:10.3f} ms"
        )


if __name__ == "__main__":
    main()
