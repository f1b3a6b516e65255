"""One assignor and lease for each application of a fleet, beside one for all of them.

    python -m benchmarks.fleet_leases [--applications 200] [--tasks 32] [--nodes 20]

Each task has two replicas, all caught up. Times are CPU, the least of three runs; those of many assignors are the sums
over all applications, whose leases lie at all nodes. Bytes are those of documents as they are written to Redis.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from understudy_node.cluster.assignor import Assignor, Member, Replica
from understudy_shared.bus.messages import AssignedTask, Assignment, NodeEndpoint

RUNS = 3
Tasks = Sequence[str]
Assigned = Mapping[str, AssignedTask]


class Step(NamedTuple):
    """The cost of an event: CPU in ms, bytes written, and the assignments that change."""

    cpu_ms: float
    written_bytes: int
    changed: int

    def __str__(self) -> str:
        return f"{self.cpu_ms:10,.1f} ms {self.written_bytes:12,} bytes in {self.changed:4} documents"


class Fleet:
    """The assignments of a fleet, by lease: each of some tasks over the same nodes."""

    def __init__(self, shares: Sequence[Tasks], nodes: int) -> None:
        self._shares = shares
        self._members = [Member(f"node-{number:02}") for number in range(nodes)]
        self._assigned: list[Assigned] = [{} for _ in shares]
        self._assignors = [
            Assignor(num_standby_replicas=1, max_warmup_replicas=2, application_id=f"application-{number}")
            for number in range(len(shares))
        ]

    def first(self) -> Step:
        """Assign everything."""
        return self._step(self._members, range(len(self._shares)))

    def death(self) -> Step:
        """Assign after the death of a node."""
        return self._step(self._members[1:], range(len(self._shares)))

    def new_query(self) -> Step:
        """Assign the last share anew: a query that came, or was repartitioned."""
        self._assigned[-1] = dict(list(self._assigned[-1].items())[:-32])
        return self._step(self._members, [len(self._shares) - 1])

    def _step(self, members: Sequence[Member], shares: Sequence[int]) -> Step:
        took_s, written_bytes, changed = 0.0, 0, 0
        for number in shares:
            before, tasks = self._assigned[number], self._shares[number]
            held = {task: [Replica(node, True, 9) for node in assigned.holders] for task, assigned in before.items()}
            began_s = time.process_time()
            found = self._assignors[number].assign(members, tasks, before, held)
            took_s += time.process_time() - began_s
            if found != before:
                document = _document(found, members)
                began_s = time.process_time()
                written_bytes += len(document.encode())
                took_s += time.process_time() - began_s
                changed += 1
            self._assigned[number] = found
        return Step(took_s * 1000, written_bytes, changed)


def _document(tasks: Assigned, members: Sequence[Member]) -> Assignment:
    return Assignment(
        application_id="application",
        term=1,
        epoch=1,
        written_by="node-00",
        lineage="7f3b7c5e-2f7c-4f0e-9d59-0f0d0c1f7a51",
        partitions=32,
        tasks=dict(tasks),
        members={each.node_id: NodeEndpoint(host="10.0.0.1", port=7101) for each in members},
    )


def measured(shares: Sequence[Tasks], nodes: int, event: Callable[[Fleet], Step]) -> Step:
    """Return the least of some runs, each of a fleet of its own."""
    return min(_run(shares, nodes, event) for _ in range(RUNS))


def _run(shares: Sequence[Tasks], nodes: int, event: Callable[[Fleet], Step]) -> Step:
    fleet = Fleet(shares, nodes)
    first = fleet.first()
    return first if event is Fleet.first else event(fleet)


def lines(applications: int, tasks: int, nodes: int) -> Iterator[str]:
    """Yield the figures as text."""
    names = [[f"{application}_{partition}" for partition in range(tasks)] for application in range(applications)]
    whole = [[name for share in names for name in share]]
    for what, event in (
        ("from nothing", Fleet.first),
        ("a node dies", Fleet.death),
        ("a query comes", Fleet.new_query),
    ):
        yield f"{what:16} one for each application {measured(names, nodes, event)}"
        yield f"{'':16} one for all              {measured(whole, nodes, event)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--applications", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--nodes", type=int, default=20)
    options = parser.parse_args()
    for line in lines(options.applications, options.tasks, options.nodes):
        print(line, flush=True)


if __name__ == "__main__":
    main()
