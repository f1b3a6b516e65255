"""Spark writes its checkpoint to a real S3 server through S3A; a node follows it by URL and answers as Spark reads."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.support.cluster.served_node import served_node
from tests.support.object_store import s3a
from tests.support.object_store.faulty_proxy import FaultyProxy
from tests.support.object_store.s3_server import S3Server, access_to
from tests.support.spark.counting_query import WORDS
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.process import spark_job

from understudy_node.checkpoint.object_store import ObjectStoreFiles
from understudy_node.checkpoint.s3 import S3

FIRST, BATCHES = 3, 6


@pytest.mark.full
@pytest.mark.parametrize("state_format", [HDFS_V1, ROCKSDB_CHANGELOG_V2], ids=lambda each: each.id)
def test_a_node_follows_by_url_what_spark_writes_through_s3a(
    s3: S3Server, proxy: FaultyProxy, tmp_path: Path, state_format: StateFormat
) -> None:
    jars = s3a.jars()
    if isinstance(jars, str):
        pytest.skip(jars)
    bucket, go = s3.new_bucket(), tmp_path / "go"
    arguments = [f"s3a://{bucket.name}/a/ckpt", "--folder", str(tmp_path / "spark"), "--go", str(go)]
    arguments += ["--format", json.dumps(asdict(state_format.with_default_manager()))]
    arguments += ["--conf", json.dumps(s3a.session_conf(jars, s3)), "--first", str(FIRST), "--batches", str(BATCHES)]
    files = ObjectStoreFiles(S3(f"s3a://{bucket.name}/a/ckpt", lambda: access_to(proxy.endpoint)))
    with spark_job("s3a_counting.py", arguments, tmp_path / "job") as job:
        job.wait_for_line("written")
        with served_node("s3a://b/ckpt", tmp_path / "data", files=files) as served:
            served.wait_for_version(FIRST)
            go.touch()
            job.wait_until(lambda: any(line.startswith("rows ") for line in job.lines()), what="Spark's own rows")
            served.wait_for_version(BATCHES)
            (rows,) = [json.loads(line.removeprefix("rows ")) for line in job.lines() if line.startswith("rows ")]
            assert len(rows) == len(WORDS) + BATCHES
            answers = served.look_up_all([[word] for _, word, *_ in rows])
            found = [[each["partition"], *each["key"].values(), *each["value"].values()] for each in answers]  # type: ignore[attr-defined]
            assert found == rows
            assert {each["version"] for each in answers} == {BATCHES}
