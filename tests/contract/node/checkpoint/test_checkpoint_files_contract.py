"""The contract of all classes that read a checkpoint's files: on local disk, through fsspec, in memory."""

from __future__ import annotations

import errno
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest

from understudy_node.checkpoint.files import CheckpointFiles, FileStat, LocalFiles
from understudy_node.checkpoint.memory import MemoryFiles
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.checkpoint.remote import FsspecFiles
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import CheckpointError, UnderstudyError, VanishedError


class Place:
    """A checkpoint's location that a test may write to."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._filesystem, self._root = fsspec.core.url_to_fs(url)

    def write(self, path: str, data: bytes) -> None:
        full = f"{self._root}/{path}"
        self._filesystem.makedirs(full.rpartition("/")[0], exist_ok=True)
        self._filesystem.pipe_file(full, data)

    def remove(self, path: str) -> None:
        self._filesystem.rm(f"{self._root}/{path}".rstrip("/"), recursive=not path)


class OwnPlace(Place):
    """The memory of this process."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files

    def write(self, path: str, data: bytes) -> None:
        self.files.write({path: data})

    def remove(self, path: str) -> None:
        kept = {name: data for name, (data, _) in self.files._files.items() if name != path}
        self.files._files, self.files._folders = {}, {"": {}}
        self.files.write(kept)


@pytest.fixture(params=["local", "memory", "fsspec-local", "own-memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[CheckpointFiles, Place]]:
    if request.param == "own-memory":
        own = OwnPlace(MemoryFiles("a test", SystemClock()))
        own.write("metadata", b'{"id":"x"}')
        yield own.files, own
        return
    url = f"memory://{uuid.uuid4().hex}/ckpt" if request.param == "memory" else str(tmp_path / "ckpt")
    place = Place(url)
    place.write("metadata", b'{"id":"x"}')
    files = FsspecFiles("file://" + url) if request.param == "fsspec-local" else open_checkpoint_files(url)
    assert isinstance(files, LocalFiles if request.param == "local" else FsspecFiles)
    yield files, place
    if request.param == "memory":
        place.remove("")


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
    monkeypatch.setattr(fsspec.AbstractFileSystem, "get_file", full)
    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.get_file", full)
    with pytest.raises(UnderstudyError, match="disk is full") as refusal:
        files.fetch("metadata", tmp_path / "x")
    assert refusal.value.where == str(tmp_path)
    assert "Free space" in refusal.value.fix
    assert not list(tmp_path.glob("*x*"))


def test_a_download_that_breaks_off_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(f"memory://{uuid.uuid4().hex}/ckpt")
    place.write("8.sst", b"the whole table")
    (tmp_path / "8.local").write_bytes(b"old")

    def half(_self: object, _source: str, target: str) -> None:
        Path(target).write_bytes(b"the wh")

    monkeypatch.setattr(fsspec.AbstractFileSystem, "get_file", half)
    with pytest.raises(CheckpointError, match="after 6 of 15 bytes"):
        FsspecFiles(place.url).fetch("8.sst", tmp_path / "8.local")
    assert (tmp_path / "8.local").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["8.local"]


class _KeepsListings(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Like the object stores' backends: a listing is kept until it is invalidated."""

    protocol = "keepslistings"
    names: ClassVar[set[str]] = {"bucket/ckpt/commits/3"}

    def ls(self, path: str, detail: bool = True, **_kwargs: object) -> list[dict[str, object]]:
        found = self.__dict__.setdefault("kept", {}).setdefault(path.rstrip("/"), sorted(self.names))
        return [{"name": name, "size": 1, "type": "file"} for name in found if name.startswith(path)]

    def invalidate_cache(self, _path: str | None = None) -> None:
        self.__dict__.pop("kept", None)


def test_a_backend_that_keeps_listings_does_not_hide_a_new_commit() -> None:
    fsspec.register_implementation("keepslistings", _KeepsListings, clobber=True)
    files = open_checkpoint_files("keepslistings://bucket/ckpt")
    assert files.list("commits") == ["3"]
    assert files.stat("commits/4") is None
    _KeepsListings.names.add("bucket/ckpt/commits/4")
    assert files.stat("commits/4") is not None
    assert files.list("commits") == ["3", "4"]


class _MarksDirectories(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Like Azure, where Hadoop marks a directory by an empty object of its name: a listing has both."""

    protocol = "marksdirectories"

    def ls(self, path: str, detail: bool = True, **_kwargs: object) -> list[dict[str, object]]:
        name = f"{path.rstrip('/')}/0"
        return [{"name": name, "size": 0, "type": "file"}, {"name": name, "size": 0, "type": "directory"}]


def test_a_directory_that_an_empty_object_marks_is_listed_once() -> None:
    fsspec.register_implementation("marksdirectories", _MarksDirectories, clobber=True)
    assert open_checkpoint_files("marksdirectories://bucket/ckpt").list("state") == ["0"]


class _OpensNever(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Like a backend that asks its storage as it is opened, without a deadline."""

    protocol = "opensnever"
    over = threading.Event()

    def __init__(self, **_options: object) -> None:
        self.over.wait(60)


def test_a_storage_that_does_not_open_is_named_at_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("opensnever", _OpensNever, clobber=True)
    monkeypatch.setattr("understudy_node.checkpoint.remote.OPEN_MS", 50)
    with pytest.raises(CheckpointError, match=r"did not open within 0\.05 s"):
        open_checkpoint_files("opensnever://bucket/ckpt")
    _OpensNever.over.set()


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


def test_credentials_in_a_url_are_not_shown() -> None:
    files = open_checkpoint_files("memory://user:secret@bucket/ckpt")
    assert "secret" not in files.url
    assert "secret" not in repr(files)


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(CheckpointError, match="nosuch"):
        open_checkpoint_files("nosuch://bucket/ckpt")
