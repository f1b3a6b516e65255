"""Files in a server of each kind of object store, through a proxy that fails on demand; and in HDFS.

The reader gives all of a file, or an error that says what to do.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.object_store.bucket import Bucket, StoreServer
from tests.support.object_store.faulty_proxy import Asked, Cut, FaultyProxy, Refuse, Stall, faulty_proxy
from tests.support.object_store.hdfs_server import Door
from tests.support.object_store.s3_server import S3Server, access_to

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.object_store import ObjectStoreFiles
from understudy_node.checkpoint.s3 import S3
from understudy_node.checkpoint.store_files import RepeatBudget, StoreLimits
from understudy_shared.base.errors import CheckpointError, VanishedError

QUICK = StoreLimits(renew_ms=0, max_tries=3, first_wait_ms=1, max_wait_ms=5)
LARGE = bytes(range(256)) * 4096
"""1 MiB: more than a socket holds."""


PREFIX = "a b=c/ü 100%/ckpt"

Reader = Callable[..., Any]

everywhere = pytest.mark.parametrize(
    "store",
    ["s3", "azure", "gcs", "hdfs", pytest.param("minio", marks=pytest.mark.full)],
    indirect=True,
)
"""For the contract of all classes that read a checkpoint's files."""

of_s3 = pytest.mark.parametrize("store", ["s3"], indirect=True)
"""For claims about the library's client, which is the same for all stores."""


@pytest.fixture
def bucket(store: StoreServer | Door) -> Bucket:
    return store.new_bucket()


@pytest.fixture
def proxy(store_proxy: FaultyProxy) -> FaultyProxy:
    return store_proxy


@pytest.fixture
def reader(store: StoreServer | Door, bucket: Bucket, proxy: FaultyProxy) -> Reader:
    """Makes readers of the bucket, those of object stores through the proxy."""

    def make(limits: StoreLimits = QUICK, budget: RepeatBudget | None = None) -> CheckpointFiles:
        if isinstance(store, Door):
            return store.files(bucket.name, PREFIX, limits=limits)
        return ObjectStoreFiles(store.reader(bucket.name, PREFIX, proxy.endpoint), limits=limits, budget=budget)

    return make


@pytest.fixture
def files(reader: Reader) -> CheckpointFiles:
    made: CheckpointFiles = reader()
    return made


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """What a stalled reply waits for: the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def put(bucket: Bucket, path: str, data: bytes) -> None:
    bucket.put(f"{PREFIX}/{path}", data)


def once(
    fault: Callable[[], Cut | Refuse | Stall], *, times: int = 1
) -> Callable[[Asked], Cut | Refuse | Stall | None]:
    left = [fault() for _ in range(times)]
    return lambda _: left.pop() if left else None


def test_a_file_is_read_with_its_stat_in_one_request(
    files: CheckpointFiles, bucket: Bucket, proxy: FaultyProxy
) -> None:
    put(bucket, "commits/3", b"v1\n{}")
    (content,) = files.read_all(["commits/3"])
    assert content.data == b"v1\n{}"
    assert proxy.kinds() == {"GET": 1}
    assert files.stat("commits/3") == content.stat
    assert content.stat.inode != 0
    put(bucket, "commits/3", b"v1\n{x}")
    assert files.stat("commits/3") != content.stat


@everywhere
def test_absence_a_listing_and_an_empty_file_are_as_on_disk(
    files: CheckpointFiles, bucket: Bucket, tmp_path: Path
) -> None:
    assert files.list("") is None
    put(bucket, "metadata", b"{}")
    put(bucket, "state/0/0/1.delta", b"")
    put(bucket, "state/0/1/2.delta", b"x")
    assert sorted(files.list("") or []) == ["metadata", "state"]
    assert sorted(files.list("state/0") or []) == ["0", "1"]
    assert files.list("state/0/0") == ["1.delta"]
    assert files.list("metadata") is None
    assert files.read("state/0/0/1.delta") == b""
    assert files.stats(["commits/0", "metadata", "state"])[::2] == [None, None]
    assert [files.stat("metadata/4"), files.list("metadata/4")] == [None, None]
    with pytest.raises(VanishedError, match="commits/0"):
        files.read_all(["metadata", "commits/0"])
    with pytest.raises(VanishedError, match=r"9\.sst"):
        files.fetch("state/9.sst", tmp_path / "9.sst")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointError, match="at most 1 are read"):
        files.read("metadata", max_bytes=1)
    with pytest.raises(CheckpointError, match="must be relative"):
        files.stat("../secret")


@everywhere
def test_a_directory_that_an_empty_object_marks_is_listed_once_and_is_no_file(
    files: CheckpointFiles, bucket: Bucket, tmp_path: Path
) -> None:
    """As Hadoop's file systems write them: with a slash in S3 and GCS, without one in Azure."""
    for marker in ("", "/state", "/state/0", "/state/0/0"):
        bucket.mark_folder(f"{PREFIX}{marker}")
    put(bucket, "state/0/0/1.delta", b"x")
    assert files.list("") == ["state"]
    assert files.list("state") == ["0"]
    assert files.list("state/0") == ["0"]
    assert files.list("state/0/0") == ["1.delta"]
    assert files.stats(["state", "state/0", "state/0/0"]) == [None, None, None]
    with pytest.raises(VanishedError, match="state/0"):
        files.read("state/0")
    with pytest.raises(VanishedError, match="state/0"):
        files.fetch("state/0", tmp_path / "x")


@everywhere
def test_a_name_is_asked_for_as_it_was_written(files: CheckpointFiles, bucket: Bucket) -> None:
    names = ["a b", "50%25", "100%", "ü-名", "a+b&c=d", "..x..", "x~'()!"]
    for name in names:
        put(bucket, f"state/{name}/{name}", b"x")
    assert sorted(files.list("state") or []) == sorted(names)
    for name in names:
        assert files.list(f"state/{name}") == [name]
        assert files.read(f"state/{name}/{name}") == b"x"
        assert files.stat(f"state/{name}/{name}") is not None


@pytest.mark.parametrize("store", ["s3", "azure", "gcs"], indirect=True)  # HDFS renames in place, and keeps the time
def test_a_file_was_written_within_the_time_of_its_stat_also_if_it_is_a_copy(
    files: CheckpointFiles, bucket: Bucket
) -> None:
    """Lag counts from it: a time that is later than the write would hide some. A rename is a copy in these stores."""
    for name in ("commits/.3.tmp", "commits/3"):
        before_ns = time.time_ns()
        if name == "commits/3":
            bucket.copy(f"{PREFIX}/commits/.3.tmp", f"{PREFIX}/{name}")
        else:
            put(bucket, name, b"v1\n{}")
        found = files.stat(name)
        assert found is not None
        assert found.mtime_ns <= time.time_ns()
        assert found.mtime_ns + found.coarse_ns >= before_ns


def test_throttling_is_waited_out(
    store: StoreServer, files: CheckpointFiles, bucket: Bucket, proxy: FaultyProxy
) -> None:
    put(bucket, "metadata", b"{}")
    proxy.fault = once(lambda: Refuse(503, store.busy), times=2)
    assert files.read("metadata") == b"{}"
    assert proxy.kinds() == {"GET": 3}


def test_a_store_that_goes_on_throttling_is_named_after_a_bounded_number_of_tries(
    store: StoreServer, files: CheckpointFiles, proxy: FaultyProxy
) -> None:
    proxy.fault = lambda _: Refuse(503, store.busy)
    with pytest.raises(CheckpointError, match=rf"asks for fewer requests \(503 {store.busy}\)") as error:
        files.read("metadata")
    assert "raise the store's limits" in error.value.fix
    assert proxy.kinds() == {"GET": QUICK.max_tries}


def test_all_calls_share_one_budget_of_repeats(store: StoreServer, reader: Reader, proxy: FaultyProxy) -> None:
    files = reader(budget=RepeatBudget(share=0.0, per_s=0.0, most=3))
    proxy.fault = lambda _: Refuse(503, store.busy)
    for _ in range(10):
        with pytest.raises(CheckpointError, match=store.busy):
            files.list("commits")
    assert proxy.kinds() == {"LIST": 10 + 3}


def test_a_download_that_was_cut_goes_on_where_it_was(
    files: CheckpointFiles, bucket: Bucket, proxy: FaultyProxy, tmp_path: Path
) -> None:
    put(bucket, "8.sst", LARGE)
    proxy.fault = once(lambda: Cut(300_000), times=2)
    assert files.fetch("8.sst", tmp_path / "8.local") == "download"
    assert (tmp_path / "8.local").read_bytes() == LARGE
    assert proxy.kinds() == {"GET": 3}
    proxy.fault = once(lambda: Cut(300_000), times=2)
    assert files.read("8.sst") == LARGE


@of_s3
def test_a_reply_that_is_cut_at_any_byte_is_asked_for_again(reader: Reader, bucket: Bucket, proxy: FaultyProxy) -> None:
    files = reader(budget=RepeatBudget(most=1_000))
    names = [f"{number}.delta" for number in range(20)]
    for name in names:
        put(bucket, f"state/0/0/{name}", name.encode())
    for after in (0, 1, 2, 5, 10, 100, *range(200, 2_000, 150)):  # a listing has 2,000 bytes and more
        proxy.fault = once(lambda after=after: Cut(after))  # type: ignore[misc]
        assert sorted(files.list("state/0/0") or []) == sorted(names)
        proxy.fault = once(lambda after=after: Cut(after % 6))  # type: ignore[misc]
        assert files.read("state/0/0/7.delta") == b"7.delta"


def test_a_file_that_was_replaced_while_its_download_was_cut_is_not_made_of_two(  # fixtures
    store: StoreServer, files: CheckpointFiles, bucket: Bucket, proxy: FaultyProxy, tmp_path: Path
) -> None:
    put(bucket, "8.sst", LARGE)
    asked: list[Asked] = []

    def replaced(each: Asked) -> Cut | None:
        asked.append(each)
        if len(asked) == 1:
            return Cut(300_000)
        put(bucket, "8.sst", LARGE[::-1])
        return None

    proxy.fault = replaced
    # GCS is asked for a generation, and does not tell a rewritten one from one that is gone.
    with pytest.raises(VanishedError, match="gone" if store.scheme == "gs" else "rewritten while it was read"):
        files.fetch("8.sst", tmp_path / "8.local")
    assert list(tmp_path.iterdir()) == []


@of_s3
@pytest.mark.parametrize("after", [-1, 300_000], ids=["before the reply", "within the body"])
def test_a_connection_that_says_nothing_ends_at_its_deadline(  # noqa: PLR0917  # fixtures
    bucket: Bucket, reader: Reader, proxy: FaultyProxy, never: threading.Event, tmp_path: Path, after: int
) -> None:
    # Many tries: on a slow machine the real reply may be late, too.
    limits = replace(QUICK, stalled_ms=500, max_tries=20, call_ms=100_000)
    files = reader(limits)
    put(bucket, "8.sst", LARGE)
    proxy.fault = once(lambda: Stall(never, after))
    files.fetch("8.sst", tmp_path / "8.local")
    assert (tmp_path / "8.local").read_bytes() == LARGE
    proxy.fault = lambda _: Stall(never)
    proxy.forget()
    hasty = reader(replace(QUICK, stalled_ms=200))
    with pytest.raises(CheckpointError, match="did not answer in time"):
        hasty.stat("8.sst")
    assert proxy.kinds() == {"HEAD": QUICK.max_tries}


def test_an_expired_token_is_named_and_new_credentials_are_taken_up(s3: S3Server) -> None:
    token, bucket = ["old"], s3.new_bucket()
    bucket.put("x/metadata", b"{}")
    with faulty_proxy(s3.port) as proxy:
        proxy.fault = lambda asked: Refuse(400, "ExpiredToken") if asked.token == "old" else None
        place = S3(f"s3://{bucket.name}/x", lambda: access_to(proxy.endpoint, token=token[0]))
        files = ObjectStoreFiles(place, limits=QUICK)
        for call in (files.read, files.stat, files.list):
            with pytest.raises(CheckpointError, match="credentials have expired") as error:
                call("metadata")
            assert "Renew the credentials" in error.value.fix
        token[0] = "new"
        assert files.stat("metadata") is not None
        assert files.read("metadata") == b"{}"
        assert proxy.asked[-1].token == "new"


WRONG = "d3Jvbmctc2VjcmV0LTUxZA=="


@pytest.mark.parametrize("code", ["", "AuthenticationFailed"], ids=["by the server", "by the proxy"])
def test_a_refusal_is_named_and_no_secret_is_said(
    store: StoreServer, bucket: Bucket, proxy: FaultyProxy, code: str
) -> None:
    if not code and store.scheme == "gs":
        pytest.skip("no server of Google Cloud Storage that checks tokens")
    proxy.fault = lambda _: Refuse(403, code) if code else None
    files = ObjectStoreFiles(store.reader(bucket.name, "x", proxy.endpoint, secret=WRONG), limits=QUICK)
    assert files.url == store.url(bucket.name, "x")
    for call in (files.read, files.stat, files.list):
        with pytest.raises(CheckpointError, match="refuses the credentials") as error:
            call("metadata")
        said = "".join(traceback.format_exception(error.value)) + f"{error.value!r} {error.value.__context__} {files!r}"
        assert not any(secret in said for secret in (store.secret, WRONG, "wrong-secret"))
        assert "docs/object-stores.md" in error.value.fix


@of_s3
def test_requests_of_one_call_are_under_way_at_once(files: CheckpointFiles, bucket: Bucket, proxy: FaultyProxy) -> None:
    """Each reply waits until all four requests have arrived: one after the other they would wait for ever."""
    for name in "abcd":
        put(bucket, name, b"x")
    together = threading.Barrier(4, timeout=20)

    def wait_for_all(_: Asked) -> None:
        together.wait()

    proxy.fault = wait_for_all
    assert None not in files.stats(["a", "b", "c", "d"])
    assert [content.data for content in files.read_all(["a", "b", "c", "d"])] == [b"x"] * 4
