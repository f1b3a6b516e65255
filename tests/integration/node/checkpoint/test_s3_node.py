"""A node that reads its checkpoint from a real S3 server: what it answers, what it asks for, what faults do to it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.object_store.bucket import Bucket
from tests.support.object_store.faulty_proxy import Asked, Fault, FaultyProxy, Refuse, Say, Stall
from tests.support.object_store.s3_server import S3Server, access_to
from tests.support.object_store.uploaded import TASKS, Uploaded
from tests.support.services.command_line import serving
from tests.support.spark.counting_query import WORDS, assert_as_spark_reads, run_counting, watched
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import QueryOptions, wait_until

from understudy_node.checkpoint.object_store import ObjectStoreFiles
from understudy_node.checkpoint.repeating import RepeatLimits
from understudy_node.checkpoint.s3 import S3
from understudy_node.checkpoint.store_calls import StoreLimits
from understudy_node.follow.end import Verdict
from understudy_node.follow.poller import Poller
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import CheckpointError

QUICK = StoreLimits(renew_ms=0, repeat=RepeatLimits(max_tries=2, first_wait_ms=1, max_wait_ms=5))


@pytest.fixture
def bucket(s3: S3Server) -> Bucket:
    return s3.new_bucket()


@pytest.fixture
def files(bucket: Bucket, proxy: FaultyProxy) -> ObjectStoreFiles:
    return ObjectStoreFiles(S3(f"s3://{bucket.name}/ckpt", lambda: access_to(proxy.endpoint)), limits=QUICK)


@pytest.fixture
def never() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def uploaded(bucket: Bucket, tmp_path: Path) -> Uploaded:
    return Uploaded(bucket, tmp_path / "checkpoint")


def of_state(asked: Asked) -> bool:
    return asked.key.startswith("ckpt/state/")


def is_listing(asked: Asked) -> bool:
    return asked.kind == "LIST"


def refusing(status: int, code: str) -> Callable[[Asked], Fault]:
    return lambda _: Refuse(status, code)


def answers(served: ServedNode) -> list[tuple[object, object]]:
    """Version and count of every word."""
    results = served.look_up_all([[word] for word in WORDS])
    assert all(result["status"] == 200 for result in results), results
    return [(result["version"], result["value"]["count"]) for result in results]  # type: ignore[index]


@pytest.mark.parametrize(
    "state_format",
    [pytest.param(HDFS_V1, id="hdfs-v1", marks=pytest.mark.full), pytest.param(ROCKSDB_CHANGELOG_V2, id="rocksdb-v2")],
)
def test_what_spark_wrote_is_read_from_s3_as_spark_reads_it(  # noqa: PLR0917  # fixtures
    spark: SparkSession,
    bucket: Bucket,
    files: ObjectStoreFiles,
    proxy: FaultyProxy,
    tmp_path: Path,
    state_format: StateFormat,
) -> None:
    """The newest version arrives while the node follows: then each task costs what the documents say."""
    batches, checkpoint = 6, tmp_path / "checkpoint"
    options = QueryOptions(partitions=TASKS, min_deltas_for_snapshot=2, maintenance_interval_ms=100)
    run_counting(spark, checkpoint, state_format, batches, options=options)
    late = [
        path
        for path in checkpoint.rglob("*")
        if path.is_file() and (path.name == f"{batches - 1}" or path.name.startswith((f"{batches}.", f"{batches}_")))
    ]
    contents = {path: path.read_bytes() for path in late}
    for path in late:
        path.unlink()
    bucket.put_folder(checkpoint, "ckpt")
    with served_node(f"s3://{bucket.name}/ckpt", tmp_path / "data", files=files) as served:
        served.wait_for_version(batches - 1)
        proxy.forget()
        for path in sorted(late, key=lambda path: path.parent.name == "commits"):
            path.write_bytes(contents[path])
            bucket.put(f"ckpt/{path.relative_to(checkpoint)}", contents[path])
        assert_as_spark_reads(served, spark, checkpoint)
        if state_format is HDFS_V1:  # the delta before is looked at again: the first one after a snapshot has none
            assert proxy.kinds(of=of_state) in ({"GET": TASKS}, {"GET": TASKS, "HEAD": TASKS})
        else:
            assert proxy.kinds(of=of_state) == {"GET": TASKS}
        assert proxy.kinds(of=is_listing) == {}


def test_a_poll_is_four_requests_and_a_commit_six_more_whatever_the_tasks(
    uploaded: Uploaded, files: ObjectStoreFiles, proxy: FaultyProxy
) -> None:
    uploaded.add(1, 2, 3)
    poller = Poller(files, SystemClock())
    poller.poll()
    proxy.forget()
    assert poller.poll().end.version == 3
    # A slow machine's probe may look at the last commit once more.
    assert proxy.kinds()["HEAD"] in (4, 5)
    assert set(proxy.kinds()) == {"HEAD"}
    uploaded.add(4)
    proxy.forget()
    assert poller.poll().end.version == 4
    assert proxy.kinds()["HEAD"] in (8, 9)
    assert set(proxy.kinds()) == {"HEAD"}


def test_a_listing_that_is_behind_hides_no_commit(
    uploaded: Uploaded, files: ObjectStoreFiles, proxy: FaultyProxy
) -> None:
    """S3 lists what was written; a store that does not must not make an old end look like the newest."""
    uploaded.add(1, 2, 3, 4, 5)
    old = (
        b'<?xml version="1.0"?><ListBucketResult><Name>b</Name><Prefix>ckpt/commits/</Prefix><KeyCount>1</KeyCount>'
        b"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated><Contents><Key>ckpt/commits/1</Key>"
        b"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;x&quot;</ETag><Size>2</Size></Contents>"
        b"</ListBucketResult>"
    )
    proxy.fault = lambda asked: Say(old) if asked.kind == "LIST" and "commits" in asked.key else None
    poller = Poller(files, SystemClock())
    assert poller.end.version == 2
    poll = poller.poll()
    assert (poll.end.version, poll.verdict) == (5, Verdict.SAME)
    assert poll.end.confirmed_ms is not None


@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), (400, "ExpiredToken"), (503, "SlowDown"), (500, "InternalError")]
)
def test_a_missing_commit_that_the_store_refuses_to_tell_of_is_not_absent(
    uploaded: Uploaded, files: ObjectStoreFiles, proxy: FaultyProxy, status: int, code: str
) -> None:
    """Without s3:ListBucket, S3 answers 403 for a name that does not exist."""
    uploaded.add(1, 2)
    poller = Poller(files, SystemClock())
    before = poller.poll().end
    proxy.fault = lambda asked: Refuse(status, code) if asked.key == "ckpt/commits/2" else None
    with pytest.raises(CheckpointError):
        poller.poll()
    assert poller.end == before


@pytest.mark.parametrize(
    "fault", [refusing(503, "SlowDown"), refusing(400, "ExpiredToken")], ids=["throttled", "token expired"]
)
def test_while_the_store_refuses_answers_go_on_with_unknown_lag_and_recover(
    uploaded: Uploaded, files: ObjectStoreFiles, proxy: FaultyProxy, tmp_path: Path, fault: Callable[[Asked], Fault]
) -> None:
    uploaded.add(1, 2, 3)
    with served_node("s3://b/ckpt", tmp_path / "data", files=files, end_expiry_ms=1_500) as served:
        served.wait_for_version(3)
        with watched(served):
            proxy.fault = fault
            wait_until(
                lambda: all(part["offset_lag"] is None for part in served.partitions()), what="lag that is unknown"
            )
            assert answers(served) == [(3, 3)] * len(WORDS)
            assert served.look_up(["word-1"], bounds="max_lag=0").status == 503
            uploaded.add(4, 5)
            proxy.fault = lambda _: None
            served.wait_for_version(5)
        assert answers(served) == [(5, 5)] * len(WORDS)


def test_a_snapshot_purged_while_it_is_restored_is_not_half_read(
    uploaded: Uploaded, bucket: Bucket, files: ObjectStoreFiles, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """The clean-up removes the snapshot that was chosen when its download begins: another one is chosen."""
    for version in range(1, 6):
        uploaded.add(version, snapshot=version in (2, 4))
    purged: list[str] = []

    def purge(asked: Asked) -> None:
        if asked.kind == "GET" and asked.key.endswith("/4.snapshot") and asked.key not in purged:
            purged.append(asked.key)
            bucket.delete(asked.key)

    proxy.fault = purge
    with served_node("s3://b/ckpt", tmp_path / "data", files=files) as served:
        served.wait_for_version(5)
        assert answers(served) == [(5, 5)] * len(WORDS)
    assert len(purged) == TASKS


def test_a_node_killed_while_it_restores_from_s3_leaves_nothing_that_is_half_read(  # noqa: PLR0917  # fixtures
    uploaded: Uploaded, bucket: Bucket, s3: S3Server, proxy: FaultyProxy, never: threading.Event, tmp_path: Path
) -> None:
    uploaded.add(1)
    uploaded.add(2, snapshot=True)
    uploaded.add(3)
    stalled = threading.Event()

    def stall(asked: Asked) -> Fault | None:
        if asked.kind == "GET" and asked.key.endswith("/2.snapshot"):
            stalled.set()
            return Stall(never, after=20)
        return None

    proxy.fault = stall
    arguments = [f"s3a://{bucket.name}/ckpt"]
    environment = s3.environment(proxy.endpoint)
    with serving(arguments, tmp_path / "serve", variables=environment, ready="") as killed:
        wait_until(stalled.is_set, what="the restore")
        assert killed.stop(signal.SIGKILL) == -signal.SIGKILL
    proxy.fault = lambda _: None
    with serving(arguments, tmp_path / "serve", variables=environment) as again:
        for word in WORDS[:3]:
            done = again.ask("get", "op0", word, "--json")
            assert done.returncode == 0, done.stderr
            assert '"count": 3' in done.stdout or '"count":3' in done.stdout, done.stdout
