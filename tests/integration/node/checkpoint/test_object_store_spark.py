"""Spark writes its checkpoint to a server of each kind of object store through Hadoop's connector; a node follows it by
URL and answers as Spark reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster.served_node import served_node
from tests.support.object_store import abfs, gcs_connector, s3a
from tests.support.object_store.bucket import StoreServer
from tests.support.object_store.faulty_proxy import FaultyProxy
from tests.support.object_store.hdfs_server import Door
from tests.support.spark.counting_query import WORDS
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.process import spark_job

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.object_store import ObjectStoreFiles

FIRST, BATCHES = 3, 6

Connector = tuple[str, Callable[[], Path | str], Callable[[Path, Any], dict[str, str]]]

CONNECTORS: dict[str, Connector] = {
    "s3": ("s3a", s3a.jars, s3a.session_conf),
    "abfss": ("abfs", abfs.jars, abfs.session_conf),  # without TLS, which the server lacks
    "gs": ("gs", gcs_connector.jars, gcs_connector.session_conf),
    "hdfs": ("hdfs", Path, lambda *_: {}),  # Spark has the client
}
"""By the scheme that nodes are given: Spark's scheme, the connector's jars, and the settings of a session."""


@pytest.mark.full
@pytest.mark.parametrize(
    ("store", "state_format"),
    [
        ("s3", HDFS_V1),
        ("minio", ROCKSDB_CHANGELOG_V2),
        ("azure", ROCKSDB_CHANGELOG_V2),
        ("gcs", HDFS_V1),
        ("hdfs", ROCKSDB_CHANGELOG_V2),
    ],
    indirect=["store"],
    ids=lambda each: each if isinstance(each, str) else each.id,
)
def test_a_node_follows_by_url_what_spark_writes_through_hadoop_s_connector(
    store: StoreServer | Door, store_proxy: FaultyProxy, tmp_path: Path, state_format: StateFormat
) -> None:
    scheme, fetched, session_conf = CONNECTORS[store.scheme]
    jars = fetched()
    if isinstance(jars, str):
        pytest.skip(jars)
    bucket, go, copy = store.new_bucket(), tmp_path / "go", tmp_path / "copy"
    url = (store.native if isinstance(store, Door) else store).url(bucket.name, "a/ckpt")
    location = f"{scheme}://{url.partition('://')[2]}"
    arguments = [location, "--folder", str(tmp_path / "spark"), "--go", str(go), "--read", str(copy)]
    arguments += ["--format", json.dumps(asdict(state_format.with_default_manager()))]
    arguments += ["--conf", json.dumps(session_conf(jars, store)), "--first", str(FIRST), "--batches", str(BATCHES)]
    if isinstance(store, Door):
        files: CheckpointFiles = store.files(bucket.name, "a/ckpt")
    else:
        files = ObjectStoreFiles(store.reader(bucket.name, "a/ckpt", store_proxy.endpoint))
    with spark_job("store_counting.py", arguments, tmp_path / "job") as job:
        job.wait_for_line("written")
        with served_node("store://b/ckpt", tmp_path / "data", files=files) as served:
            served.wait_for_version(FIRST)
            go.touch()
            job.wait_for_line("all written")
            bucket.copy_folder("a/ckpt", copy)
            job.wait_until(lambda: any(line.startswith("rows ") for line in job.lines()), what="Spark's own rows")
            served.wait_for_version(BATCHES)
            (rows,) = [json.loads(line.removeprefix("rows ")) for line in job.lines() if line.startswith("rows ")]
            assert len(rows) == len(WORDS) + BATCHES
            answers = served.look_up_all([[word] for _, word, *_ in rows])
            found = [[each["partition"], *each["key"].values(), *each["value"].values()] for each in answers]  # type: ignore[attr-defined]
            assert found == rows
            assert {each["version"] for each in answers} == {BATCHES}
