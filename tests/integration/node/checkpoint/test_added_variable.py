"""A state variable that a restart adds is there at the version that brings it, in every format of the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.oracle.changed_columns import run_changing
from tests.support.spark.changing_state import ADDED_VARIABLE, after, before, changing_batches
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V1, ROCKSDB_CHANGELOG_V2, ROCKSDB_V1, StateFormat
from tests.support.spark.queries import wait_until

FORMATS = [
    pytest.param(replace(ROCKSDB_CHANGELOG_V1, encoding="avro"), id="changelog-v1", marks=pytest.mark.full),
    pytest.param(replace(ROCKSDB_CHANGELOG_V2, encoding="avro"), id="changelog-v2", marks=pytest.mark.full),
    pytest.param(replace(ROCKSDB_V1, encoding="avro"), id="v1", marks=pytest.mark.full),
]


@pytest.mark.parametrize("state_format", FORMATS)
def test_a_variable_that_a_restart_adds_is_answered_by_a_running_node_and_by_one_started_later(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    checkpoint = tmp_path / "checkpoint"
    first, second = changing_batches()
    silent: list[dict[str, object]] = [{"word": f"w{at}", "n": -1} for at in range(8)]
    run_changing(spark, checkpoint, before, [first], state_format)
    with served_node(checkpoint, tmp_path / "running") as running:
        wait_for(running, 1)
        # The batch that brings the table has no row for it: the first comes with the batch after that.
        run_changing(spark, checkpoint, after, [first, silent], state_format)
        wait_for(running, 2)
        run_changing(spark, checkpoint, after, [first, silent, second], state_format)
        assert_moods(running, second)
        with served_node(checkpoint, tmp_path / "late") as late:
            assert_moods(late, second)


def wait_for(node: ServedNode, version: int, store: str = "seen") -> None:
    def shown() -> set[object]:
        return {part["current_offset_position"] for part in node.partitions(store)} if not node.not_ready() else set()

    wait_until(lambda: shown() == {version}, what=f"version {version} of {store}")


def assert_moods(node: ServedNode, second: list[dict[str, object]]) -> None:
    wait_for(node, 3, ADDED_VARIABLE)
    moods = {row["word"]: str(row["n"]) for row in second}
    answers = node.look_up_all([[word] for word in moods], store=ADDED_VARIABLE)
    assert [(answer["version"], answer.get("value")) for answer in answers] == [
        (3, {"s": mood}) for mood in moods.values()
    ]
    assert {part["state"] for part in node.partitions(ADDED_VARIABLE)} == {"RUNNING"}
    assert [part["marks"] for part in node.partitions(ADDED_VARIABLE) if part.get("marks")] == []
