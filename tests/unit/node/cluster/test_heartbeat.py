"""A heartbeat says how the node is, in a size that does not grow with the tasks in step; unknown stays unknown."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.simulated import SimulatedNode
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, heartbeat, wait_to_hold
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.files import FileStat
from understudy_node.cluster.heartbeat import catalogue_of
from understudy_node.follow.end import End
from understudy_node.node import Node
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import LagInfo, ReplicaState, Role, StoreName
from understudy_shared.bus.gossip import digest_of
from understudy_shared.bus.messages import Applied, Catalogue, Heartbeat, QueryProgress, Restore
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import parse_schema


def test_a_batch_that_has_begun_is_told_apart_from_a_query_that_begins_none(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0", "0_1", version=1)
        assert query(node).batch_ms is None
        checkpoint.write_state(2)
        wait_until(lambda: query(node).batch_ms is not None, what="the batch to be seen")
        assert query(node).since_commit_ms is None, "no commit arrived while it looked"
        checkpoint.commit(2)
        wait_until(lambda: query(node).since_commit_ms is not None, what="the commit to be seen")
        assert query(node).batch_ms is None


def query(node: Node) -> QueryProgress:
    """What a heartbeat of the node says of the query."""
    said = heartbeat(node).query
    assert said is not None
    return said


END = 9
NOW_MS = 1005.0
FILE = FileStat(mtime_ns=1, size=1, inode=1)

RESTORES = st.none() | st.builds(Restore, stage=st.just("files"), done_bytes=st.integers(0, 2))
STATUSES = st.fixed_dictionaries(
    {
        "version": st.none() | st.integers(END - 3, END),
        "state": st.sampled_from(ReplicaState),
        "error": st.none() | st.sampled_from(["disk full", "x" * 600]),
        "restore": RESTORES,
    }
)


class Measured:
    """Lags as of a real node's `Progress`; counts how often one is computed."""

    def __init__(self) -> None:
        self.asked = 0

    def lag_at(self, version: int, end: End, *, now_ms: float) -> LagInfo:
        self.asked += 1
        behind = end.version - version
        return LagInfo(version, end.version, behind, behind * 100 + round(now_ms))


def heartbeat_of_all(statuses: list[dict[str, Any]], progress: Measured) -> Heartbeat:
    """What a node says whose replicas are so. Each error is an object of its own, as replicas have them."""
    node = SimulatedNode(0, port=1, tasks=len(statuses))
    node.end = End(END, FILE, FILE, confirmed_ms=NOW_MS)
    node.generation.replicas = tuple(
        SimpleNamespace(
            key=f"0_{number}",
            view=None if status["version"] is None else SimpleNamespace(version=status["version"]),
            state=status["state"],
            error=None if status["error"] is None else UnderstudyError(status["error"]),
            restore=status["restore"],
            progress=progress,
        )
        for number, status in enumerate(statuses)
    )
    return node.heartbeat(sequence=1, order=(1, 1), catalogue="c1", now_ms=NOW_MS)


def said_of(status: dict[str, Any]) -> Applied:
    """One replica by itself."""
    version = status["version"]
    return Applied(
        version=version,
        time_lag_ms=None if version is None else (END - version) * 100 + round(NOW_MS),
        state=status["state"].value,
        error=None if status["error"] is None else status["error"][:500],
        restore=status["restore"],
    )


@given(st.lists(STATUSES, max_size=12))
def test_whatever_its_replicas_are_a_heartbeat_says_of_each_how_far_it_is(statuses: list[dict[str, Any]]) -> None:
    beat = heartbeat_of_all(statuses, Measured())
    expected = {f"0_{number}": said_of(status) for number, status in enumerate(statuses)}
    assert {task: beat.exceptions.get(task, beat.applied) for task in expected} == expected
    in_step = len(expected) - len(beat.exceptions)
    assert in_step == max((list(expected.values()).count(one) for one in expected.values()), default=0)
    assert beat.held == (sorted(expected) or None)


def test_of_a_thousand_tasks_in_step_one_lag_is_computed() -> None:
    progress = Measured()
    in_step: dict[str, Any] = {"version": END, "state": ReplicaState.RUNNING, "error": None, "restore": None}
    beat = heartbeat_of_all([in_step] * 1000 + [{**in_step, "version": END - 1}], progress)
    assert list(beat.exceptions) == ["0_1000"]
    assert progress.asked == 2


def test_a_codec_made_of_the_catalogue_encodes_and_places_keys_as_the_node_does(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint", partitions=4).create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data") as node:
        wait_to_hold(node, "0_0", "0_1", "0_2", "0_3")
        assert node.generation is not None
        catalogue = catalogue_of(node.generation, "words")
        sent = Catalogue.decode(catalogue.encode(), application_id="words", where="here")
        (store,) = sent.stores
        codec = KeyCodec(
            parse_schema(store.key_schema),
            names=store.key_names,
            num_hash_columns=store.num_hash_columns,
            is_normalised=store.is_normalised,
        )
        holding = node.generation.readers[StoreName(store.store)]
        for word in WORDS:
            row = codec.parse_json([word])
            key = holding.resolve((word,))
            assert (codec.partition(row, store.partitions), codec.encode(row)) == (key.partition, key.stored)
        assert (sent.lineage, sent.partitions, sent.not_served) == (node.lineage, 4, [])
        assert [column["name"] for column in store.value] == ["count", "total"]
        (schema,) = store.schemas
        assert [column["name"] for column in schema.value] == ["count", "total"]
        assert [column["name"] for column in schema.key] == ["word"]


def test_what_a_node_holds_does_not_change_its_catalogue(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    digests = set()
    with followed_node(checkpoint.path, tmp_path / "data", duties={}) as node:
        for tasks in ([], ["0_0"], ["0_0", "0_1"]):
            node.assign(dict.fromkeys(tasks, Role.ACTIVE))
            wait_to_hold(node, *tasks)
            assert node.generation is not None
            digests.add(digest_of(catalogue_of(node.generation, "words")))
    assert len(digests) == 1
