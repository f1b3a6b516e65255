"""The assignor's promises, over any sequence of joins, leaves, deaths, restarts within the delay and after it, drains.

Each step keeps its promises; in the end, with everything restored and nobody away, the cluster comes to rest, balanced.
"""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.support.cluster.assignor_model import END, LAG, NODES, WEIGHTS, WHICH, Cluster, check_rest, picked

from understudy_node.cluster.weights import Weights


class AnySequence(RuleBasedStateMachine):
    """Whatever happens, each step keeps its promises, and after it all the cluster comes to rest."""

    cluster: Cluster

    @initialize(
        tasks=st.integers(0, 40),
        standbys=st.integers(0, 3),
        warmups=st.integers(1, 4),
        zones=st.integers(1, 3),
        nodes=st.integers(0, 8),
    )
    def begin(self, tasks: int, standbys: int, warmups: int, zones: int, nodes: int) -> None:
        self.cluster = Cluster(tasks, standbys=standbys, warmups=warmups, zones=zones)
        for node in NODES[:nodes]:
            self.cluster.join(node)
        self.cluster.turn()

    def pick(self, which: int) -> str:
        """One of the live members."""
        return picked(self.cluster.members, which)

    @precondition(lambda self: len(self.cluster.members) + len(self.cluster.away) < len(NODES))
    @rule()
    def join(self) -> None:
        known = self.cluster.members.keys() | self.cluster.away.keys()
        self.cluster.join(next(node for node in NODES if node not in known))

    @precondition(lambda self: self.cluster.members)
    @rule(which=WHICH)
    def go_away(self, which: int) -> None:
        node = self.pick(which)
        if self.cluster.members[node].draining:
            self.cluster.die(node)
        else:
            self.cluster.go_away(node)

    @precondition(lambda self: self.cluster.away)
    @rule(which=WHICH)
    def come_back(self, which: int) -> None:
        self.cluster.come_back(picked(self.cluster.away, which))

    @precondition(lambda self: self.cluster.away)
    @rule(which=WHICH)
    def wait_no_longer(self, which: int) -> None:
        self.cluster.wait_no_longer(picked(self.cluster.away, which))

    @precondition(lambda self: self.cluster.members)
    @rule(which=WHICH)
    def die(self, which: int) -> None:
        self.cluster.die(self.pick(which))

    @precondition(lambda self: self.cluster.members)
    @rule(which=WHICH)
    def restart_unnoticed(self, which: int) -> None:
        node = self.pick(which)
        self.cluster.data[node] = dict.fromkeys(self.cluster.data[node])

    @precondition(lambda self: self.cluster.members)
    @rule(which=WHICH, draining=st.booleans())
    def drain(self, which: int, draining: bool) -> None:
        self.cluster.drain(self.pick(which), draining)

    @precondition(lambda self: self.cluster.members)
    @rule(which=WHICH, version=st.integers(END - 2 * LAG, END))
    def restore(self, which: int, version: int) -> None:
        self.cluster.restore(self.pick(which), version)

    @rule(seed=st.randoms(use_true_random=False))
    def restore_some(self, seed: Random) -> None:
        for replicas in self.cluster.data.values():
            for task in replicas:
                if seed.random() < 0.4:
                    replicas[task] = END

    @rule()
    def keep_what_was_taken_away(self) -> None:
        """Nodes give up tasks slowly: they may still report what the assignment before gave them."""
        for task in self.cluster.tasks[::3]:
            for node in list(self.cluster.members)[:2]:
                self.cluster.data[node].setdefault(task, END)

    @rule(weights=WEIGHTS)
    def weigh(self, weights: Weights) -> None:
        self.cluster.weigh(weights)

    @rule()
    def turn(self) -> None:
        self.cluster.turn()

    @rule()
    def come_to_rest(self) -> None:
        if self.cluster.members:
            self.cluster.settle()
            check_rest(self.cluster)
            self.cluster.begin_exchange()

    def teardown(self) -> None:
        if hasattr(self, "cluster") and self.cluster.members:
            self.cluster.settle()
            check_rest(self.cluster)
            for node in list(self.cluster.away):
                self.cluster.wait_no_longer(node)
            self.cluster.settle()
            check_rest(self.cluster)


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=50, stateful_step_count=40)
