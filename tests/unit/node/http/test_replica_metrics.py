"""A node's metrics of replicas: names of stores, unknown lag that can be seen, and a bounded number of series."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, wait_to_hold

from understudy_node.http.metrics import replica_metrics
from understudy_node.node import Node
from understudy_node.replica.read_views import Progress
from understudy_shared.base.words import LagInfo

PARTITIONS = 4
Series = dict[tuple[tuple[str, str], ...], float]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=PARTITIONS).create().add(1, 2)
    with followed_node(checkpoint.path, tmp_path / "data") as followed:
        wait_to_hold(followed, *(f"0_{partition}" for partition in range(PARTITIONS)), version=2)
        yield followed


def series(node: Node, max_partitions: int = 100) -> dict[str, Series]:
    """The values of each family, by their labels."""
    assert node.generation is not None
    return {
        family.name: {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}
        for family in replica_metrics(node.generation.readers, max_partitions)
    }


def test_replicas_are_counted_by_the_name_of_their_store_their_role_and_their_state(node: Node) -> None:
    counts = series(node)["understudy_replicas"]
    assert counts[("role", "active"), ("state", "RUNNING"), ("store", "op0")] == PARTITIONS
    assert sum(counts.values()) == PARTITIONS
    assert counts[("role", "standby"), ("state", "RUNNING"), ("store", "op0")] == 0


def test_every_partition_has_its_version_lag_role_and_state(node: Node) -> None:
    found = series(node)
    of_1 = (("partition", "1"), ("store", "op0"))
    assert found["understudy_replica_position"][of_1] == 2
    assert found["understudy_replica_lag_batches"][of_1] == 0
    assert found["understudy_replica_lag_unknown"][of_1] == 0
    assert (
        found["understudy_replica_info"][("partition", "1"), ("role", "active"), ("state", "RUNNING"), ("store", "op0")]
        == 1
    )
    assert found["understudy_store_partitions"] == {(("store", "op0"),): PARTITIONS}
    assert node.generation is not None
    sizes = [replica.stored_bytes or 0 for replica in node.generation.replicas]
    assert found["understudy_store_stored_bytes"] == {(("store", "op0"),): sum(sizes)}


def test_unknown_lag_has_a_series_of_its_own_and_none_of_the_lag(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "lag_of", lambda _, view: LagInfo(view.version, None, None, None))
    found = series(node)
    assert found["understudy_store_lag_unknown"] == {(("store", "op0"),): PARTITIONS}
    assert set(found["understudy_replica_lag_unknown"].values()) == {1}
    for absent in ("replica_lag_batches", "replica_lag_seconds", "store_lag_batches", "store_lag_seconds"):
        assert found[f"understudy_{absent}"] == {}


@pytest.mark.parametrize("most", [0, 1, 3, PARTITIONS, PARTITIONS + 1])
def test_no_more_replicas_than_allowed_have_series_and_the_rest_is_counted(node: Node, most: int) -> None:
    found = series(node, most)
    for name in ("info", "position", "lag_batches", "lag_unknown"):
        assert len(found[f"understudy_replica_{name}"]) == min(most, PARTITIONS)
    assert found["understudy_replica_series_left_out"] == {(): max(0, PARTITIONS - most)}
    assert sum(found["understudy_replicas"].values()) == PARTITIONS, "by store all of them count"
