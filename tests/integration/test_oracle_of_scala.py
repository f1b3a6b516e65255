"""What `transformWithState` in Scala keeps is answered as Spark's own state reader has it.

A job in Scala writes the checkpoints during the run. Scala names columns otherwise than Python: a value without columns
is `value`, a tuple has `_1` and `_2`, and numbers that cannot be null say so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.support.cluster.served_node import served_node
from tests.support.oracle.custom_compared import assert_variable_equal, entries_of
from tests.support.oracle.custom_state import BATCHES, custom_options, in_order, read_custom_checkpoint
from tests.support.oracle.json import as_text
from tests.support.oracle.kinds import PARTITIONS, KindsCheckpoint
from tests.support.oracle.record import record
from tests.support.spark.formats import (
    ROCKSDB_CHANGELOG_V1,
    ROCKSDB_CHANGELOG_V2,
    ROCKSDB_V1,
    ROCKSDB_V2,
    StateFormat,
)
from tests.support.spark.queries import wait_until
from tests.support.spark.scala_job import VARIABLES, write_in_scala

from understudy_node.reader import CheckpointReader

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

LAYOUTS = (ROCKSDB_V1, ROCKSDB_CHANGELOG_V1, ROCKSDB_V2, ROCKSDB_CHANGELOG_V2)
FORMATS = (*LAYOUTS, *(replace(each, encoding="avro") for each in LAYOUTS))
"""The HDFS-backed provider is not among them: Spark refuses `transformWithState` there."""


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
    for version in oracle.versions:
        with closing(CheckpointReader(oracle.path, tmp_path / str(version))) as reader:
            assert {name: store.kind for name, store in reader.stores.items()} == {
                name: store.kind for name, store in oracle.stores.items()
            }
            for store in oracle.stores.values():
                assert_variable_equal(reader, store, version)
    record(f"{pyspark.__version__}-scala-{oracle.state_format.id}", oracle.compared(pyspark.__version__))


def test_every_key_is_answered_by_a_node(oracle: KindsCheckpoint, tmp_path: Path) -> None:
    with served_node(oracle.path, tmp_path / "data") as served:
        wait_until(lambda: served.not_ready() == "", what="every store to be open")
        assert served.get("/v1/stores").body["not_served"] == []
        for store in oracle.stores.values():
            kept = store.kept[oracle.last]
            asked = [(each.partition, each.key, in_order(each.said)) for each in kept]
            asked += [(each.partition, key, said) for each in kept for key, said in entries_of(each)]
            answers = served.look_up_all([key for _, key, _ in asked], store=store.name)
            for (partition, key, said), answer in zip(asked, answers, strict=True):
                found = in_order({member: answer[member] for member in said})
                assert as_text(found) == as_text(said), f"{store.name} {json.dumps(key)}"
                assert (answer["status"], answer["partition"], answer["version"]) == (200, partition, oracle.last)
