"""What Spark 3 writes, which leaves no operator metadata, is answered as the state reader of Spark 4 has it, also when
Spark 4 goes on with it.

Each release runs in an environment and a JVM of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.reader import CheckpointReader
from tests.support.cluster.in_process import cluster
from tests.support.cluster.served_node import served_node
from tests.support.oracle.answered import WatchedStore, assert_every_call, wait_for_last
from tests.support.oracle.changed import assert_changed
from tests.support.oracle.custom_state import copied
from tests.support.oracle.finished import assert_results
from tests.support.oracle.json import as_text
from tests.support.oracle.kinds import BATCHES, KindsCheckpoint, read_kinds_checkpoint, read_operator, run_kinds
from tests.support.oracle.kinds_compared import assert_equal
from tests.support.oracle.record import record
from tests.support.oracle.releases import BEFORE_METADATA, NoSparkError, Written, kinds_of, written_by
from tests.support.oracle.scanned import assert_scanned, scanned
from tests.support.oracle.spark_3 import read_spark_3
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V1, StateFormat
from tests.support.spark.kinds import operators_by_name
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.description import describe
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_shared.base.errors import UnsupportedError

pytestmark = pytest.mark.timeout(3600)

NEWEST = "3.5"
BRIEF = (HDFS_V1, ROCKSDB_CHANGELOG_V1)
GROUPS = "flatMapGroupsWithState"
NAMED = {"applyInPandasWithState": GROUPS}
"""Names that an operator has without metadata, where they are others."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=pytest.mark.full if each == "3.2" else ()) for each in BEFORE_METADATA],
)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    line: str = request.param
    brief = BRIEF if line == NEWEST else (HDFS_V1,)
    formats = brief if "not full" in request.config.option.markexpr else ()
    try:
        folder = tmp_path_factory.mktemp(f"spark-{line}")
        return written_by(line, folder, "write_kinds", *(each.id for each in formats))
    except NoSparkError as error:
        pytest.skip(str(error))


@pytest.fixture
def in_use(written: Written) -> None:
    """Skip Spark 3.2, of which only keys and versions are compared."""
    if written.line < (3, 3):
        pytest.skip("a release that few run")


@pytest.fixture(scope="module")
def oracles(written: Written, spark: SparkSession) -> Mapping[StateFormat, KindsCheckpoint]:
    return read_spark_3(spark, written)


def test_every_key_of_every_kind_at_every_version_is_what_spark_4_reads(
    written: Written, oracles: Mapping[StateFormat, KindsCheckpoint], tmp_path: Path
) -> None:
    for state_format, oracle in oracles.items():
        operators = {*kinds_of(written.line), "stateStoreSave"}
        assert {store.operator for store in oracle.stores.values()} == operators
        for version in oracle.versions:
            with closing(CheckpointReader(oracle.path, tmp_path / f"{state_format.id}-{version}")) as reader:
                assert {store.name: (store.operator_name, store.kind) for store in reader.stores.values()} == {
                    store.name: (NAMED.get(store.operator, store.operator), store.kind)
                    for store in oracle.stores.values()
                }
                for store in oracle.stores.values():
                    assert_equal(reader, store, version)
        record(f"{written.release}-kinds-{state_format.id}", oracle.compared(written.release))


@pytest.mark.full
@pytest.mark.usefixtures("in_use")
@pytest.mark.parametrize("state_format", BRIEF, ids=lambda each: each.id)
def test_every_call_of_a_node_and_of_a_router_is_answered_as_spark_4_reads(
    oracles: Mapping[StateFormat, KindsCheckpoint], state_format: StateFormat, tmp_path: Path, redis: RedisServer
) -> None:
    if state_format not in oracles:
        pytest.skip("this release has no changelogs")
    oracle = oracles[state_format]
    with served_node(oracle.path, tmp_path / "data") as node:
        wait_for_last(node, oracle)
        rows = assert_every_call(node, oracle)
    with cluster(oracle.path, tmp_path, redis.url, nodes=2) as known:
        wait_for_last(known.router, oracle)
        assert assert_every_call(known.router, oracle) == rows


@pytest.mark.full
@pytest.mark.usefixtures("in_use")
def test_watches_see_the_version_that_a_query_of_spark_3_adds_when_it_is_started_again(
    written: Written,
    oracles: Mapping[StateFormat, KindsCheckpoint],
    spark: SparkSession,
    tmp_path: Path,
    redis: RedisServer,
) -> None:
    formats = [each for each in BRIEF if each in oracles]
    for each in formats:
        copied(oracles[each].path, tmp_path / each.id)
    oracle, checkpoint = oracles[formats[-1]], tmp_path / formats[-1].id / "checkpoint"
    with cluster(checkpoint, tmp_path, redis.url, nodes=1) as known, ExitStack() as stack:
        wait_for_last(known.router, oracle)
        services = (known.nodes["n1"], known.router)
        watched = [
            stack.enter_context(closing(WatchedStore(served, store, oracle.last)))
            for served in services
            for store in oracle.stores.values()
        ]
        again = written_by(
            f"{written.line[0]}.{written.line[1]}",
            tmp_path,
            "write_kinds",
            *(each.id for each in formats),
            f"--batches={BATCHES + 1}",
        )
        continued = read_spark_3(spark, again)[formats[-1]]
        assert continued.last == oracle.last + 1
        for served in services:
            wait_for_last(served, continued)
        changed = {each.store.name: each.assert_next(continued.stores[each.store.name]) for each in watched}
        assert sum(map(bool, changed.values())) > 3, changed
        for served in services:
            assert_every_call(served, continued)


@pytest.mark.full
@pytest.mark.usefixtures("in_use")
def test_a_node_that_follows_goes_on_when_spark_4_goes_on_with_the_query(
    written: Written, oracles: Mapping[StateFormat, KindsCheckpoint], spark: SparkSession, tmp_path: Path
) -> None:
    """Its first batch writes the metadata: names, tokens and versions stay."""
    oracle = oracles.get(ROCKSDB_CHANGELOG_V1) or oracles[HDFS_V1]
    checkpoint = copied(oracle.path, tmp_path)
    with served_node(checkpoint, tmp_path / "data") as served:
        wait_until(lambda: served.not_ready() == "", what="every store to be open")
        assert served.get("/v1/stores").body["not_served"] == []
        assert_changed(served, oracle)
        positions = {}
        for store in oracle.stores.values():
            assert_scanned(scanned(served, store.name, limit="7"), store, oracle.last)
            reply = served.look_up(store.kept[oracle.last][0].key, store=store.name)
            positions[store.name] = reply.body["position"]
        run = run_kinds(spark, tmp_path, oracle.state_format, operators=kinds_of(written.line), batches=BATCHES + 1)
        for name in oracle.stores:
            served.wait_for_version(oracle.last + 1, store=name)
        wait_until(lambda: "schemas" in served.events(), what="the metadata to be read")
        assert served.changes() == []
        continued = read_kinds_checkpoint(spark, run, operators_by_name(checkpoint))
        stores: Any = served.get("/v1/stores").body["stores"]
        assert {each["store"]: each["operator"] for each in stores} == {
            store.name: store.operator for store in continued.stores.values()
        }
        for store in continued.stores.values():
            kept = store.kept[continued.last]
            for each, answer in zip(
                kept, served.look_up_all([each.key for each in kept], store=store.name), strict=True
            ):
                assert as_text({member: answer[member] for member in each.said}) == as_text(each.said)
            before = oracle.stores[store.name].kept[oracle.last][0]
            reply = served.look_up(before.key, store=store.name, bounds=f"snapshot={positions[store.name]}")
            assert (reply.status, reply.body["version"]) == (200, oracle.last)
            assert as_text({member: reply.body[member] for member in before.said}) == as_text(before.said)


@pytest.mark.full
def test_every_result_that_spark_3_5_announces_is_what_its_query_put_out(written: Written, tmp_path: Path) -> None:
    if written.line < (3, 5):
        pytest.skip("announce needs PySpark 3.5")
    checkpoint, announced, rows = written.finished()
    assert_results(checkpoint, tmp_path / "data", announced, rows, unknown="regr_r2")


@pytest.mark.full
def test_state_in_the_formats_of_spark_2_is_what_spark_4_reads_and_a_name_in_the_alias_file_tells_operators_apart(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A timeout in format 1 is another matter (`test_oracle_of_kinds`)."""
    try:
        folder = written_by(NEWEST, tmp_path / "written", "write_state_format_1").folder
    except NoSparkError as error:
        pytest.skip(str(error))
    for name, operator in (("join", "symmetricHashJoin"), ("aggregation", "stateStoreSave"), (GROUPS, GROUPS)):
        if operator != "symmetricHashJoin":
            with pytest.raises(UnsupportedError, match=r"may by its columns be .* or ") as refusal:
                describe(open_checkpoint_files(folder / name))
            assert f'"{operator}"' in refusal.value.fix
        stores = list(read_operator(spark, folder / name, operator, 0, range(BATCHES)))
        for version in range(1, BATCHES + 1):
            with closing(CheckpointReader(folder / name, tmp_path / f"{name}-{version}", {0: operator})) as reader:
                for store in stores:
                    assert store.kept[BATCHES]
                    if name != GROUPS:
                        assert_equal(reader, store, version)
                assert {each.operator_name for each in reader.stores.values()} == {operator}
    aliases = tmp_path / "aliases.toml"
    aliases.write_text('[op0]\nname = "counts"\noperator = "stateStoreSave"\n')
    with served_node(folder / "aggregation", tmp_path / "data", aliases=aliases) as served:
        served.wait_for_version(BATCHES, store="counts")
        value: Any = served.look_up(["a"], store="counts").body["value"]
        assert (value["k"], value["count"] > 0) == ("a", True)
