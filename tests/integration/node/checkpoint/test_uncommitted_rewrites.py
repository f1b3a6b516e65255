"""What format 1 cannot rule out after a commit: a zombie writes over a committed file. It is noticed, and said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.oracle.spark_reader import read_state
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V1, StateFormat
from tests.support.spark.queries import QueryOptions, stream_feeder

ZOMBIE_PARTITION = 1
KEPT_KEYS = 20


def build(source: DataFrame) -> DataFrame:
    """Most words come once only, so that a version which is replaced leaves its gap for good."""
    return source.groupBy("word").agg(F.count("*"))


def rows(batch: int) -> list[dict[str, str]]:
    return [{"word": f"only-{batch}-{n}"} for n in range(KEPT_KEYS)] + [{"word": "always"}]


def overwrite(checkpoint: Path, kind: str, *, version: int, by: int) -> None:
    """Write one version's changes over another's, checksum file included, as a zombie's rename would."""
    folder = checkpoint / "state" / "0" / str(ZOMBIE_PARTITION)
    for source, target in ((f".{by}.{kind}.crc", f".{version}.{kind}.crc"), (f"{by}.{kind}", f"{version}.{kind}")):
        draft = folder / f".{target}.draft"
        shutil.copyfile(folder / source, draft)
        draft.replace(folder / target)


@pytest.mark.parametrize(
    ("state_format", "kind"),
    [
        pytest.param(HDFS_V1, "delta", id=HDFS_V1.id),
        pytest.param(ROCKSDB_CHANGELOG_V1, "changelog", id=ROCKSDB_CHANGELOG_V1.id),
    ],
)
def test_a_committed_file_that_a_zombie_rewrites_makes_the_replica_start_again_and_say_so(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat, kind: str
) -> None:
    checkpoint = tmp_path / "checkpoint"
    keys = [[row["word"]] for batch in range(4) for row in rows(batch)]
    with stream_feeder(
        spark,
        name="zombie",
        schema="word string",
        build=build,
        checkpoint=checkpoint,
        state_format=state_format,
        options=QueryOptions(partitions=2),
    ) as feeder:
        for batch in range(3):
            feeder.add(rows(batch))
        with served_node(checkpoint, tmp_path / "data") as served:
            served.wait_for_version(3)
            # The rewritten file is one that the node applied to what it showed, not one that it restored from.
            feeder.add(rows(3))
            served.wait_for_version(4)
            before = found_by(served, keys)
            assert marks_of(served) == {0: [], 1: []}
            overwrite(checkpoint, kind, version=4, by=3)
            feeder.add(rows(4))
            served.wait_for_version(5)
            after = found_by(served, keys)
            assert marks_of(served) == {0: [], ZOMBIE_PARTITION: ["unverifiable-v1"]}
            answers = served.look_up_all(keys)
        expected = {(row.partition, row.key[0]): row.value[0] for row in read_state(spark, checkpoint, 0, 4)}
    lost = before.keys() - after.keys()
    assert {partition for partition, _ in lost} == {ZOMBIE_PARTITION}
    assert all(str(word).startswith("only-3-") for _, word in lost)
    assert after.items() <= expected.items()
    assert {each for each in expected if not str(each[1]).startswith("only-4-")} == after.keys()
    assert {each["partition"] for each in answers if each.get("marks") == ["unverifiable-v1"]} == {ZOMBIE_PARTITION}
    assert {each["partition"] for each in answers if "marks" not in each} == {0}


def found_by(served: ServedNode, keys: list[list[str]]) -> dict[tuple[object, object], object]:
    """Counts of the words that are there, by partition and word."""
    found: dict[tuple[object, object], object] = {}
    for (word,), answer in zip(keys, served.look_up_all(keys), strict=True):
        value = answer.get("value")
        if isinstance(value, dict):
            found[answer["partition"], word] = value["count"]
    return found


def marks_of(served: ServedNode) -> dict[object, object]:
    """Marks in the lag report, by partition."""
    return {part["partition"]: part["marks"] for part in served.partitions()}
