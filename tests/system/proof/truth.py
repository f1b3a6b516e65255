"""What Spark's own state reader says of every version: the change feed over all batches, checked against plain reads.

The feed gives each key's changes, and so all versions in one Spark job; it is believed only when the states that it
adds up to, at the last version and at some before, are what the plain reader finds there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from tests.support.oracle.json import json_object
from tests.support.oracle.spark_reader import read_versions, row_types
from tests.support.spark.formats import StateFormat
from tests.support.spark.queries import committed_batches, settings
from tests.system.proof.keys import STORE, slot_text
from tests.system.proof.question import key_text
from tests.system.proof.truth_of_state import Truth, Value

Change = tuple[int, Value | None]
"""A value and the version from which it holds; None where the key was removed."""

CHECKED_VERSIONS = 5


def write_truth(spark: SparkSession, checkpoint: Path, state_format: StateFormat, path: Path) -> None:
    """Write the truth about a checkpoint at rest. AssertionError when the feed and the plain reader disagree."""
    batches = committed_batches(checkpoint)
    changes = changes_of(spark, checkpoint, state_format, batches[-1])
    step = max(1, len(batches) // CHECKED_VERSIONS)
    check_against_reader(spark, checkpoint, changes, [*batches[step::step][: CHECKED_VERSIONS - 1], batches[-1]])
    Truth({STORE: changes}, first=batches[0] + 1, last=batches[-1] + 1).save(path)


def changes_of(
    spark: SparkSession, checkpoint: Path, state_format: StateFormat, last_batch: int
) -> dict[str, list[Change]]:
    """Each key's changes in the order of versions, from the change feed."""
    names = row_types(spark, checkpoint, 0)[1]
    found: dict[str, list[Change]] = {}
    for batch, kind, slot_s, word, *value in _feed(spark, checkpoint, state_format, last_batch).collect():
        removed = kind == "delete"
        change = (batch + 1, None if removed else json_object(tuple(value), names))
        found.setdefault(key_text(slot_text(slot_s), word), []).append(change)
    for listed in found.values():
        listed.sort(key=lambda change: change[0])
    return found


def check_against_reader(
    spark: SparkSession, checkpoint: Path, changes: Mapping[str, Sequence[Change]], batches: Sequence[int]
) -> None:
    """Hold the feed's sums against the plain reader at some versions."""
    names = row_types(spark, checkpoint, 0)[1]
    for batch, rows in read_versions(spark, checkpoint, 0, sorted(set(batches))).items():
        plain = {}
        for row in rows:
            slot_us, word = row.key
            assert isinstance(slot_us, int)
            plain[key_text(slot_text(slot_us // 1_000_000), str(word))] = json_object(row.value, names)
        summed = {key: value for key, listed in changes.items() if (value := value_at(listed, batch + 1)) is not None}
        assert summed == plain, f"the change feed and the state reader differ at batch {batch}"


def value_at(changes: Sequence[Change], version: int) -> Value | None:
    """What a key's changes add up to at a version."""
    newest = None
    for since, value in changes:
        if since > version:
            break
        newest = value
    return newest


def _feed(spark: SparkSession, checkpoint: Path, state_format: StateFormat, last_batch: int) -> DataFrame:
    with settings(spark, state_format.conf()):
        reader = spark.read.format("statestore").option("readChangeFeed", True)
        frame = reader.option("changeStartBatchId", 0).option("changeEndBatchId", last_batch).load(str(checkpoint))
        names = [f"c{place}" for place in range(len(frame.schema["value"].dataType))]  # type: ignore[arg-type]
        value = F.col("value").cast(f"struct<{','.join(f'{name}:bigint' for name in names)}>")
        key = F.col("key").cast("struct<slot:timestamp,word:string>")
        return frame.select(
            "batch_id", "change_type", F.unix_timestamp(key["slot"]), key["word"], *(value[name] for name in names)
        )
