"""Bases on the node's own disk: where they are, which are complete, and which may be reused after a restart.

The rule: `base.json` is written last, so a directory with one is complete. A base is reused only if its version is
still the committed one: same commit time, and the same source file where that still exists.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from xxhash import xxh3_64_hexdigest

from understudy_node.checkpoint.files import DISK_FULL, FetchMethod, FileStat
from understudy_shared.base.errors import LocalDiskError, UnderstudyError
from understudy_shared.base.files import PRIVATE_FOLDER, private_folder
from understudy_shared.base.words import ApplicationId, Lineage, TaskId

log = logging.getLogger(__name__)

RECORD = "base.json"
"""The file with the sum of a base's record, and the record."""

REOPEN_VERSIONS = 50
"""A snapshot this many versions newer than a local base replaces it: replaying would cost more than opening."""


FULL_BYTES = 1 << 16
"""A disk with less space is full: the next base or spill does not fit, and waits for no failure to be told."""


class BaseRecord(BaseModel):
    """The version and source file that a local base was made from."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Literal["zip", "snapshot"]
    version: int
    unique_id: str | None
    committed_at_ns: int | None
    source: tuple[int, int, int]
    total_keys: int | None
    row_checksum: bool
    merge_operator_version: int
    families: dict[str, int] = Field(default_factory=dict)
    """The ids of Spark's virtual column families."""

    def is_of(self, stat: FileStat) -> bool:
        """Whether the source file is still the one this base was made from."""
        return self.source == (stat.mtime_ns, stat.size, stat.inode)


@dataclass(frozen=True, slots=True)
class LocalBase:
    """A complete base on local disk."""

    directory: Path
    record: BaseRecord


def usable_again(base: BaseRecord, *, target: int, committed_at_ns: int | None, source: FileStat | None) -> bool:
    """Whether `base` still equals its source. It cannot be verified once its commit was purged."""
    if base.version > target or committed_at_ns is None or committed_at_ns != base.committed_at_ns:
        return False
    return source is None or base.is_of(source)


class LocalBases:
    """The local bases below `<root>/<application>/<lineage>/<operator>_<partition>/<store>/`, owned by one process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fetched: Counter[FetchMethod] = Counter()
        """Number of tables fetched, by method."""
        self._serials = count(1)
        try:
            root.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UnderstudyError(
                f"the data directory cannot be used: {error.strerror}",
                where=str(root),
                fix="Give another with --data-dir",
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UnderstudyError(
                "the data directory is in use by another node", where=str(root), fix="Give another with --data-dir"
            ) from None

    def release(self) -> None:
        """Let another process have the directory."""
        os.close(self._lock)

    def is_full(self) -> bool:
        """Whether this process can write nothing more to the disk; False where the system does not say it."""
        try:
            found = os.statvfs(self.root)
        except OSError:
            return False
        blocks = found.f_bavail if os.geteuid() else found.f_bfree  # some are kept for root
        return blocks * found.f_frsize < FULL_BYTES

    def keep_lineage(self, application_id: ApplicationId, lineage: Lineage) -> None:
        """Remove files of earlier lineages of the application."""
        for directory in (self.root / _plain(application_id)).glob("*"):
            if directory.name != _plain(lineage):
                shutil.rmtree(directory, ignore_errors=True)

    def store_directory(self, task: TaskId, lineage: Lineage, store_name: str) -> Path:
        return (
            self.root
            / _plain(task.application_id)
            / _plain(lineage)
            / f"{task.operator_id}_{task.partition}"
            / store_name
        )

    def new_directory(self, store: Path, version: int) -> Path:
        """Make a directory for a base at `version`, under an unused name: an existing one may be open."""
        while (directory := store / f"{version}-{next(self._serials)}").exists():
            pass
        with writing(directory):
            private_folder(self.root / store.relative_to(self.root).parts[0])  # the application's
            directory.mkdir(mode=PRIVATE_FOLDER, parents=True)
        return directory

    def finish(self, directory: Path, record: BaseRecord) -> LocalBase:
        """Record that a base is complete."""
        unfinished = directory / f".{RECORD}"
        content = record.model_dump_json().encode()
        unfinished.write_bytes(b"%b %b" % (xxh3_64_hexdigest(content).encode(), content))
        unfinished.replace(directory / RECORD)
        return LocalBase(directory, record)

    def whole(self, store: Path) -> Iterator[LocalBase]:
        """Yield the complete bases of a store, newest first."""
        found = [read_base(directory) for directory in (store.iterdir() if store.is_dir() else ())]
        yield from sorted(filter(None, found), key=lambda base: base.record.version, reverse=True)

    def disown(self, store: Path) -> None:
        """Prevent reuse of all bases of a store; the replica that has one open removes its files."""
        for directory in store.iterdir() if store.is_dir() else ():
            (directory / RECORD).unlink(missing_ok=True)

    def remove_others(self, store: Path, keep: Path | None) -> None:
        """Remove all files of a store but one base: left-overs of earlier processes."""
        for directory in store.iterdir() if store.is_dir() else ():
            if directory != keep:
                shutil.rmtree(directory, ignore_errors=True)


def read_base(directory: Path) -> LocalBase | None:
    """Read the record of a base; None where it is not complete, not to be reused, or damaged."""
    try:
        digest, _, content = (directory / RECORD).read_bytes().partition(b" ")
        if digest != xxh3_64_hexdigest(content).encode():
            log.error("%s is damaged", directory / RECORD, extra={"action": "local-base-dropped"})
            return None
        return LocalBase(directory, BaseRecord.model_validate_json(content))
    except (OSError, ValidationError):
        return None


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Translate failures of the local disk; on any failure, remove `directory`."""
    try:
        yield
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(error, OSError):
            full = error.errno in DISK_FULL
        elif type(error) is Exception:  # RocksDB's binding raises nothing more specific
            full = os.strerror(errno.ENOSPC) in str(error)
        else:
            raise
        raise LocalDiskError(
            "The disk is full" if full else f"The data directory cannot be written: {error}",
            where=str(directory.parent),
            fix=f"{'Free space' if full else 'Make it writable'} there, or give the node another --data-dir; the "
            "replica goes on by itself",
        ) from error


def _plain(name: str) -> str:
    """Escape a name for use as a directory."""
    return "".join(char if char.isalnum() or char in "-_." else f"%{ord(char):x}" for char in name).strip(".") or "_"
