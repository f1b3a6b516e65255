"""The cost of single steps in a cluster of a given size, without processes: the choice, the messages, the assignor.

    python -m benchmarks.scale_parts [--nodes 1000] [--partitions 100000]

Each task has two replicas. Figures are CPU time, the least of three runs.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmarks.simulated import APPLICATION, LINEAGE, SimulatedNode
from understudy_node.cluster.assignor import Assignor, Member, Replica
from understudy_router.cluster.candidates import candidates_of
from understudy_router.cluster.catalogue import stores_of
from understudy_router.cluster.tables import Tables
from understudy_router.routing.choose import choose, key_hash
from understudy_shared.bus.assignments import decode_slices
from understudy_shared.bus.message_auth import Keyring, MessageAuth
from understudy_shared.bus.messages import AssignedTask, Assignment, Heartbeat, NodeEndpoint
from understudy_shared.reads.bounds import NO_BOUND

RUNS = 3
MAX_WARMUPS = 2


class Cost(NamedTuple):
    """The cost of a step."""

    what: str
    us: float
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.what:56}{self.us:14,.1f} us   {self.remark}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=100_000)
    options = parser.parse_args()
    for cost in costs(options.nodes, options.partitions):
        print(cost, flush=True)


def costs(nodes: int, partitions: int) -> Iterator[Cost]:
    """Yield the costs of all steps."""
    cluster = Cluster(nodes, partitions)
    yield Cost("assign from nothing", cluster.assigned_us, f"{partitions:,} tasks, {nodes:,} nodes")
    yield least("assign again, nothing to do", cluster.again)
    yield least("assign after a tenth of the nodes died", cluster.after_deaths)
    yield from _messages(cluster)
    yield from _choices(cluster)


class Cluster:
    """Nodes, and an assignment made by the assignor."""

    def __init__(self, nodes: int, partitions: int) -> None:
        self.nodes = [SimulatedNode(number, port=7101, tasks=partitions) for number in range(nodes)]
        self.members = [Member(each.node_id, each.zone) for each in self.nodes]
        self.tasks = [f"0_{partition}" for partition in range(partitions)]
        began_s = time.process_time()
        self.assigned = assigned(self.members, self.tasks, {}, {})
        self.assigned_us = (time.process_time() - began_s) * 1e6
        self.held = {
            task: [Replica(node_id, caught_up=True, version=7) for node_id in duty.holders]
            for task, duty in self.assigned.items()
        }

    def again(self) -> object:
        return assigned(self.members, self.tasks, self.assigned, self.held)

    def after_deaths(self) -> object:
        return assigned(self.members[len(self.members) // 10 :], self.tasks, self.assigned, self.held)

    def assignment(self, epoch: int) -> Assignment:
        return assignment_of(self.nodes, self.assigned, epoch)

    def heartbeats(self, sequence: int, version: int = 7) -> list[Heartbeat]:
        digest = self.nodes[0].catalogue()[0]
        for each in self.nodes:
            each.committed(version, 0.0)
        return [each.heartbeat(sequence=sequence, order=(1, 1), catalogue=digest, now_ms=0.0) for each in self.nodes]


def assigned(
    members: list[Member], tasks: list[str], before: dict[str, AssignedTask], held: dict[str, list[Replica]]
) -> dict[str, AssignedTask]:
    """Call the assignor once."""
    return Assignor(num_standby_replicas=1, max_warmup_replicas=MAX_WARMUPS).assign(members, tasks, before, held)


def assignment_of(nodes: list[SimulatedNode], tasks: dict[str, AssignedTask], epoch: int) -> Assignment:
    """Make the document of an assignment."""
    members = {each.node_id: NodeEndpoint(host=each.host.host, port=each.host.port) for each in nodes}
    return Assignment(
        application_id=APPLICATION,
        term=1,
        epoch=epoch,
        written_by=nodes[0].node_id,
        lineage=LINEAGE,
        partitions=len(tasks),
        tasks=tasks,
        members=members,
    )


def _messages(cluster: Cluster) -> Iterator[Cost]:
    assignment = cluster.assignment(1)
    document = assignment.encode()
    yield least("write an assignment", assignment.encode, f"{len(document):,} bytes")
    times: list[float] = []

    def read() -> None:
        steps = decode_slices(document, application_id=APPLICATION, where="here")
        while True:
            began_s = time.process_time()
            try:
                next(steps)
            except StopIteration:
                return
            finally:
                times.append(time.process_time() - began_s)

    whole = least("read an assignment, in slices", read)
    yield whole._replace(remark=f"longest slice {max(times) * 1e3:.1f} ms")
    (heartbeat, *_) = cluster.heartbeats(1)
    payload = heartbeat.encode()
    yield least("write a heartbeat", heartbeat.encode, f"{len(payload)} bytes", calls=100)

    def hear() -> object:
        return Heartbeat.decode(payload, application_id=APPLICATION, where="here")

    yield least("read a heartbeat", hear, calls=100)
    yield from _signatures(payload, document)


def _signatures(heartbeat: bytes, assignment: bytes) -> Iterator[Cost]:
    """Measure signing and judging a message, in two processes with one key. No message is used twice."""
    one, other = (MessageAuth(APPLICATION, Keyring([b"k" * 32]), sender=f"node-{number}") for number in (1, 2))
    yield least("sign a heartbeat", lambda: one.sealed(b"heartbeat", heartbeat), calls=100)
    waiting = iter([one.sealed(b"heartbeat", heartbeat) for _ in range(100 * RUNS)])

    def judge() -> None:
        other.refuse_repeated(other.opened(next(waiting)))

    yield least("judge the signature of a heartbeat", judge, calls=100)
    large = one.sealed(b"assignment", assignment)
    yield least("judge the signature of an assignment, in a thread", lambda: other.opened(large))


def _choices(cluster: Cluster) -> Iterator[Cost]:
    tables = Tables()
    tables.bus_back(0)
    tables.assigned(cluster.assignment(1), 0.0)
    for heartbeat in cluster.heartbeats(1):
        tables.heard(heartbeat, age_ms=0, now_ms=0)
    later = iter([cluster.heartbeats(sequence) for sequence in range(2, 2 + RUNS)])

    def hear_all() -> None:
        for heartbeat in next(later):
            tables.heard(heartbeat, age_ms=0, now_ms=1)

    heard = least("take a heartbeat in, at a router", hear_all)
    yield heard._replace(us=heard.us / len(cluster.nodes))
    epochs = iter(range(2, 2 + RUNS))
    following = [cluster.assignment(next(epochs)) for _ in range(RUNS)]
    for each in following:
        assert each.holders  # known when it is read in slices
    waiting = iter(following)
    yield least("take an assignment in, at a router", lambda: tables.assigned(next(waiting), 1.0))
    digest, catalogue = cluster.nodes[0].catalogue()
    route = stores_of(catalogue, digest).get("aircraft")
    partitions = [random.Random(0).randrange(len(cluster.tasks)) for _ in range(1000)]

    def choose_each() -> None:
        for partition in partitions:
            candidates = candidates_of(tables, 0, partition, 1.0)
            choose(candidates, NO_BOUND, key_hash=key_hash(route, partition), load={})

    chosen = least("choose among the replicas of a partition", choose_each)
    yield chosen._replace(us=chosen.us / len(partitions), remark=f"at {len(cluster.tasks):,} partitions")
    yield least("collect all garbage", gc.collect)


def least(what: str, call: Callable[[], object], remark: str = "", *, calls: int = 1) -> Cost:
    """Return the least CPU time of RUNS."""
    taken = []
    for _ in range(RUNS):
        began_s = time.process_time()
        for _ in range(calls):
            call()
        taken.append((time.process_time() - began_s) / calls)
    return Cost(what, min(taken) * 1e6, remark)


if __name__ == "__main__":
    main()
