"""A fleet: many queries in three nodes and two routers, beside clusters of one query each.

    python -m benchmarks.fleet [--queries 40] [--clusters 4] [--seconds 60] [--report FILE]

Real processes on all cores, `understudy node` and `understudy router`, with a Redis for each case. A query is a
checkpoint made by hand with 4 partitions and some 40 words; one process commits for all queries. In the fleet they
announce themselves below a `--checkpoint-root`; a cluster of one has three nodes and two routers of its own. Before
anything is measured, and after the commits, every router has to answer keys of all partitions of each of its queries
as the last version has them. `--clusters` are measured, and as many as there are queries are computed: CPU and private
memory grow with their number, and pages that processes share count once. Then queries announce themselves one after
the other, each after its first commit: the time to the first right answer of a router.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.services.command_line import Serving
from tests.support.spark.queries import wait_until

from benchmarks.fleet_processes import Start, Use, port_of, services, used
from benchmarks.fleet_queries import LIMIT_S, Query, commits, wait_for_answers
from benchmarks.report import write_report
from understudy.demo.local_redis import LocalRedis, local_redis

NODES, ROUTERS = 3, 2
COMMIT_EVERY_S = 2.0
MEMORY_GOAL, ANSWER_GOAL_S = 0.2, 3.0
PHASES = ("at rest", f"a commit in {COMMIT_EVERY_S:g} s each")

Found = Mapping[str, Mapping[str, Use]]
"""The use in each phase, by kind of process."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Running processes, and the queries that they serve."""

    nodes: Sequence[Serving]
    routers: Sequence[Serving]
    queries: Sequence[Query]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--clusters", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement")
    parser.add_argument("--settle", type=float, default=20.0, help="seconds before each measurement")
    parser.add_argument("--later", type=int, default=10, help="queries that announce themselves after that")
    parser.add_argument("--report", type=Path, help="write the figures to a file, for benchmarks.compare")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what runs ends, and the folder goes
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name:
        fleet, answers_s = of_fleet(Path(name) / "fleet", options)
        clusters = of_clusters(Path(name) / "clusters", options)
    computed = {
        phase: {kind: use.times(options.queries / options.clusters) for kind, use in kinds.items()}
        for phase, kinds in clusters.items()
    }
    print_table(options, fleet, clusters, computed)
    print(
        f"\nfrom announce to the first answer, {len(answers_s)} queries: p50 {statistics.median(answers_s):.2f} s "
        f"(goal {ANSWER_GOAL_S:g}), longest {max(answers_s):.2f} s"
    )
    if options.report is not None:
        write_report(options.report, figures(options, fleet, computed, answers_s))


def of_fleet(folder: Path, options: argparse.Namespace) -> tuple[Found, list[float]]:
    """Measure all queries in one cluster, then the time to the first answers of later ones."""
    root = folder / "checkpoints"
    with local_redis() as bus, services(folder, bus.url) as start:
        queries = [Query(root, f"query-{number:02}", bus.url).create() for number in range(options.queries)]
        told(f"a fleet starts: {NODES} nodes, {ROUTERS} routers")
        fleet = started(start, "fleet", ["--checkpoint-root", str(root)], ["--applications", "*"], queries)
        for query in queries:
            query.announce()
        found = measured(root, bus, [fleet], options)
        later = [Query(root, f"later-{number:02}", bus.url) for number in range(options.later)]
        return found, [first_answer_s(query, fleet.routers[n % ROUTERS]) for n, query in enumerate(later)]


def of_clusters(folder: Path, options: argparse.Namespace) -> Found:
    """Measure clusters of one query each, over one Redis."""
    root, clusters = folder / "checkpoints", []
    with local_redis() as bus, services(folder, bus.url) as start:
        for number in range(options.clusters):
            told(f"cluster {number + 1} of {options.clusters} starts")
            query = Query(root, f"query-{number:02}", bus.url).create()
            named = ["--application-id", query.name]
            clusters.append(started(start, query.name, [str(query.checkpoint), *named], named, [query]))
        return measured(root, bus, clusters, options)


def started(start: Start, name: str, node: Sequence[str], router: Sequence[str], queries: Sequence[Query]) -> Cluster:
    """Start the nodes of a cluster, then its routers, with their arguments."""
    return Cluster(
        [start("node", f"{name}-node-{number}", node) for number in range(NODES)],
        [start("router", f"{name}-router-{number}", router) for number in range(ROUTERS)],
        queries,
    )


def measured(root: Path, bus: LocalRedis, clusters: Sequence[Cluster], options: argparse.Namespace) -> Found:
    """Measure at rest, and while each query commits; before and after every router answers right."""
    queries = [query for cluster in clusters for query in cluster.queries]
    pids = {
        "nodes": [node.process.pid for cluster in clusters for node in cluster.nodes],
        "routers": [router.process.pid for cluster in clusters for router in cluster.routers],
        "Redis": [bus.pid],
    }
    require_right(clusters)
    told(f"{PHASES[0]}: {options.settle:g} s, then {options.seconds:g} s that count")
    time.sleep(options.settle)
    at_rest = used(pids, options.seconds)
    with commits(root, bus.url, COMMIT_EVERY_S, queries):
        told(f"{PHASES[1]}: {options.settle:g} s, then {options.seconds:g} s that count")
        time.sleep(options.settle)
        began_s, before = time.monotonic(), sum(query.version for query in queries)
        busy = used(pids, options.seconds)
        made = sum(query.version for query in queries) - before
        told(f"{made} commits in {time.monotonic() - began_s:.0f} s")
    require_right(clusters)
    return dict(zip(PHASES, (at_rest, busy), strict=True))


def require_right(clusters: Sequence[Cluster]) -> None:
    """Return when each router answers for its queries as of their last versions; fail when that takes too long."""
    for cluster in clusters:
        wait_for_answers(cluster.queries, [port_of(router) for router in cluster.routers])
    told(f"right answers of {sum(len(cluster.queries) for cluster in clusters)} queries at each of their routers")


def first_answer_s(query: Query, router: Serving) -> float:
    """Measure the time from the announcement of a query with one commit to its first right answer."""
    query.create()
    port, began_s = port_of(router), time.monotonic()
    query.announce()
    wait_until(lambda: query.is_right(port), what=f"an answer of {query.name}", limit_s=LIMIT_S)
    took_s = time.monotonic() - began_s
    told(f"{query.name} answers after {took_s:.2f} s")
    return took_s


def services_of(kinds: Mapping[str, Use]) -> Use:
    """Return what nodes and routers use together."""
    return kinds["nodes"] + kinds["routers"]


def print_table(options: argparse.Namespace, fleet: Found, clusters: Found, computed: Found) -> None:
    """Print memory and CPU by phase and kind, with the ratio of the fleet to as many clusters as it has queries."""
    measured_name, computed_name = f"{options.clusters} clusters", f"{options.queries}, computed"
    print(f"{options.queries} queries, {NODES} nodes, {ROUTERS} routers\n")
    print(f"{'':54}{'fleet':>10}{measured_name:>14}{computed_name:>14}{'ratio':>8}")
    for phase in PHASES:
        for kind in (*fleet[phase], "nodes and routers"):
            uses = [each[phase].get(kind) or services_of(each[phase]) for each in (fleet, clusters, computed)]
            memory = [use.memory_bytes / 2**20 for use in uses]
            goal = f"  (goal {MEMORY_GOAL:g})" if kind == "nodes and routers" else ""
            print(row(f"{phase}, {kind}: memory, MiB", memory) + goal)
            print(row(f"{phase}, {kind}: CPU, s/min", [use.cpu_s_per_minute for use in uses]))


def row(name: str, values: Sequence[float]) -> str:
    """Render a line: the fleet, the measured clusters, the computed ones, and the first by the last."""
    fleet, clusters, computed = values
    return f"{name:54}{fleet:10,.1f}{clusters:14,.1f}{computed:14,.1f}{fleet / computed if computed else 0:8.3f}"


def figures(
    options: argparse.Namespace, fleet: Found, computed: Found, answers_s: Sequence[float]
) -> dict[str, list[dict[str, float]]]:
    """Return the figures for a report."""
    rounds: dict[str, list[dict[str, float]]] = {}
    for phase in PHASES:
        ours, theirs = services_of(fleet[phase]), services_of(computed[phase])
        rounds[f"{options.queries} queries, {phase}"] = [
            {
                **asdict(ours),
                "memory_of_clusters": ours.memory_bytes / theirs.memory_bytes,
                "cpu_of_clusters": ours.cpu_s_per_minute / theirs.cpu_s_per_minute,
            }
        ]
    rounds["from announce to the first answer"] = [{"first_answer_s": took_s} for took_s in answers_s]
    return rounds


def told(what: str) -> None:
    """Show progress."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
