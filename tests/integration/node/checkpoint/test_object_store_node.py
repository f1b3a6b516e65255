"""A node that reads its checkpoint from Azure Storage or Google Cloud Storage, as Hadoop leaves it there."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.cluster.served_node import Served, served_node
from tests.support.object_store.azurite import ACCOUNT, KEY, AzureServer, sas
from tests.support.object_store.bucket import Bucket, StoreServer
from tests.support.object_store.faulty_proxy import Asked, FaultyProxy, Refuse, faulty_proxy
from tests.support.object_store.uploaded import TASKS, Uploaded
from tests.support.services.command_line import serving
from tests.support.spark.counting_query import WORDS, assert_as_spark_reads, run_counting
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import QueryOptions, wait_until

from understudy_node.checkpoint.object_store import ObjectStoreFiles

not_s3 = pytest.mark.parametrize("store", ["azure", "gcs"], indirect=True)
"""The other stores: tests of S3 are in `test_s3_node.py`."""


@pytest.fixture
def bucket(store: StoreServer) -> Bucket:
    return store.new_bucket()


@pytest.fixture
def files(store: StoreServer, bucket: Bucket, store_proxy: FaultyProxy) -> ObjectStoreFiles:
    return ObjectStoreFiles(store.reader(bucket.name, "ckpt", store_proxy.endpoint))


def of_state(asked: Asked) -> bool:
    return asked.key.startswith("ckpt/state/")


@not_s3
def test_a_node_follows_a_checkpoint_for_the_requests_that_it_costs_in_s3(
    bucket: Bucket, files: ObjectStoreFiles, store_proxy: FaultyProxy, tmp_path: Path
) -> None:
    uploaded = Uploaded(bucket, tmp_path / "checkpoint")
    uploaded.add(1, 2, 3)
    with served_node("store://b/ckpt", tmp_path / "data", files=files) as served:
        served.wait_for_version(3)
        store_proxy.forget()
        uploaded.add(4)
        served.wait_for_version(4)
        results = served.look_up_all([[word] for word in WORDS])
    assert [(each["version"], each["value"]["count"]) for each in results] == [(4, 4)] * len(WORDS)  # type: ignore[index]
    assert set(store_proxy.kinds()) == {"HEAD", "GET"}
    assert store_proxy.kinds(of=of_state)["GET"] == TASKS


@pytest.mark.full
@not_s3
@pytest.mark.parametrize("state_format", [HDFS_V1, ROCKSDB_CHANGELOG_V2], ids=lambda each: each.id)
def test_every_key_that_spark_wrote_is_answered_as_spark_reads_it(  # fixtures
    spark: SparkSession, bucket: Bucket, files: ObjectStoreFiles, tmp_path: Path, state_format: StateFormat
) -> None:
    batches, checkpoint = 4, tmp_path / "checkpoint"
    options = QueryOptions(partitions=TASKS, min_deltas_for_snapshot=2, maintenance_interval_ms=100)
    run_counting(spark, checkpoint, state_format, batches, options=options)
    bucket.put_folder(checkpoint, "ckpt")
    with served_node("store://b/ckpt", tmp_path / "data", files=files) as served:
        served.wait_for_version(batches)
        assert_as_spark_reads(served, spark, checkpoint)


@pytest.mark.parametrize("credentials", ["a signature", pytest.param("a key", marks=pytest.mark.full)])
def test_serve_reads_azure_by_url_and_says_no_secret_whatever_fails(
    azure: AzureServer, tmp_path: Path, credentials: str
) -> None:
    """A shared access signature is part of each request's URL, which the library's errors repeat."""
    bucket = azure.new_bucket()
    Uploaded(bucket, tmp_path / "checkpoint").add(1, 2)
    signature = sas("rl")
    secrets = [KEY, *(part.partition("=")[2] for part in signature.split("&") if part.startswith("sig="))]
    with faulty_proxy(azure.port, depth=azure.depth) as proxy:
        variables = azure.environment(proxy.endpoint)
        if credentials == "a signature":
            del variables["AZURE_STORAGE_ACCOUNT_KEY"]
            variables["AZURE_STORAGE_SAS_TOKEN"] = f"?{signature}"
        with serving([azure.url(bucket.name, "ckpt")], tmp_path / "serve", variables=variables) as node:
            done = node.ask("get", "op0", WORDS[0], "--json")
            assert done.returncode == 0, done.stderr
            for status, code in ((403, "AuthenticationFailed"), (404, "BlobNotFound"), (500, "InternalError")):
                proxy.fault = lambda _, status=status, code=code: Refuse(status, code)  # type: ignore[misc]
                proxy.forget()
                wait_until(lambda: proxy.kinds().total() > 8, what="refused requests")
            node.wait_for("refuses the credentials")
            served = Served(int(node.url.rpartition(":")[2]))
            said = node.output + node.errors + done.stdout + served.text("/metrics") + served.text("/admin/v1/health")
    assert f"{bucket.name}@{ACCOUNT}" in said
    assert not any(secret in said for secret in secrets)
