"""Every checkpoint in Spark's own test resources is served as Spark's reader has it, or refused by the right name.

Spark 2.1 to 4.0 wrote them, nobody here. What Spark 3.1 and later wrote has a schema, and is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.checkpoint.reader import CheckpointReader
from tests.support.oracle.kinds import read_operator
from tests.support.oracle.kinds_compared import assert_equal
from tests.support.spark.golden_checkpoints import jars, unpacked

from understudy_node.checkpoint.description import describe
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_shared.base.errors import UnderstudyError

JOIN, SESSIONS, GROUPS = "symmetricHashJoin", "sessionWindowStateStoreSaveExec", "flatMapGroupsWithState"
OPERATORS = {
    "checkpoint-version-3.1.0-flatmapgroupswithstate-repartition": GROUPS,
    "checkpoint-version-3.2.0-deduplication-with-repartition": "dedupe",
    "checkpoint-version-3.2.0-flatmapgroupswithstate1-repartition": GROUPS,
    "checkpoint-version-3.2.0-flatmapgroupswithstate2-repartition": GROUPS,
    "checkpoint-version-3.2.0-session-window-with-repartition": SESSIONS,
    "checkpoint-version-3.2.0-streaming-aggregate-with-repartition": "stateStoreSave",
    "checkpoint-version-3.3.0-streaming-deduplication": "dedupe",
    "checkpoint-version-3.5.1-streaming-deduplication": "dedupe",
    "checkpoint-version-3.5.1-streaming-join": JOIN,
    **{
        f"checkpoint-version-4.0.0/{provider}/{query}": operator
        for provider in ("hdfs", "rocksdb")
        for query, operator in {
            "agg": "stateStoreSave",
            "dedup": "dedupe",
            "join1": JOIN,
            "join2": JOIN,
            "limit": "globalLimit",
        }.items()
    },
}
"""The operator of each that Spark's reader reads."""
NO_STATE = ("keeps no state", "stateful queries")
NO_SCHEMA = ("neither metadata nor a schema: Spark 3.0 and older", "Continue the query on Spark 3.1 or later")
OF_A_PREVIEW = ("A preview of Spark 4.0 wrote this metadata", "a new checkpoint")
REFUSED = {
    "checkpoint-test-offsetId-commitId-inconsistent": NO_STATE,
    "checkpoint-version-2.1.0": ("has no settings", "Continue the query on Spark 3.1 or later"),
    "checkpoint-version-2.3.1-flatMapGroupsWithState-state-format-1": NO_SCHEMA,
    "checkpoint-version-2.3.1-for-multi-watermark-policy": NO_STATE,
    "checkpoint-version-2.3.1-streaming-aggregate-state-format-1": NO_SCHEMA,
    "checkpoint-version-2.3.1-without-commit-log-metadata": NO_SCHEMA,
    "checkpoint-version-2.4.0-streaming-join": NO_SCHEMA,
    "checkpoint-version-2.4.5-for-compatibility-test-common-functions": NO_SCHEMA,
    "checkpoint-version-2.4.5-for-compatibility-test-deduplicate": NO_SCHEMA,
    "checkpoint-version-2.4.5-for-compatibility-test-statistical-functions": NO_SCHEMA,
    "checkpoint-version-2.4.5-for-compatibility-test-sum-decimal": NO_SCHEMA,
    "checkpoint-version-3.0.0-streaming-statestore-codec": NO_SCHEMA,
    "checkpoint-version-3.5.4": NO_STATE,
    "checkpoint-version-4.0.0-tws-avro": OF_A_PREVIEW,
    "checkpoint-version-4.0.0-tws-unsaferow": OF_A_PREVIEW,
    "escaped-path-2.4.0/chk%252520%252525@%252523chk": NO_STATE,
}
"""What is said of each other one, and what to do."""


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    found = jars()
    if isinstance(found, str):
        pytest.skip(f"no checkpoints of Spark's own tests: {found}")
    return unpacked(found, tmp_path_factory.mktemp("golden"))


def test_each_is_served_or_refused_by_the_right_name_with_the_right_advice(golden: Mapping[str, Path]) -> None:
    assert set(golden) == {*OPERATORS, *REFUSED}
    for name, (what, fix) in REFUSED.items():
        with pytest.raises(UnderstudyError) as refusal:
            describe(open_checkpoint_files(golden[name]))
        assert (what in refusal.value.what, fix in refusal.value.fix) == (True, True), f"{name}: {refusal.value}"
    for name, operator in OPERATORS.items():
        (found,) = describe(open_checkpoint_files(golden[name])).operators
        assert (found.operator_name, found.refusals) == (operator, ()), name


@pytest.mark.full
def test_every_key_of_each_at_every_version_is_what_spark_reads(
    golden: Mapping[str, Path], spark: SparkSession, tmp_path: Path
) -> None:
    for number, (name, operator) in enumerate(OPERATORS.items()):
        batches = sorted(int(path.name) for path in (golden[name] / "commits").iterdir() if path.name.isdigit())
        stores = list(read_operator(spark, golden[name], operator, 0, batches))
        assert any(kept for store in stores for kept in store.kept.values()), name
        for batch in batches:
            with closing(CheckpointReader(golden[name], tmp_path / f"{number}-{batch}")) as reader:
                for store in stores:
                    assert_equal(reader, store, batch + 1)
