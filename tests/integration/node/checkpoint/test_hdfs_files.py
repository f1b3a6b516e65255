"""Files in a real HDFS whose processes are killed and frozen, by Hadoop's own protocol and by HTTP.

The reader gives all of one file, or an error that says what is wrong: what cannot be asked is never absent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.object_store.hdfs_server import Door, Folder, HdfsServer, Role, write_conf

from understudy_node.checkpoint.hdfs import HadoopClient, HadoopFiles, Hdfs
from understudy_node.checkpoint.store_files import StoreLimits
from understudy_shared.base.errors import CheckpointError, VanishedError

QUICK = StoreLimits(renew_ms=0, max_tries=3, first_wait_ms=1, max_wait_ms=5)
HASTY = replace(QUICK, connect_ms=1_000, stalled_ms=1_000)
LARGE = bytes(range(256)) * 4096 * 4
"""4 MiB: several pieces."""

PATIENT = replace(QUICK, max_tries=60, max_wait_ms=2_000, call_ms=100_000)
"""For a server that is coming back."""


@pytest.fixture
def door(hdfs: Door) -> Door:
    return hdfs


@pytest.fixture
def bucket(door: Door) -> Folder:
    return door.new_bucket()


@pytest.fixture
def files(door: Door, bucket: Folder) -> HadoopFiles:
    return door.files(bucket.name, "ckpt", limits=QUICK)


class Interrupted:
    """A client with which something happens after the first piece of a read, or before it if `at` is 0."""

    def __init__(self, client: HadoopClient, happening: Callable[[], object], at: int) -> None:
        self._client, self._happening, self._at = client, happening, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def read(self, path: str, offset: int, size: int) -> Iterator[bytes]:
        if self._at == 0:
            self._happening()
        for number, piece in enumerate(self._client.read(path, offset, size), 1):
            yield piece
            if number == self._at:
                self._happening()


def interrupt(files: HadoopFiles, happening: Callable[[], object], at: int = 1) -> None:
    files.client = cast(HadoopClient, Interrupted(files.client, happening, at))


@pytest.mark.parametrize("at", [0, 1], ids=["before the read", "within the read"])
def test_a_file_that_is_replaced_while_it_is_read_is_never_made_of_two(
    files: HadoopFiles, bucket: Folder, tmp_path: Path, at: int
) -> None:
    bucket.put("ckpt/8.sst", LARGE)
    interrupt(files, lambda: bucket.put("ckpt/8.sst", LARGE[::-1]), at)
    with pytest.raises(VanishedError):
        files.fetch("8.sst", tmp_path / "8.local")
    assert list(tmp_path.iterdir()) == []
    interrupt(files, lambda: bucket.delete("ckpt/8.sst"), at)
    with pytest.raises(VanishedError):
        files.read("8.sst")


def test_a_read_that_was_cut_goes_on_in_the_same_file(files: HadoopFiles, bucket: Folder, tmp_path: Path) -> None:
    bucket.put("ckpt/8.sst", LARGE)
    cuts = iter(range(2))

    def cut() -> None:
        if next(cuts, None) is not None:
            raise ConnectionError("cut")

    interrupt(files, cut)
    files._renew = lambda *_: True  # type: ignore[method-assign]  # the client stays
    assert files.fetch("8.sst", tmp_path / "8.local") == "download"
    assert (tmp_path / "8.local").read_bytes() == LARGE
    assert next(cuts, None) is None


@pytest.mark.parametrize("count", [25, pytest.param(100_000, marks=[pytest.mark.full, pytest.mark.timeout(900)])])
def test_a_listing_has_all_names_however_many_replies_it_takes(hdfs: Door, hdfs_server: HdfsServer, count: int) -> None:
    """The server gives 10 names in a reply."""
    bucket, names = hdfs.new_bucket(), [f"{number} %2F \u00fc.delta" for number in range(count)]
    hdfs_server.make_folders([f"/{bucket.name}/state/{name}" for name in names])
    assert sorted(hdfs.files(bucket.name, "").list("state") or []) == sorted(names)


def test_what_may_not_be_read_is_refused_and_never_absent(
    door: Door, bucket: Folder, hdfs_server: HdfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("ckpt/commits/0", b"v1")
    hdfs_server.client().set_permission(f"/{bucket.name}/ckpt", 0o700)
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    files = door.files(bucket.name, "ckpt", limits=QUICK, environ=dict(os.environ))
    for call in (files.stat, files.list, files.read):
        with pytest.raises(CheckpointError, match="permission denied: the user stranger has no right to") as error:
            call("commits/1")
        assert "enter each folder above it" in error.value.fix


@pytest.mark.full
def test_of_a_name_service_the_namenode_that_answers_is_asked(hdfs_server: HdfsServer, tmp_path: Path) -> None:
    """The first of them is away; then it takes connections and says nothing."""
    bucket = hdfs_server.new_bucket()
    bucket.put("ckpt/metadata", b"{}")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for away in (9, silent.getsockname()[1]):
            environ = ha_conf(tmp_path, hdfs_server, away)
            files = HadoopFiles(Hdfs(f"hdfs://team/{bucket.name}/ckpt", environ), limits=HASTY)
            assert files.read("metadata") == b"{}", away
        files = HadoopFiles(Hdfs(f"hdfs:///{bucket.name}/ckpt", environ), limits=HASTY)
        assert files.stat("metadata") is not None


@pytest.mark.full
@pytest.mark.parametrize("role", ["namenode", "datanode"])
def test_a_process_that_hangs_is_an_error_at_a_deadline_and_its_files_are_read_afterwards(
    door: Door, bucket: Folder, hdfs_server: HdfsServer, role: Role
) -> None:
    bucket.put("ckpt/commits/0", LARGE)
    files = door.files(bucket.name, "ckpt", limits=HASTY)
    assert files.read("commits/0") == LARGE
    calls: list[Callable[[str], object]] = [files.read]
    if role == "namenode":
        calls += [files.stat, files.list]
    with frozen(hdfs_server, role):
        for call in calls:
            with pytest.raises(CheckpointError, match="did not answer in time"):
                call("commits/0")
    assert door.files(bucket.name, "ckpt", limits=PATIENT).read("commits/0") == LARGE
    assert files.stat("commits/1") is None


@pytest.mark.full
def test_a_namenode_that_was_killed_is_an_error_and_the_same_reader_reads_on_when_it_is_back(
    door: Door, bucket: Folder, hdfs_server: HdfsServer
) -> None:
    bucket.put("ckpt/commits/0", b"v1")
    files = door.files(bucket.name, "ckpt", limits=QUICK)
    before = files.stat("commits/0")
    hdfs_server.kill("namenode")
    try:
        for call in (files.stat, files.list, files.read):
            with pytest.raises(CheckpointError, match=r"no connection to HDFS|connection to HDFS broke"):
                call("commits/1")
    finally:
        hdfs_server.start("namenode")
    assert files.stat("commits/0") == before
    assert files.read("commits/0") == b"v1"
    assert files.stat("commits/1") is None


@pytest.mark.full
def test_blocks_that_no_datanode_gives_are_an_error_until_it_is_back(
    door: Door, bucket: Folder, hdfs_server: HdfsServer
) -> None:
    """First nothing but the DataNode is gone; then the NameNode begins without it, in safe mode."""
    bucket.put("ckpt/commits/0", b"v1")
    files = door.files(bucket.name, "ckpt", limits=QUICK)
    hdfs_server.kill("datanode")
    try:
        with pytest.raises(
            CheckpointError, match=r"no DataNode gives the file's blocks|HDFS failed|broke|no connection"
        ):
            files.read("commits/0")
        assert files.stat("commits/0") is not None
        assert files.list("commits") == ["0"]
        hdfs_server.kill("namenode")
        hdfs_server.start("namenode", wait=False)
        files = door.files(bucket.name, "ckpt", limits=PATIENT)
        assert files.stat("commits/0") is not None
        assert files.stat("commits/1") is None
        with pytest.raises(CheckpointError, match="the file system is in safe mode"):
            door.files(bucket.name, "ckpt", limits=QUICK).read("commits/0")
    finally:
        hdfs_server.start("datanode")
    assert files.read("commits/0") == b"v1"


@pytest.mark.full
def test_in_safe_mode_everything_is_read(
    door: Door, bucket: Folder, files: HadoopFiles, hdfs_server: HdfsServer
) -> None:
    bucket.put("ckpt/commits/0", b"v1")
    hdfs_server.admin("-safemode", "enter")
    try:
        assert files.read("commits/0") == b"v1"
        assert files.stat("commits/1") is None
        assert files.list("commits") == ["0"]
    finally:
        hdfs_server.admin("-safemode", "leave")


@contextmanager
def frozen(server: HdfsServer, role: Role) -> Iterator[None]:
    server.freeze(role)
    try:
        yield
    finally:
        server.thaw(role)


def ha_conf(folder: Path, server: HdfsServer, away: int) -> dict[str, str]:
    """The environment of a reader whose configuration has the name service `team`: one NameNode at `away`, and ours."""
    settings = {"fs.defaultFS": "hdfs://team", "dfs.ha.namenodes.team": "one,two"}
    for address, port in (("rpc", server.ports["rpc"]), ("http", server.ports["http"])):
        settings[f"dfs.namenode.{address}-address.team.one"] = f"127.0.0.1:{away}"
        settings[f"dfs.namenode.{address}-address.team.two"] = f"127.0.0.1:{port}"
    write_conf(folder / "hdfs-site.xml", settings)
    return {"HADOOP_CONF_DIR": str(folder)}
