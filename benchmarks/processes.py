"""More processes: what `--processes 2` gives a router, and a node, beside one process of each.

    python -m benchmarks.processes [--rounds 3] [--seconds 4] [--report FILE]

Everything of a case runs on all cores, unpinned: the load (wrk), the router, the nodes and Redis. On a machine of two
cores these share what the second process could use, so the rate gains less than a machine with a core for each would
show. The CPU per request is what does not depend on that: it says what a second process costs, and how many requests a
core is worth. Cases take turns, round by round; figures are medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.services.process_table import processes_below
from tests.support.spark.counting_query import WORDS

from benchmarks.report import write_report
from benchmarks.servers import Server, fetch, server
from benchmarks.wrk import Rates, drive, has_wrk
from understudy.demo.local_redis import local_redis

PARTITIONS = 8
CONNECTIONS = 64
START_LIMIT_S = 120.0
APPLICATION = "bench"

NODE = """
import sys
from understudy_node.cluster.serve import main
port, checkpoint, data_dir, redis, processes = sys.argv[1:]
main({"port": int(port), "checkpoint": checkpoint, "data_dir": data_dir, "redis": redis, "application_id": "bench",
      "num_standby_replicas": 0, "processes": int(processes), "node_id": "n", "rebalance_delay_ms": 0})
"""

ROUTER = """
import sys
from understudy_router.serve import main
port, redis, folder, processes = sys.argv[1:]
main({"port": int(port), "redis": redis, "application_id": "bench", "processes": int(processes), "data_dir": folder})
"""


@dataclass(frozen=True, slots=True)
class Case:
    """The paths to ask, by port, and the processes that answer. `asked` and `behind` are process ids."""

    name: str
    paths: Mapping[int, Sequence[str]]
    asked: int
    behind: Sequence[int]


@dataclass(frozen=True, slots=True)
class Figure:
    """One round of one case. CPU is per request: of all processes of who is asked, and of those behind."""

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    behind_cpu_us: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--report", type=Path, help="write every round to a file, for benchmarks.compare")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder, ExitStack() as running:
        cases = list(started(Path(folder), running))
        rounds: dict[str, list[Figure]] = {case.name: [] for case in cases}
        for _ in range(options.rounds):
            for case in cases:
                rounds[case.name].append(measured(case, options.seconds))
    if options.report is not None:
        write_report(options.report, {name: [asdict(each) for each in figures] for name, figures in rounds.items()})
    print_table(rounds)


def started(folder: Path, running: ExitStack) -> Iterator[Case]:
    """Start every case; yield it after each of its keys was answered."""
    made = HandmadeCheckpoint(folder / "checkpoint", partitions=PARTITIONS).create().add(1, 2, 3)
    for count in (1, 2):
        bus = running.enter_context(local_redis())
        node = running.enter_context(
            on_all_cores(NODE, str(made.path), str(folder / f"nodes-{count}"), bus.url, str(count), processes=count)
        )
        paths = [f"/v1/stores/op0/keys/{word}" for word in WORDS]
        for workers in (1, 2):
            router = running.enter_context(
                on_all_cores(
                    ROUTER, bus.url, str(folder / f"router-{count}-{workers}"), str(workers), processes=workers
                )
            )
            wait_for_all(router.port, paths)
            name = f"router, {_processes(workers)}, of {_processes(count)} of nodes"
            yield Case(name, {router.port: paths}, router.pid, [node.pid, bus.pid])
        owned = {port: held_at(port, paths) for port in range(node.port, node.port + count)}
        assert sum(map(len, owned.values())) == len(paths), "each key is at one node"
        yield Case(f"node asked directly, {_processes(count)}", owned, node.pid, [bus.pid])


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


@contextmanager
def on_all_cores(code: str, *arguments: str, processes: int) -> Iterator[Server]:
    """Start a server on every core that there is, with all its processes, and wait until it is ready."""
    with server(code, *arguments, ready_path="/livez") as found:
        limit_s = time.monotonic() + START_LIMIT_S
        while not all(map(_answers, own_ports(found.port, code, processes))):
            if time.monotonic() > limit_s:
                raise RuntimeError(f"a process of {processes} does not answer")
            time.sleep(0.02)
        for pid in (found.pid, *processes_below(found.pid)):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(ProcessLookupError):  # it has ended since
                    os.sched_setaffinity(int(thread.name), range(os.cpu_count() or 1))
        yield found


def own_ports(port: int, code: str, processes: int) -> range:
    """Return the ports at which the processes of a service answer alone."""
    first = port + 1 if code is ROUTER and processes > 1 else port
    return range(first, first + processes)


def _answers(port: int) -> bool:
    try:
        return fetch(port, "/livez")[0] == 200
    except OSError:
        return False


def wait_for_all(port: int, paths: Sequence[str]) -> None:
    """Return when every key is answered, as it should be."""
    limit_s = time.monotonic() + START_LIMIT_S
    for path in paths:
        while not _is_found(port, path):
            if time.monotonic() > limit_s:
                raise RuntimeError(f"{path} is not answered: {fetch(port, path)}")
            time.sleep(0.02)


def _is_found(port: int, path: str) -> bool:
    status, body = fetch(port, path)
    return status == 200 and orjson.loads(body)["found"] is True


def held_at(port: int, paths: Sequence[str]) -> list[str]:
    """Return the keys that one node has; it refuses the others."""
    return [path for path in paths if _is_found(port, path)]


def cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU of processes and of all that they started."""
    everyone = {pid for each in pids for pid in (each, *processes_below(each))}
    return sum(Server(0, pid).cpu_s() for pid in everyone)


def measured(case: Case, seconds: float) -> Figure:
    """Measure one round: the connections are shared by the ports."""
    drive_all(case.paths, 1)
    asked_s, behind_s = cpu_s([case.asked]), cpu_s(case.behind)
    rates = drive_all(case.paths, seconds)
    per_second = sum(each.per_second for each in rates)
    requests = per_second * seconds
    return Figure(
        per_second,
        statistics.mean(each.p50_ms for each in rates),
        max(each.p99_ms for each in rates),
        (cpu_s([case.asked]) - asked_s) / requests * 1e6,
        (cpu_s(case.behind) - behind_s) / requests * 1e6,
    )


def drive_all(paths: Mapping[int, Sequence[str]], seconds: float) -> list[Rates]:
    """Load all ports at once; any answer but 2xx fails."""
    found: list[Rates] = []
    share = CONNECTIONS // len(paths)

    def one(port: int) -> None:
        found.append(drive(port, paths[port], connections=share, seconds=seconds))

    threads = [threading.Thread(target=one, args=(port,)) for port in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(paths), "every load ended well"
    return found


def print_table(rounds: Mapping[str, list[Figure]]) -> None:
    """Print medians; 2 processes against 1 of the same, round by round."""
    print(
        f"load: {'wrk' if has_wrk() else 'Python'}, {CONNECTIONS} connections; {os.cpu_count()} cores for everything\n"
    )
    print(f"{'':48}{'requests/s':>11}{'of 1 process':>14}{'p50':>8}{'p99 ms':>8}{'CPU us':>8}{'behind':>8}")
    for name, figures in rounds.items():
        single = rounds[_single(name)]
        ratio = statistics.median(one.per_second / other.per_second for one, other in zip(figures, single, strict=True))
        middle = {field: statistics.median(asdict(figure)[field] for figure in figures) for field in asdict(figures[0])}
        print(
            f"{name:48}{middle['per_second']:11,.0f}{ratio:14.2f}{middle['p50_ms']:8.2f}{middle['p99_ms']:8.2f}"
            f"{middle['cpu_us']:8.1f}{middle['behind_cpu_us']:8.1f}"
        )


def _single(name: str) -> str:
    """Return the name of the case with one process in place of two, else the same name."""
    head, _, behind = name.partition(", of ")
    first = head.replace("2 processes", "1 process")
    return f"{first}, of {behind}" if behind else first


if __name__ == "__main__":
    main()
