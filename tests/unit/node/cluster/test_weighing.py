"""The weight of tasks and nodes decides where numbers alone do not."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster.assignor_model import NODES, WEIGHTS, Cluster, check_rest

from understudy_node.cluster.weights import Weights

GIB = 1 << 30


def cluster(tasks: int, nodes: int, *, standbys: int = 1, weights: Weights | None = None) -> Cluster:
    """A cluster at rest. Its tasks are of the operators 0 and 1 by turns."""
    found = Cluster(tasks, standbys=standbys)
    for node in NODES[:nodes]:
        found.join(node)
    if weights is not None:
        found.weigh(weights)
    found.settle()
    return found


def exchanged(found: Cluster, weights: Weights) -> int:
    """Weigh, then exchange until nothing is to gain; the number of exchanges. The cluster rests between them."""
    found.weigh(weights)
    found.settle()
    for number in range(100):
        if not found.begin_exchange():
            return number
        found.settle()
        check_rest(found)
    pytest.fail("it exchanges for ever")


def bytes_at(found: Cluster) -> Counter[str]:
    """The load of each node, with that of other applications."""
    loads = Counter({node: found.weighed.weights.others_bytes.get(node, 0) for node in found.members})
    for task, node in found.replicas():
        loads[node] += found.weighed.weights.bytes_of(task)
    return loads


def test_the_replicas_of_a_new_application_lie_where_others_have_least() -> None:
    found = cluster(1, 4, weights=Weights(others_bytes={"n0": 9 * GIB, "n1": GIB, "n2": 8 * GIB, "n3": 2 * GIB}))
    assert {node for _, node in found.replicas()} == {"n1", "n3"}


def test_a_replica_leaves_a_node_at_which_others_have_grown() -> None:
    found = cluster(1, 3)
    (away,) = set(found.members) - {node for _, node in found.replicas()}
    active = found.assignment["0_0"].active
    assert active is not None
    assert exchanged(found, Weights({"0": GIB}, others_bytes={active: 50 * GIB})) == 1
    assert {node for _, node in found.replicas()} == {*found.members} - {active}
    assert away in found.assignment["0_0"].holders


def test_a_role_leaves_a_node_at_which_others_are_read_more() -> None:
    found = cluster(1, 2)
    active, (standby,) = found.assignment["0_0"].active, found.assignment["0_0"].standbys
    assert active is not None
    assert exchanged(found, Weights(reads=100, others_reads={active: 1000})) == 1
    assert found.assignment["0_0"].active == standby
    assert found.assignment["0_0"].standbys == (active,)


def test_nodes_exchange_heavy_replicas_for_light_ones() -> None:
    """Nodes that came one after another have as many replicas, and not as many of each operator."""
    found = Cluster(4)
    for node in NODES[:4]:
        found.join(node)
        found.settle()
    found.weigh(Weights({"0": 10 * GIB, "1": GIB}))
    assert bytes_at(found) == {"n0": 2 * GIB, "n1": 11 * GIB, "n2": 11 * GIB, "n3": 20 * GIB}
    assert exchanged(found, found.weighed.weights) == 1
    assert set(bytes_at(found).values()) == {11 * GIB}


@given(
    tasks=st.integers(1, 30),
    nodes=st.integers(1, 6),
    standbys=st.integers(0, 2),
    zones=st.integers(1, 2),
    weights=WEIGHTS,
)
def test_no_node_becomes_heavier_than_the_heaviest_was(
    tasks: int, nodes: int, standbys: int, zones: int, weights: Weights
) -> None:
    found = Cluster(tasks, standbys=standbys, zones=zones)
    for node in NODES[:nodes]:
        found.join(node)
    found.settle()
    found.weigh(weights)
    heaviest = max(bytes_at(found).values())
    exchanged(found, weights)
    assert max(bytes_at(found).values()) <= heaviest
