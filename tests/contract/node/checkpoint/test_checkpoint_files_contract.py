"""The contract of the class that reads a checkpoint's files on local disk.

Those that ask a server are held to the same in `tests/integration/node/checkpoint/test_object_store_files.py`.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from understudy_node.checkpoint import files as checkpoint_files
from understudy_node.checkpoint.files import CheckpointFiles, FileStat, LocalFiles
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_shared.base.errors import CheckpointError, NotACheckpointError, UnderstudyError, VanishedError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "ckpt"
    put(found / "metadata", b'{"id":"x"}')
    return found


@pytest.fixture
def files(folder: Path) -> CheckpointFiles:
    return open_checkpoint_files(folder)


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_a_file_above_the_cap_is_refused(files: CheckpointFiles, folder: Path) -> None:
    put(folder / "commits/3", b"v1\n{}")
    assert files.read("commits/3") == files.read("commits/3", max_bytes=5) == b"v1\n{}"
    with pytest.raises(CheckpointError, match="at most 4 are read"):
        files.read("commits/3", max_bytes=4)


@pytest.mark.parametrize("path", ["commits/4", "nowhere/4", "metadata/4"])
def test_absence_is_a_value_for_pollers_and_an_error_for_readers(
    files: CheckpointFiles, path: str, tmp_path: Path
) -> None:
    assert files.stat(path) is None
    assert files.list(path) is None
    with pytest.raises(VanishedError, match=path):
        files.read(path)
    with pytest.raises(VanishedError, match=path):
        files.fetch(path, tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_a_file_that_appears_after_a_poll_is_seen_at_once(files: CheckpointFiles, folder: Path) -> None:
    put(folder / "commits/3", b"x")
    assert files.stat("commits/4") is None
    assert files.list("commits") == ["3"]
    put(folder / "commits/4", b"x")
    assert files.stat("commits/4") is not None
    assert sorted(files.list("commits") or []) == ["3", "4"]
    (folder / "commits/3").unlink()
    assert files.stat("commits/3") is None
    assert files.list("commits") == ["4"]


def test_absence_in_a_network_file_system_is_asked_of_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel caches that a name is absent until its folder is opened, as nfs(5) says; a fake, as root is needed."""
    cached, look, open_folder = set[str](), os.stat, os.open

    def stat(path: str, **more: object) -> os.stat_result:
        if path in cached or not Path(path).exists():
            cached.add(path)
            raise FileNotFoundError(path)
        return look(path)

    def opened(path: str, flags: int) -> int:
        cached.clear()
        return open_folder(path, flags)

    put(tmp_path / "commits/3", b"x")
    for is_local, is_seen in ((True, False), (False, True)):
        monkeypatch.setattr(checkpoint_files, "is_on_this_machine", lambda _, is_local=is_local: is_local)
        files = LocalFiles(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_files, "os", SimpleNamespace(**{**vars(os), "stat": stat, "open": opened}))
            cached.add(str(tmp_path / "commits/3"))
            assert (files.stat("commits/3") is not None) is is_seen
            assert files.stat("commits/4") is None


def test_a_listing_has_names_of_files_and_directories_alone(files: CheckpointFiles, folder: Path) -> None:
    put(folder / "state/0/0/1.delta", b"x")
    assert sorted(files.list("") or []) == ["metadata", "state"]
    assert files.list("state") == ["0"]
    assert files.list("state/0/0") == ["1.delta"]
    assert files.list("metadata") is None


def test_a_rewritten_file_has_another_stat(files: CheckpointFiles, folder: Path) -> None:
    put(folder / "4.delta", b"one")
    before = files.stat("4.delta")
    assert isinstance(before, FileStat)
    assert files.stat("4.delta") == before
    assert abs(before.mtime_ns - time.time_ns()) < 3_600 * 10**9
    put(folder / "4.delta", b"three")
    after = files.stat("4.delta")
    assert after is not None
    assert (before.size, after.size) == (3, 5)
    assert after.mtime_ns >= before.mtime_ns


def test_a_fetched_file_survives_spark_s_clean_up(files: CheckpointFiles, folder: Path, tmp_path: Path) -> None:
    put(folder / "state/0/0/SSTs/8.sst", b"table")
    destination = tmp_path / "own" / "000008.sst"
    destination.parent.mkdir()
    assert files.fetch("state/0/0/SSTs/8.sst", destination) == "hardlink"
    (folder / "state/0/0/SSTs/8.sst").unlink()
    assert destination.read_bytes() == b"table"
    assert [path.name for path in destination.parent.iterdir()] == ["000008.sst"]


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "state/../../secret", "a\0b", ".."])
def test_no_path_leaves_the_checkpoint(files: CheckpointFiles, path: str, tmp_path: Path) -> None:
    for call in (files.stat, files.list, files.read, lambda wanted: files.fetch(wanted, tmp_path / "x")):
        with pytest.raises(CheckpointError, match="must be relative"):
            call(path)


def test_a_fetch_to_where_nothing_can_be_written_is_our_error(files: CheckpointFiles, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    with pytest.raises(CheckpointError, match="Cannot write"):
        files.fetch("metadata", tmp_path / "file" / "x")


def test_a_full_disk_is_named_with_the_directory_and_what_to_do(
    files: CheckpointFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's answer is faked: filling a disk in a test would harm others."""

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.link", full)
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UnderstudyError, match="disk is full") as refusal:
        files.fetch("metadata", tmp_path / "x")
    assert refusal.value.where == str(tmp_path)
    assert "Free space" in refusal.value.fix
    assert not list(tmp_path.glob("*x*"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "This is a FIFO"),
        (lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5)), "This is a character device"),
        (lambda path: path.write_bytes(bytes(1 << 20)), "begins with 65536 zero bytes"),
    ],
)
def test_what_is_no_written_file_is_refused_at_once_by_its_name(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    try:
        make(tmp_path / "3.delta")
    except PermissionError:
        pytest.skip("only root makes devices")
    files = LocalFiles(tmp_path)
    with pytest.raises(CheckpointError, match=said) as refusal:
        files.read("3.delta")
    assert refusal.value.where == str(tmp_path / "3.delta")
    if said.startswith("This is"):
        with pytest.raises(CheckpointError, match=said):
            files.fetch("3.delta", tmp_path / "here")
        assert not (tmp_path / "here").exists()


def test_where_hard_links_are_refused_the_file_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "8.sst").write_bytes(b"table")

    def refused(*_args: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refused)
    assert LocalFiles(tmp_path / "ckpt").fetch("8.sst", tmp_path / "8.local") == "copy"
    shutil.rmtree(tmp_path / "ckpt")
    assert (tmp_path / "8.local").read_bytes() == b"table"


@pytest.mark.parametrize("prefix", ["", "file:", "file://", "local://"])
def test_local_urls_take_the_fast_path(tmp_path: Path, prefix: str) -> None:
    files = open_checkpoint_files(f"{prefix}{tmp_path}")
    assert isinstance(files, LocalFiles)
    assert files.url == str(tmp_path)


def test_a_user_or_password_in_a_url_of_hdfs_is_refused_and_not_shown() -> None:
    for login in ("user:hush@", ":hush@"):
        with pytest.raises(NotACheckpointError, match="never from the URL") as error:
            open_checkpoint_files(f"hdfs://{login}host/ckpt")
        assert "hush" not in str(error.value)
