"""Access to a checkpoint's files, on local disk, in an object store, or in HDFS.

Paths are relative to the checkpoint, `/`-separated; absolute paths and `..` are refused, so nothing escapes the root.
Rule: absent is a value (`None`) where the caller polls, and `VanishedError` where it has already chosen the file; every
other failure of the storage is a `CheckpointError`. Nothing here is cached: a poll must see what is there now.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Literal, Protocol

from understudy_shared.base.errors import CheckpointError, UnderstudyError, VanishedError

FetchMethod = Literal["hardlink", "symlink", "copy", "download"]

DEFAULT_MAX_READ_BYTES = 1 << 30
"""Limit of one read into memory; state files are compressed, and even large HDFS snapshots stay below it."""

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_HARD_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})


@dataclass(frozen=True, slots=True)
class FileStat:
    """The identity of a path's content: rewriting the file changes it.

    `inode` is a hash of the entity tag on object stores (0 without one); `mtime_ns` is as fine as the storage gives it,
    0 when it gives no time. `coarse_ns` is how much later than that the file may have been written.
    """

    mtime_ns: int
    size: int
    inode: int
    coarse_ns: int = 0


@dataclass(frozen=True, slots=True)
class Content:
    """A whole file, and its stat of the same moment."""

    data: bytes
    stat: FileStat


def mtime_ns(written: datetime) -> int:
    """Return the time of the last write, for a stat."""
    return round(written.timestamp() * 1_000_000) * 1_000


def hashed_tag(tag: str | None) -> int:
    """Return a number for the tag of a file's content, for the `inode` of a stat."""
    return int.from_bytes(blake2b(tag.encode(), digest_size=7).digest(), "big") if tag else 0


class CheckpointFiles(Protocol):
    """A checkpoint's files. Calls block; every method may be called from any thread."""

    @property
    def url(self) -> str:
        """The checkpoint's location, fit for messages (no credentials)."""

    def stat(self, path: str) -> FileStat | None:
        """Return the file's stat; `None` when absent."""

    def stats(self, paths: Sequence[str]) -> list[FileStat | None]:
        """Return the stats of several files: at once where each costs a round trip, else one after the other."""
        return [self.stat(path) for path in paths]

    def list(self, path: str) -> list[str] | None:
        """Return names in a directory, unordered; `None` when there is no such directory."""

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        """Read the whole file; `VanishedError` when absent, `CheckpointError` when larger than `max_bytes`."""

    def read_all(self, paths: Sequence[str], max_bytes: int = DEFAULT_MAX_READ_BYTES) -> Sequence[Content]:
        """Read several whole files with their stats, at once where each costs a round trip. `max_bytes` is for each.

        `VanishedError` when one is absent, or was rewritten while it was read.
        """
        return [_read_unchanged(self, path, max_bytes) for path in paths]

    def fetch(self, path: str, destination: Path) -> FetchMethod:
        """Bring the file to `destination` on local disk, whole or not at all; return by which method."""


class LocalFiles(CheckpointFiles):
    """A checkpoint on a mounted file system, by plain system calls (a stat costs about 2 us)."""

    def __init__(self, root: str | Path) -> None:
        self._root = str(Path(root).expanduser().absolute())
        self._prefix = self._root.rstrip("/") + "/"

    def __repr__(self) -> str:
        return f"LocalFiles({self._root!r})"

    @property
    def url(self) -> str:
        """The absolute path."""
        return self._root

    def stat(self, path: str) -> FileStat | None:
        refuse_escape(path)
        try:
            found = os.stat(self._prefix + path)  # noqa: PTH116 -- Path.stat costs four times as much, on every poll
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error("Cannot stat", self._prefix + path, error) from error
        return FileStat(found.st_mtime_ns, found.st_size, found.st_ino)

    def list(self, path: str) -> list[str] | None:
        refuse_escape(path)
        try:
            return os.listdir(self._prefix + path)  # noqa: PTH208 -- names are wanted, not paths
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error("Cannot list", self._prefix + path, error) from error

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        refuse_escape(path)
        full = self._prefix + path
        try:
            with open(full, "rb", buffering=0) as file:  # noqa: PTH123 -- as fast as stat
                size = os.fstat(file.fileno()).st_size
                if size > max_bytes:
                    raise too_large_to_read(full, size, max_bytes)
                return file.read()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise vanished(full) from error
        except OSError as error:
            raise storage_error("Cannot read", full, error) from error

    def fetch(self, path: str, destination: Path) -> FetchMethod:
        """Make a hard link, which also outlives Spark's clean-up; copy where links are refused."""
        refuse_escape(path)
        source = self._prefix + path
        with arriving_file(destination) as arriving:
            try:
                return _link_or_copy(source, arriving)
            except (FileNotFoundError, NotADirectoryError) as error:
                if Path(source).exists():
                    raise
                raise vanished(source) from error


def _read_unchanged(files: CheckpointFiles, path: str, max_bytes: int) -> Content:
    """Read a file between two equal stats, from storage that does not give both at once."""
    before = files.stat(path)
    if before is None:
        raise vanished(f"{files.url}/{path}")
    data = files.read(path, max_bytes)
    if files.stat(path) != before:
        raise rewritten(f"{files.url}/{path}")
    return Content(data, before)


def _link_or_copy(source: str, arriving: Path) -> FetchMethod:
    try:
        os.link(source, arriving)
    except OSError as error:
        if error.errno not in _NO_HARD_LINK:
            raise
    else:
        return "hardlink"
    shutil.copyfile(source, arriving)
    return "copy"


@contextmanager
def arriving_file(destination: Path) -> Iterator[Path]:
    """Open a temporary name beside `destination`, which it gets on success; make the directory."""
    arriving = destination.with_name(f".{destination.name}.{uuid.uuid4().hex}.arriving")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        yield arriving
        arriving.replace(destination)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise UnderstudyError(
                "The disk is full",
                where=str(destination.parent),
                fix="Free space there, or give the node another --data-dir; the replica goes on by itself",
            ) from error
        raise storage_error("Cannot write", str(destination), error) from error
    finally:
        with suppress(OSError):
            arriving.unlink()


def refuse_escape(path: str) -> None:
    """Raise on a path that could leave the checkpoint's root."""
    if path.startswith("/") or "\x00" in path or (".." in path and ".." in path.split("/")):
        raise CheckpointError(
            "A path inside a checkpoint must be relative and without '..'",
            where=repr(path),
            fix="The file that names this path is damaged, or Spark did not write it",
        )


def vanished(where: str) -> VanishedError:
    """Make the error for a file that is gone."""
    return VanishedError("The file is gone", where=where, fix="Spark's clean-up removes old files: choose again")


def rewritten(where: str) -> VanishedError:
    """Make the error for a file that changed after its reading began."""
    return VanishedError("The file was rewritten while it was read", where=where, fix="It is read again")


def too_large_to_read(where: str, size: int, max_bytes: int) -> CheckpointError:
    """Make the error for a file above the limit of a read."""
    return CheckpointError(
        f"The file has {size} bytes; at most {max_bytes} are read into memory", where=where, fix="Raise the limit"
    )


def storage_error(what: str, where: str, error: OSError) -> CheckpointError:
    """Translate an exception of the file system into a `CheckpointError`."""
    reason = error.strerror or str(error) or type(error).__name__
    return CheckpointError(
        f"{what}: {reason}", where=where, fix="Check that the node can reach and read the checkpoint's storage"
    )
