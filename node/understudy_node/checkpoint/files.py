"""Access to a checkpoint's files, and the local disk as storage. `opening` chooses the storage.

Paths are relative to the checkpoint, `/`-separated; absolute paths and `..` are refused, so nothing escapes the root.
Rule: an absent file is `None` to a caller that polls, and `VanishedError` to one that has already chosen it; every
other failure of the storage is a `CheckpointError`. Nothing here is cached: a poll must see what is there now.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from understudy_shared.base.errors import CheckpointError, CorruptFileError, LocalDiskError, VanishedError

FetchMethod = Literal["hardlink", "symlink", "copy", "download"]

DEFAULT_MAX_READ_BYTES = 1 << 30
"""Limit of one read into memory; state files are compressed, and even large HDFS snapshots stay below it."""

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_HEAD_BYTES = 1 << 16
"""Bytes of a file that are read first: most files have fewer. No file of Spark's begins with so many zeros."""

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
_NO_HARD_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})


@dataclass(frozen=True, slots=True)
class FileStat:
    """The identity of a path's content: rewriting the file changes it.

    `inode` is a hash of the entity tag on object stores (0 without one); `mtime_ns` is as fine as the storage gives it,
    0 when it gives no time. `coarse_ns`: the file may have been written up to this much later.
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


class CheckpointFiles(ABC):
    """A checkpoint's files. Calls block; every method may be called from any thread."""

    url: str
    """The checkpoint's location, fit for messages (no credentials)."""

    @abstractmethod
    def stat(self, path: str) -> FileStat | None:
        """Return the file's stat; `None` when absent."""

    def stats(self, paths: Sequence[str]) -> list[FileStat | None]:
        """Return the stats of several files: at once where each costs a round trip, else one after the other."""
        return [self.stat(path) for path in paths]

    @abstractmethod
    def list(self, path: str) -> list[str] | None:
        """Return names in a directory, unordered; `None` when there is no such directory."""

    @abstractmethod
    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        """Read the whole file; `VanishedError` when absent, `CheckpointError` when larger than `max_bytes`."""

    def read_all(self, paths: Sequence[str], max_bytes: int = DEFAULT_MAX_READ_BYTES) -> Sequence[Content]:
        """Read several whole files with their stats, at once where each costs a round trip. `max_bytes` is for each.

        `VanishedError` when one is absent, or was rewritten while it was read.
        """
        return [_read_unchanged(self, path, max_bytes) for path in paths]

    @abstractmethod
    def fetch(self, path: str, destination: Path) -> FetchMethod:
        """Bring the file to `destination` on local disk, whole or not at all; return the method."""


LOCAL_FILE_SYSTEMS = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""File systems that report writes of all processes of this machine. Network file systems do not report writes of other
machines.
"""

_ESCAPE = re.compile(r"\\([0-7]{3})")


def is_on_this_machine(root: Path) -> bool:
    """Whether the file system that holds a folder is local: it tells of all writes, and knows at once what is there."""
    return file_system_of(root.resolve(), Path("/proc/self/mountinfo").read_text()) in LOCAL_FILE_SYSTEMS


def file_system_of(path: Path, mountinfo: str) -> str | None:
    """Return the type of the file system that holds `path`, by the text of `/proc/self/mountinfo` (proc(5)), last mount
    first where several are on one place.
    """
    found: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        place = Path(_ESCAPE.sub(lambda each: chr(int(each[1], 8)), fields.split(" ")[4]))
        depth = len(place.parts)
        if path.is_relative_to(place) and (found is None or depth >= found[0]):
            found = depth, rest.split(" ")[0]
    return None if found is None else found[1]


class LocalFiles(CheckpointFiles):
    """A checkpoint on a mounted file system, by plain system calls (a stat costs about 2 us).

    A network file system may answer from the kernel's cache that a file is absent, for as long as the attributes of its
    folder are cached (`acdirmax`, 60 s, in nfs(5)). Opening the folder makes it ask the server.
    """

    def __init__(self, root: str | Path) -> None:
        self.url = str(Path(root).expanduser().absolute())
        self._prefix = self.url.rstrip("/") + "/"
        self._is_local: dict[int, bool] = {}
        """By the device of the root, which may be mounted later."""

    def __repr__(self) -> str:
        return f"LocalFiles({self.url!r})"

    def stat(self, path: str) -> FileStat | None:
        full = self.full_path(path)
        try:
            found = os.stat(full)  # noqa: PTH116 -- Path.stat costs four times as much, on every poll
        except (FileNotFoundError, NotADirectoryError):
            return None if self._knows_absence() else self._stat_by_server(full)
        except OSError as error:
            raise storage_error("Cannot stat", full, error) from error
        return _stat_of(found)

    def _knows_absence(self) -> bool:
        try:
            device = os.stat(self.url).st_dev  # noqa: PTH116 -- as in `stat`
            if device not in self._is_local:
                self._is_local[device] = is_on_this_machine(Path(self.url))
        except OSError:
            return True
        return self._is_local[device]

    def _stat_by_server(self, full: str) -> FileStat | None:
        """Stat a file after its folder was asked for anew."""
        try:
            os.close(os.open(os.path.dirname(full), os.O_RDONLY | os.O_DIRECTORY))  # noqa: PTH120 -- as in `stat`
            return _stat_of(os.stat(full))  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error("Cannot stat", full, error) from error

    def list(self, path: str) -> list[str] | None:
        full = self.full_path(path)
        try:
            return os.listdir(full)  # noqa: PTH208 -- names are wanted, not paths
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error("Cannot list", full, error) from error

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        full = self.full_path(path)
        try:
            with open(full, "rb", buffering=0, opener=_open_without_waiting) as file:
                found = os.fstat(file.fileno())
                _require_regular(found, full)
                if found.st_size > max_bytes:
                    raise too_large_to_read(full, found.st_size, max_bytes)
                head = file.read(_HEAD_BYTES)
                _require_written(head, full)
                return head + file.read() if found.st_size > len(head) else head
        except (FileNotFoundError, NotADirectoryError) as error:
            raise vanished(full) from error
        except OSError as error:
            raise storage_error("Cannot read", full, error) from error

    def fetch(self, path: str, destination: Path) -> FetchMethod:
        """Make a hard link, which also outlives Spark's clean-up; copy where links are refused."""
        source = self.full_path(path)
        with arriving_file(destination) as arriving:
            try:
                _require_regular(os.stat(source), source)  # noqa: PTH116 -- as in `stat`
                return _link_or_copy(source, arriving)
            except (FileNotFoundError, NotADirectoryError) as error:
                if Path(source).exists():
                    raise
                raise vanished(source) from error

    def full_path(self, path: str) -> str:
        """Return where the file is on this machine. Every access asks this first."""
        refuse_escape(path)
        return self._prefix + path


def _stat_of(found: os.stat_result) -> FileStat:
    return FileStat(found.st_mtime_ns, found.st_size, found.st_ino)


def _read_unchanged(files: CheckpointFiles, path: str, max_bytes: int) -> Content:
    """Read a file between two equal stats, from storage that does not give both at once."""
    before = files.stat(path)
    if before is None:
        raise vanished(f"{files.url}/{path}")
    data = files.read(path, max_bytes)
    if files.stat(path) != before:
        raise rewritten(f"{files.url}/{path}")
    return Content(data, before)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a FIFO without a writer opens at once, too, so that it can be refused."""
    return os.open(path, flags | os.O_NONBLOCK)


def _require_regular(found: os.stat_result, where: str) -> None:
    """Raise for a FIFO, a device or a socket: reading one may wait for ever. A folder raises as the system says it."""
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(
            f"This is {_KINDS.get(stat.S_IFMT(found.st_mode), 'a special file')}, where Spark writes regular files",
            where=where,
            fix="Remove it, and put the file back as Spark wrote it",
        )


def _require_written(head: bytes, where: str) -> None:
    """Raise for a large file that begins with a hole: it may be a gigabyte, and be retried every second."""
    if len(head) == _HEAD_BYTES and not head.strip(b"\0"):
        raise CorruptFileError(
            f"The file begins with {_HEAD_BYTES} zero bytes: it is sparse, or its content never reached the disk",
            where=where,
        )


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
    """Open a temporary name next to `destination`, which it gets on success; make the directory."""
    arriving = destination.with_name(f".{destination.name}.{uuid.uuid4().hex}.arriving")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        yield arriving
        arriving.replace(destination)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise LocalDiskError(
                "The disk is full",
                where=str(destination.parent),
                fix="Free space there, or give the node another --data-dir; the replica continues by itself",
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
    return VanishedError("The file is gone", where=where, fix="Spark's clean-up removes old files: choose again")


def rewritten(where: str) -> VanishedError:
    return VanishedError("The file was rewritten while it was read", where=where, fix="It is read again")


def too_large_to_read(where: str, size: int, max_bytes: int) -> CheckpointError:
    return CheckpointError(
        f"The file has {size} bytes; at most {max_bytes} are read into memory",
        where=where,
        fix="Spark's files of this kind are far smaller: put the file back as Spark wrote it",
    )


def storage_error(what: str, where: str, error: OSError) -> CheckpointError:
    reason = error.strerror or str(error) or type(error).__name__
    return CheckpointError(
        f"{what}: {reason}", where=where, fix="Check that the node can reach and read the checkpoint's storage"
    )


class RootedFiles(LocalFiles):
    """A checkpoint below a folder that its links may not leave: another process chose its location.

    Each call resolves the symbolic links of its path, and of the root.
    """

    def __init__(self, root: str, location: str) -> None:
        super().__init__(location)
        self._allowed = root

    def full_path(self, path: str) -> str:
        full = super().full_path(path)
        allowed, found = os.path.realpath(self._allowed), os.path.realpath(full)
        if os.path.commonpath((allowed, found)) != allowed:
            raise CheckpointError(
                "The file is outside of the checkpoint root: a symbolic link leads there",
                where=full,
                fix="Name the folder that it leads to with --checkpoint-root, or list the application",
            )
        return full
