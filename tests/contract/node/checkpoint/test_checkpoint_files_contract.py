"""The contract of the classes that read a checkpoint's files in this process: on local disk, in memory.

Those that ask a server are held to the same in `tests/integration/node/checkpoint/test_object_store_files.py`.
"""

from __future__ import annotations

import errno
import shutil
import time
from pathlib import Path

import pytest

from understudy_node.checkpoint.files import CheckpointFiles, FileStat, LocalFiles
from understudy_node.checkpoint.memory import MemoryFiles
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import CheckpointError, NotACheckpointError, UnderstudyError, VanishedError


class Place:
    """A checkpoint's folder that a test may write to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, path: str, data: bytes) -> None:
        full = self._folder / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(data)

    def remove(self, path: str) -> None:
        (self._folder / path).unlink()


class OwnPlace(Place):
    """The memory of this process."""

    def __init__(self, files: MemoryFiles) -> None:
        super().__init__(Path())
        self.files = files

    def write(self, path: str, data: bytes) -> None:
        self.files.write({path: data})

    def remove(self, path: str) -> None:
        kept = {name: data for name, (data, _) in self.files._files.items() if name != path}
        self.files._files, self.files._folders = {}, {"": {}}
        self.files.write(kept)


@pytest.fixture(params=["local", "own-memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[CheckpointFiles, Place]:
    if request.param == "own-memory":
        own = OwnPlace(MemoryFiles("a test", SystemClock()))
        own.write("metadata", b'{"id":"x"}')
        return own.files, own
    place = Place(tmp_path / "ckpt")
    place.write("metadata", b'{"id":"x"}')
    files = open_checkpoint_files(tmp_path / "ckpt")
    assert isinstance(files, LocalFiles)
    return files, place


Opened = tuple[CheckpointFiles, Place]


def test_a_file_is_read_whole(opened: Opened) -> None:
    files, place = opened
    place.write("commits/3", b"v1\n{}")
    assert files.read("commits/3") == b"v1\n{}"
    assert files.read("commits/3", max_bytes=5) == b"v1\n{}"


def test_an_empty_file_is_empty(opened: Opened) -> None:
    files, place = opened
    place.write("commits/3", b"")
    assert files.read("commits/3") == b""
    found = files.stat("commits/3")
    assert found is not None
    assert found.size == 0


def test_a_file_above_the_cap_is_refused(opened: Opened) -> None:
    files, place = opened
    place.write("commits/3", b"v1\n{}")
    with pytest.raises(CheckpointError, match="at most 4 are read"):
        files.read("commits/3", max_bytes=4)


@pytest.mark.parametrize("path", ["commits/4", "nowhere/4", "metadata/4"])
def test_absence_is_a_value_for_pollers_and_an_error_for_readers(opened: Opened, path: str, tmp_path: Path) -> None:
    files, _ = opened
    assert files.stat(path) is None
    assert files.list(path) is None
    with pytest.raises(VanishedError, match=path):
        files.read(path)
    with pytest.raises(VanishedError, match=path):
        files.fetch(path, tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_a_file_that_appears_after_a_poll_is_seen_at_once(opened: Opened) -> None:
    files, place = opened
    place.write("commits/3", b"x")
    assert files.stat("commits/4") is None
    assert files.list("commits") == ["3"]
    place.write("commits/4", b"x")
    assert files.stat("commits/4") is not None
    assert sorted(files.list("commits") or []) == ["3", "4"]
    place.remove("commits/3")
    assert files.stat("commits/3") is None
    assert files.list("commits") == ["4"]


def test_a_listing_has_names_of_files_and_directories_alone(opened: Opened) -> None:
    files, place = opened
    place.write("state/0/0/1.delta", b"x")
    assert sorted(files.list("") or []) == ["metadata", "state"]
    assert files.list("state") == ["0"]
    assert files.list("state/0/0") == ["1.delta"]
    assert files.list("metadata") is None


def test_a_rewritten_file_has_another_stat(opened: Opened) -> None:
    files, place = opened
    place.write("4.delta", b"one")
    before = files.stat("4.delta")
    assert isinstance(before, FileStat)
    assert files.stat("4.delta") == before
    assert abs(before.mtime_ns - time.time_ns()) < 3_600 * 10**9
    place.write("4.delta", b"three")
    after = files.stat("4.delta")
    assert after is not None
    assert (before.size, after.size) == (3, 5)
    assert after.mtime_ns >= before.mtime_ns


def test_a_fetched_file_survives_spark_s_clean_up(opened: Opened, tmp_path: Path) -> None:
    files, place = opened
    place.write("state/0/0/SSTs/8.sst", b"table")
    destination = tmp_path / "own" / "000008.sst"
    destination.parent.mkdir()
    how = files.fetch("state/0/0/SSTs/8.sst", destination)
    assert how == ("hardlink" if isinstance(files, LocalFiles) else "download")
    place.remove("state/0/0/SSTs/8.sst")
    assert destination.read_bytes() == b"table"
    assert [path.name for path in destination.parent.iterdir()] == ["000008.sst"]


def test_a_fetch_replaces_what_was_there(opened: Opened, tmp_path: Path) -> None:
    files, place = opened
    place.write("8.sst", b"new")
    destination = tmp_path / "8.local"
    destination.write_bytes(b"old and longer")
    files.fetch("8.sst", destination)
    assert destination.read_bytes() == b"new"


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "state/../../secret", "a\0b", ".."])
def test_no_path_leaves_the_checkpoint(opened: Opened, path: str, tmp_path: Path) -> None:
    files, _ = opened
    for call in (files.stat, files.list, files.read, lambda wanted: files.fetch(wanted, tmp_path / "x")):
        with pytest.raises(CheckpointError, match="must be relative"):
            call(path)


def test_dots_inside_a_name_are_no_way_out(opened: Opened) -> None:
    files, place = opened
    place.write("state/a..b", b"x")
    assert files.read("state/a..b") == b"x"


def test_a_fetch_makes_the_directory_it_needs(opened: Opened, tmp_path: Path) -> None:
    files, _ = opened
    files.fetch("metadata", tmp_path / "missing" / "x")
    assert (tmp_path / "missing" / "x").read_bytes() == b'{"id":"x"}'


def test_a_fetch_to_where_nothing_can_be_written_is_our_error(opened: Opened, tmp_path: Path) -> None:
    files, _ = opened
    (tmp_path / "file").write_bytes(b"in the way")
    with pytest.raises(CheckpointError, match="Cannot write"):
        files.fetch("metadata", tmp_path / "file" / "x")


def test_a_full_disk_is_named_with_the_directory_and_what_to_do(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's answer is faked: filling a disk in a test would harm others."""
    files, _ = opened

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.link", full)
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UnderstudyError, match="disk is full") as refusal:
        files.fetch("metadata", tmp_path / "x")
    assert refusal.value.where == str(tmp_path)
    assert "Free space" in refusal.value.fix
    assert not list(tmp_path.glob("*x*"))


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


@pytest.mark.parametrize("url", ["sftp://user:secret@host/ckpt", "filecache::s3://secret", "HDFS//secret::x"])
def test_an_unknown_scheme_is_refused_with_the_schemes_and_their_extras(url: str) -> None:
    with pytest.raises(NotACheckpointError, match="no storage that a checkpoint can be read from") as error:
        open_checkpoint_files(url)
    said = str(error.value)
    assert "s3, s3a, s3n (extra s3)" in said
    assert "hdfs (extra hdfs); webhdfs, swebhdfs" in said
    assert "user:secret" not in said


@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs", "swebhdfs"])
def test_a_user_or_password_in_a_url_of_hdfs_is_refused_and_not_shown(scheme: str) -> None:
    for login in ("user:hush@", ":hush@"):
        with pytest.raises(NotACheckpointError, match="never from the URL") as error:
            open_checkpoint_files(f"{scheme}://{login}host/ckpt")
        assert "hush" not in str(error.value)
