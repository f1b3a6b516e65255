"""What `transformWithState` in Scala keeps is answered as Spark's own state reader has it.

A job in Scala writes the checkpoints during the run. Scala names columns otherwise than Python: a value without columns
is `value`, a tuple has `_1` and `_2`, and numbers that cannot be null say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.support.oracle.custom_compared import assert_answered_by_a_node, assert_every_version_equal
from tests.support.oracle.custom_state import BATCHES, custom_options, read_custom_checkpoint
from tests.support.oracle.kinds import PARTITIONS, KindsCheckpoint
from tests.support.oracle.record import record
from tests.support.spark.formats import ROCKSDB_CHANGELOG_V1, ROCKSDB_CHANGELOG_V2, ROCKSDB_V1, ROCKSDB_V2, StateFormat
from tests.support.spark.scala_job import VARIABLES, write_in_scala

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

LAYOUTS = (ROCKSDB_V1, ROCKSDB_CHANGELOG_V1, ROCKSDB_V2, ROCKSDB_CHANGELOG_V2)
FORMATS = (*LAYOUTS, *(replace(each, encoding="avro") for each in (ROCKSDB_V1, ROCKSDB_CHANGELOG_V2)))
"""Each layout and each encoding. What Scala does otherwise is in the rows, not in the files: the query in Python has
both encodings in each layout. Spark refuses `transformWithState` in the HDFS-backed provider.
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Mapping[StateFormat, Path]:
    folder = tmp_path_factory.mktemp("scala")
    return dict(zip(FORMATS, write_in_scala(folder, FORMATS, custom_options(), batches=BATCHES), strict=True))


@pytest.fixture(scope="module", params=[pytest.param(each, id=each.id) for each in FORMATS])
def oracle(request: pytest.FixtureRequest, spark: SparkSession, written: Mapping[StateFormat, Path]) -> KindsCheckpoint:
    state_format: StateFormat = request.param
    return read_custom_checkpoint(spark, written[state_format], state_format, VARIABLES)


def test_what_the_comparison_is_about_did_occur(oracle: KindsCheckpoint) -> None:
    assert {store.operator for store in oracle.stores.values()} == {"transformWithStateExec"}
    kinds = [store.kind for store in oracle.stores.values()]
    assert {kind: kinds.count(kind) for kind in kinds} == {"value": 5, "list": 3, "map": 3, "timers": 2}
    for store in oracle.stores.values():
        assert all(store.kept[version] for version in oracle.versions), f"{store.name} keeps nothing"
        assert {kept.partition for kept in store.kept[oracle.last]} == set(range(PARTITIONS)), store.name
    (weather,) = (store for store in oracle.stores.values() if store.name.endswith(".weather") and "sky" in repr(store))
    values = [kept.said["value"] for kept in weather.kept[oracle.last]]
    for column in ("sky", "words", "raw"):
        assert {value[column] is None for value in values} == {True, False}, f"{column} is null in some"
    keys = [repr(kept.key) for store in oracle.stores.values() for kept in store.kept[oracle.last]]
    for awkward in ("['']", "['日本語é']", "['NaN', {'_1': None,"):
        assert any(key.startswith(awkward.removesuffix("]")) for key in keys), f"no key has {awkward}"


def test_every_key_at_every_retained_version_is_what_spark_reads(oracle: KindsCheckpoint, tmp_path: Path) -> None:
    assert_every_version_equal(oracle, tmp_path)
    record(f"{pyspark.__version__}-scala-{oracle.state_format.id}", oracle.compared(pyspark.__version__))


def test_every_key_is_answered_by_a_node(oracle: KindsCheckpoint, tmp_path: Path) -> None:
    assert_answered_by_a_node(oracle, tmp_path / "data")
