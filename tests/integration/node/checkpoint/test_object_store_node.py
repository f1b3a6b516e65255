"""A node that reads its checkpoint from a server of each kind of object store: what it answers, what it asks for, what
faults do to it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.cluster.served_node import Served, ServedNode, served_node
from tests.support.object_store.azurite import sas
from tests.support.object_store.bucket import Bucket, StoreServer
from tests.support.object_store.faulty_proxy import Asked, Fault, FaultyProxy, Refuse, Say, Stall
from tests.support.object_store.uploaded import TASKS, Uploaded
from tests.support.services.command_line import ask, serving
from tests.support.spark.counting_query import WORDS, assert_as_spark_reads, run_counting, watched
from tests.support.spark.formats import HDFS_V1, ROCKSDB_CHANGELOG_V2, StateFormat
from tests.support.spark.queries import QueryOptions, wait_until

from understudy_node.checkpoint.object_store import ObjectStoreFiles
from understudy_node.checkpoint.store_files import StoreLimits
from understudy_node.follow.end import Verdict
from understudy_node.follow.poll_loop import Poller
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import CheckpointError

QUICK = StoreLimits(renew_ms=0, max_tries=2, first_wait_ms=1, max_wait_ms=5)

FULL = [pytest.param(name, marks=pytest.mark.full) for name in ("azure", "gcs", "minio")]
each_store = pytest.mark.parametrize("store", ["s3", *FULL], indirect=True)
of_s3 = pytest.mark.parametrize("store", ["s3"], indirect=True)
"""For claims about what a node does with a reply, which is the same for all stores."""


@pytest.fixture
def bucket(store: StoreServer) -> Bucket:
    return store.new_bucket()


@pytest.fixture
def proxy(store_proxy: FaultyProxy) -> FaultyProxy:
    return store_proxy


@pytest.fixture
def files(store: StoreServer, bucket: Bucket, proxy: FaultyProxy) -> ObjectStoreFiles:
    return ObjectStoreFiles(store.reader(bucket.name, "ckpt", proxy.endpoint), limits=QUICK)


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


@of_s3
@pytest.mark.parametrize(
    "state_format",
    [pytest.param(HDFS_V1, id="hdfs-v1", marks=pytest.mark.full), pytest.param(ROCKSDB_CHANGELOG_V2, id="rocksdb-v2")],
)
def test_what_spark_wrote_is_read_as_spark_reads_it(  # noqa: PLR0917  # fixtures
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
    with served_node("store://b/ckpt", tmp_path / "data", files=files) as served:
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


@of_s3
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


@of_s3
def test_a_listing_that_is_behind_hides_no_commit(
    uploaded: Uploaded, files: ObjectStoreFiles, proxy: FaultyProxy
) -> None:
    """All these stores list what was written; one that does not must not make an old end look like the newest."""
    uploaded.add(1, 2)
    assert sorted(files.list("commits") or []) == ["0", "1"]
    old = dict(proxy.first_listings)
    uploaded.add(3, 4, 5)
    proxy.fault = lambda asked: Say(old[asked.key]) if asked.key in old else None
    poller = Poller(files, SystemClock())
    assert poller.end.version == 2
    poll = poller.poll()
    assert (poll.end.version, poll.verdict) == (5, Verdict.SAME)
    assert poll.end.confirmed_ms is not None


@of_s3
@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), (400, "ExpiredToken"), (503, "SlowDown"), (500, "InternalError")]
)
def test_a_missing_commit_that_the_store_refuses_to_tell_of_is_not_absent(
    uploaded: Uploaded, files: ObjectStoreFiles, proxy: FaultyProxy, status: int, code: str
) -> None:
    """Without the right to list, S3 and Google's store answer 403 for a name that does not exist."""
    uploaded.add(1, 2)
    poller = Poller(files, SystemClock())
    before = poller.poll().end
    proxy.fault = lambda asked: Refuse(status, code) if asked.key == "ckpt/commits/2" else None
    with pytest.raises(CheckpointError):
        poller.poll()
    assert poller.end == before


@of_s3
@pytest.mark.parametrize(
    "fault", [refusing(503, "SlowDown"), refusing(400, "ExpiredToken")], ids=["throttled", "token expired"]
)
def test_while_the_store_refuses_answers_go_on_with_unknown_lag_and_recover(
    uploaded: Uploaded, files: ObjectStoreFiles, proxy: FaultyProxy, tmp_path: Path, fault: Callable[[Asked], Fault]
) -> None:
    uploaded.add(1, 2, 3)
    with served_node("store://b/ckpt", tmp_path / "data", files=files, end_expiry_ms=1_500) as served:
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


@of_s3
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
    with served_node("store://b/ckpt", tmp_path / "data", files=files) as served:
        served.wait_for_version(5)
        assert answers(served) == [(5, 5)] * len(WORDS)
    assert len(purged) == TASKS


@of_s3
def test_a_node_killed_while_it_restores_leaves_nothing_that_is_half_read(  # noqa: PLR0917  # fixtures
    uploaded: Uploaded, bucket: Bucket, store: StoreServer, proxy: FaultyProxy, never: threading.Event, tmp_path: Path
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
    arguments = [store.url(bucket.name, "ckpt")]
    environment = store.environment(proxy.endpoint)
    with serving(arguments, tmp_path / "serve", variables=environment, ready="") as killed:
        wait_until(stalled.is_set, what="the restore")
        assert killed.stop(signal.SIGKILL) == -signal.SIGKILL
    proxy.fault = lambda _: None
    with serving(arguments, tmp_path / "serve", variables=environment) as again:
        for word in WORDS[:3]:
            done = again.ask("get", "op0", word, "--json")
            assert done.returncode == 0, done.stderr
            assert '"count": 3' in done.stdout or '"count":3' in done.stdout, done.stdout


@pytest.mark.parametrize("store", ["azure", "gcs"], indirect=True)
def test_a_node_follows_for_the_requests_that_it_costs_in_s3(
    uploaded: Uploaded, files: ObjectStoreFiles, proxy: FaultyProxy, tmp_path: Path
) -> None:
    uploaded.add(1, 2, 3)
    with served_node("store://b/ckpt", tmp_path / "data", files=files) as served:
        served.wait_for_version(3)
        proxy.forget()
        uploaded.add(4)
        served.wait_for_version(4)
        assert answers(served) == [(4, 4)] * len(WORDS)
    assert set(proxy.kinds()) == {"HEAD", "GET"}
    assert proxy.kinds(of=of_state)["GET"] == TASKS


SIGNATURE = {"AZURE_STORAGE_ACCOUNT_KEY": "", "AZURE_STORAGE_SAS_TOKEN": f"?{sas('rl')}"}


@pytest.mark.parametrize(
    ("store", "credentials"),
    [
        pytest.param("azure", SIGNATURE, id="azure, a signature"),
        pytest.param("azure", {}, id="azure, a key", marks=pytest.mark.full),
        pytest.param("gcs", {}, id="gcs, a token", marks=pytest.mark.full),
        pytest.param("s3", {"AWS_SESSION_TOKEN": "tests-session-88"}, id="s3, a key", marks=pytest.mark.full),
    ],
    indirect=["store"],
)
def test_no_secret_is_said_whatever_fails(  # noqa: PLR0917  # fixtures
    store: StoreServer,
    bucket: Bucket,
    uploaded: Uploaded,
    proxy: FaultyProxy,
    tmp_path: Path,
    credentials: dict[str, str],
) -> None:
    """A shared access signature is part of each request's URL, which the library's errors repeat."""
    uploaded.add(1, 2)
    variables = {name: value for name, value in (store.environment(proxy.endpoint) | credentials).items() if value}
    secrets = {store.secret, *(value for name, value in variables.items() if name.endswith(("_KEY", "_TOKEN")))}
    secrets |= {part.partition("=")[2] for each in list(secrets) for part in each.split("&") if "sig=" in part}
    url, said = store.url(bucket.name, "ckpt"), []
    with serving([url], tmp_path / "serve", variables=variables) as node:
        done = node.ask("get", "op0", WORDS[0], "--json")
        assert done.returncode == 0, done.stderr
        served = Served(int(node.url.rpartition(":")[2]))
        for status, code in ((404, "NotFound"), (500, "InternalError"), (403, "AuthenticationFailed")):
            proxy.fault = lambda _, status=status, code=code: Refuse(status, code)  # type: ignore[misc]
            proxy.forget()
            wait_until(lambda: proxy.kinds().total() > 8, what="refused requests")
            doctor = ask("doctor", url, variables=variables)
            said += [doctor.stdout, doctor.stderr]
        node.wait_for("refuses the credentials")
        shown = ("/metrics", *(f"/admin/v1/{name}" for name in ("health", "events", "overview", "nodes", "lag")))
        said += [node.output, node.errors, done.stdout, *map(served.text, shown)]
    assert bucket.name in "".join(said)
    assert [secret for secret in secrets if secret and secret in "".join(said)] == []
