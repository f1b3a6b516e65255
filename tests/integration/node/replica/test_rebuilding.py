"""The files that Spark needs for a restart: each kind that is gone is named, and no file is missed in vain."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from tests.support.checkpoint import bytes as state
from tests.support.checkpoint.handmade import HandmadeCheckpoint, schema_json
from tests.support.cluster.served_node import served_node
from tests.support.matrix import in_full
from tests.support.spark.counting_query import WORDS, run_counting
from tests.support.spark.formats import (
    HDFS_V1,
    ROCKSDB_CHANGELOG_V1,
    ROCKSDB_CHANGELOG_V2,
    ROCKSDB_V1,
    ROCKSDB_V2,
    StateFormat,
)

from understudy.commands.group import cli
from understudy.terminal.exits import ExitCode
from understudy_node.doctor import examine

FORMATS = {
    "hdfs-v1": HDFS_V1,
    "rocksdb-v1": ROCKSDB_V1,
    "rocksdb-changelog-v1": ROCKSDB_CHANGELOG_V1,
    "rocksdb-v2": ROCKSDB_V2,
    "rocksdb-changelog-v2": ROCKSDB_CHANGELOG_V2,
}


def wrong(checkpoint: Path) -> list[str]:
    return [each["what"] for each in examine(str(checkpoint))["findings"] if each["state"] == "wrong"]


@pytest.mark.parametrize(
    "state_format",
    in_full(FORMATS.values(), if_in=("rocksdb-v1", "rocksdb-changelog-v1", "hdfs-v1"), names=FORMATS),
)
def test_spark_s_files_are_all_there_and_each_that_is_gone_is_named(
    spark: SparkSession, tmp_path: Path, state_format: StateFormat
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run_counting(spark, checkpoint, state_format, 3)
    assert wrong(checkpoint) == []
    newest = [path for path in (checkpoint / "state/0/1").glob("3*") if path.is_file()]
    assert newest
    tables = list((checkpoint / "state/0/0/SSTs").glob("*"))
    for path in (*newest, *tables):
        path.unlink()
    found = wrong(checkpoint)
    assert any("version 3 of 0_1 has neither changelog nor snapshot" in what for what in found), found
    assert any("/state/0/0" in what for what in found) is bool(tables)


def test_a_node_that_still_has_what_the_checkpoint_lost_says_that_spark_cannot_restart(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2, 3)
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.wait_for_version(3)
        url = f"http://127.0.0.1:{served.port}"
        assert CliRunner().invoke(cli, ["doctor", url]).exit_code == ExitCode.OK
        (checkpoint.path / checkpoint.changelog_path(3, 0)).unlink()
        assert served.look_up([WORDS[0]]).status == 200, "the node has it in memory"
        done = CliRunner().invoke(cli, ["doctor", url, "--json"])
        assert done.exit_code == ExitCode.REFUSED, done.output
        (finding,) = (each for each in orjson.loads(done.stdout)["findings"] if each["state"] == "wrong")
        said = "Spark cannot restart from these files: version 3 of 0_0 has neither changelog nor snapshot"
        assert finding["what"].startswith(said)


def test_a_node_whose_alias_file_names_an_operator_says_whether_spark_could_restart(tmp_path: Path) -> None:
    conf = {f"spark.sql.streaming.{each}.stateFormatVersion": "2" for each in ("aggregation", "flatMapGroupsWithState")}
    made = HandmadeCheckpoint(tmp_path / "counts", conf=conf, key_columns=(("count", "string"),))
    made.create().write("state/0/0/_metadata/schema", either_schema())
    (made.path / "state/0/_metadata/metadata").unlink()
    made.add(1)
    aliases = tmp_path / "aliases.toml"
    aliases.write_text('[op0]\noperator = "stateStoreSave"\n')
    with served_node(made.path, tmp_path / "data", aliases=aliases) as served:
        reply = served.get("/admin/v1/checkpoint")
        assert (reply.status, reply.body["findings"]) == (200, [])


def either_schema() -> bytes:
    """Columns that an aggregation and a deduplication may have."""
    key, value = schema_json(("count", "string")), schema_json(("count", "string"), ("total", "long"))
    return state.utf("v2") + state.chunked(key) + state.chunked(value)
