"""Bases on the node's own disk: restored from snapshots in bounded steps, opened, and reused after a restart.

The rule: `base.json` is written last, so a directory with one is complete. A base is reused only if its version is
still the committed one: same commit time, and the same source file where that still exists.

RocksDB snapshots are Spark's own files, linked or downloaded and opened in place. Snapshots of the HDFS-backed provider
are linked or downloaded too, so that all of it is one version of the file, and decompressed once into an arena, piece
by piece. Where stored values carry Spark's row checksums, each is verified when it is read, and stripped: a row that
fails its checksum is an error, never an answer.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from xxhash import xxh3_64_hexdigest

from understudy_node.checkpoint.changelog import ChecksumError, strip_hdfs_value, strip_rocksdb_value
from understudy_node.checkpoint.compression import decompressed_pieces
from understudy_node.checkpoint.files import DISK_FULL, CheckpointFiles, FetchMethod, FileStat
from understudy_node.checkpoint.snapshots import (
    DEFAULT_MAX_ZIP_BYTES,
    SnapshotManifest,
    StateFile,
    parse_snapshot_zip,
)
from understudy_node.engine.arena_base import ArenaBase
from understudy_node.engine.arena_build import build_arena
from understudy_node.engine.arena_files import MAX_RECORDS_BYTES
from understudy_node.engine.base import Base, CachedBase, WrappingBase
from understudy_node.engine.rocksdb_base import BlockCache, RocksBase
from understudy_node.engine.scans import ScanOrder
from understudy_shared.base.errors import (
    CorruptFileError,
    LocalDiskError,
    SettingsError,
    UnderstudyError,
    VanishedError,
)
from understudy_shared.base.files import PRIVATE_FOLDER, private_folder
from understudy_shared.base.words import ApplicationId, Lineage, TaskId
from understudy_shared.bus.messages import Restore

log = logging.getLogger(__name__)

_TASK_NAME = re.compile(r"\d+_\d+")

RECORD = "base.json"
"""The file with the sum of a base's record, and the record."""

REOPEN_VERSIONS = 50
"""A snapshot this many versions newer than a local base replaces it: replaying would cost more than opening."""


STATE_CLEANUP_DELAY_MS = 600_000
"""Time for which the files of a task that is not held are kept: it may come back (Kafka Streams'
`state.cleanup.delay.ms`).
"""

FULL_BYTES = 1 << 16
"""A disk with less space counts as full: the next base or spill would not fit."""


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
        self._unheld_since_ms: dict[Path, float] = {}
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
        """Remove files of earlier lineages of the application, and nothing that is not ours."""
        for directory in (self.root / _plain(application_id)).glob("*"):
            if directory.name != _plain(lineage) and _is_of_a_lineage(directory):
                shutil.rmtree(directory, ignore_errors=True)

    def remove_unheld(
        self, application_id: ApplicationId, lineage: Lineage, held: Iterable[TaskId], *, now_ms: float
    ) -> list[str]:
        """Remove the files of tasks that were not held for STATE_CLEANUP_DELAY_MS, and return the tasks' names.

        An earlier process held them, or an earlier layout had them: no replica removes them when it leaves.
        """
        kept = {_task_name(task) for task in held}
        every = self._lineage_directory(application_id, lineage).glob("*_*")
        found = [each for each in every if each.name not in kept and _TASK_NAME.fullmatch(each.name)]
        self._unheld_since_ms = {each: self._unheld_since_ms.get(each, now_ms) for each in found}
        due = [each for each, since_ms in self._unheld_since_ms.items() if now_ms - since_ms >= STATE_CLEANUP_DELAY_MS]
        for directory in due:
            shutil.rmtree(directory, ignore_errors=True)
        return sorted(each.name for each in due)

    def store_directory(self, task: TaskId, lineage: Lineage, store_name: str) -> Path:
        return self._lineage_directory(task.application_id, lineage) / _task_name(task) / store_name

    def _lineage_directory(self, application_id: ApplicationId, lineage: Lineage) -> Path:
        return self.root / _plain(application_id) / _plain(lineage)

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


def require_apart(checkpoint: Path, root: Path, application_id: ApplicationId) -> None:
    """Raise SettingsError if local copies would lie in the checkpoint, or the checkpoint among them: they are removed
    when they are not needed any more.
    """
    checkpoint, root = checkpoint.resolve(), root.resolve()
    if root.is_relative_to(checkpoint) or checkpoint.is_relative_to(root / _plain(application_id)):
        raise SettingsError(
            f"the local copies would lie in the same folder as the checkpoint {checkpoint}",
            where=f"data_dir {root}",
            fix="Give a folder of its own with --data-dir, or leave it out",
        )


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
            "replica continues by itself",
        ) from error


def _task_name(task: TaskId) -> str:
    return f"{task.operator_id}_{task.partition}"


def _is_of_a_lineage(directory: Path) -> bool:
    """Whether a folder has folders of tasks and nothing else."""
    try:
        names = [each.name for each in directory.iterdir()]
    except OSError:  # a file, or not ours
        return False
    return bool(names) and all(map(_TASK_NAME.fullmatch, names))


def _plain(name: str) -> str:
    """Escape a name for use as a directory."""
    return "".join(char if char.isalnum() or char in "-_." else f"%{ord(char):x}" for char in name).strip(".") or "_"


CHOOSING, FETCHING, BUILDING, OPENING = "choosing a snapshot", "fetching files", "building", "opening"
REPLAYING = "replaying changes"
"""The base is open, and more than `acceptable_recovery_lag` versions are missing."""


class RestoreProgress:
    """The progress of one store. `total_bytes` is None while no snapshot was chosen."""

    __slots__ = ("done_bytes", "stage", "total_bytes")

    def __init__(self) -> None:
        self.stage = CHOOSING
        self.done_bytes = 0
        self.total_bytes: int | None = None

    def __repr__(self) -> str:
        return f"RestoreProgress({self.stage}, {self.done_bytes} of {self.total_bytes} bytes)"

    def begin(self, total_bytes: int) -> None:
        """Begin to fetch so many bytes; bytes of an earlier attempt count no more."""
        self.stage, self.done_bytes, self.total_bytes = FETCHING, 0, total_bytes

    def fetched(self, size_bytes: int) -> None:
        """Add bytes that have come to the local disk."""
        self.done_bytes += size_bytes


def of_all(stores: Collection[tuple[RestoreProgress, bool]]) -> Restore:
    """Merge the restores of stores, each with whether it is open: the stage is the first unopened one's."""
    stage = next((progress.stage for progress, is_open in stores if not is_open), REPLAYING)
    sizes = [progress.total_bytes for progress, is_open in stores if progress.total_bytes is not None or not is_open]
    known = [size for size in sizes if size is not None]
    return Restore(
        stage=stage,
        done_bytes=sum(progress.done_bytes for progress, _ in stores),
        total_bytes=sum(known) if len(known) == len(sizes) else None,
    )


class ChecksumBase(WrappingBase):
    """`base` without its checksums. `verified(key, stored)` returns the value, or raises ChecksumError."""

    def __init__(self, base: Base, verified: Callable[[bytes, bytes], bytes]) -> None:
        super().__init__(base)
        self._verified = verified

    def get(self, key: bytes) -> bytes | None:
        return self._strip(key, self._base.get(key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._strip(key, stored) for key, stored in zip(keys, self._base.get_many(keys), strict=True)]

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        for key, stored in self._base.scan(start, end):
            value = self._strip(key, stored)
            if value is not None:
                yield key, value

    def _strip(self, key: bytes, stored: bytes | None) -> bytes | None:
        if stored is None:
            return None
        try:
            return self._verified(key, stored)
        except ChecksumError as error:
            raise CorruptFileError(
                f"a row of the snapshot is damaged: {error}",
                where=f"{self._base!r}, key {key[:32].hex()}",
                fix="Check the storage; restore this partition again from the checkpoint",
            ) from None


@dataclass(frozen=True, slots=True)
class ChosenSnapshot:
    """A chosen snapshot, and the log's record of its version."""

    file: StateFile
    directory: str
    committed_at_ns: int | None
    row_checksum: bool
    merge_operator_version: int
    order: ScanOrder | None = None
    """Order of the keys for readers that scan them; None where no reader scans."""

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.file.name}"

    def record(self, source: FileStat, manifest: SnapshotManifest | None) -> BaseRecord:
        """Make the record of the base. `manifest` is a RocksDB snapshot's."""
        return BaseRecord(
            kind="zip" if self.file.kind == "zip" else "snapshot",
            version=self.file.version,
            unique_id=self.file.unique_id,
            committed_at_ns=self.committed_at_ns,
            source=(source.mtime_ns, source.size, source.inode),
            total_keys=None if manifest is None else manifest.total_keys,
            row_checksum=self.row_checksum,
            merge_operator_version=self.merge_operator_version,
            families={} if manifest is None else dict(manifest.column_families),
        )


Restoring = Generator[None, None, Base]


def restore(  # noqa: PLR0917  # what is restored, from where, to where; and who hears of it
    snapshot: ChosenSnapshot,
    files: CheckpointFiles,
    disk: LocalBases,
    store: Path,
    cache: BlockCache,
    progress: RestoreProgress | None = None,
) -> Restoring:
    """Fetch a snapshot to local disk and open it. VanishedError: choose again. A failure leaves no files behind."""
    progress = progress or RestoreProgress()
    directory = disk.new_directory(store, snapshot.file.version)
    with writing(directory), _blaming(snapshot, files, directory):
        source = files.stat(snapshot.path)
        if source is None:
            raise VanishedError("the snapshot is gone", where=snapshot.path)
        manifest: SnapshotManifest | None = None
        if snapshot.file.kind == "zip":
            manifest = yield from _fetch_rocksdb(snapshot, files, disk, directory, progress)
        else:
            progress.begin(source.size)
            yield from _fetch_arena(snapshot, files, directory, progress)
        if files.stat(snapshot.path) not in (source, None):
            raise VanishedError("the snapshot was rewritten while it was read", where=snapshot.path)
        base = disk.finish(directory, snapshot.record(source, manifest))
        progress.stage = OPENING
        yield
        return open_base(base, cache, snapshot.order)


def open_base(local: LocalBase, cache: BlockCache, order: ScanOrder | None = None) -> Base:
    """Open a complete base from local disk. `order`: the order of its keys, for readers who scan."""
    return CachedBase(_opened(local, cache, order or ScanOrder()), cache.rows, local.record.families)


def _opened(local: LocalBase, cache: BlockCache, order: ScanOrder) -> Base:
    record = local.record
    if record.kind == "snapshot":
        arena = ArenaBase.open(local.directory)
        if not record.row_checksum:
            return arena
        return ChecksumBase(arena, lambda key, stored: strip_hdfs_value(order.original(key), stored))
    database = RocksBase.open(local.directory, cache=cache, expected_keys=record.total_keys)
    if not record.row_checksum:
        return database
    delimiter = b"," if record.merge_operator_version == 1 else b""
    return ChecksumBase(database, partial(strip_rocksdb_value, delimiter=delimiter))


def _fetch_arena(
    snapshot: ChosenSnapshot, files: CheckpointFiles, directory: Path, progress: RestoreProgress
) -> Generator[None, None, None]:
    compressed = directory / snapshot.file.name
    files.fetch(snapshot.path, compressed)
    progress.fetched(compressed.stat().st_size)
    progress.stage = BUILDING
    yield
    pieces: Iterable[bytes | memoryview] = decompressed_pieces(
        compressed, name=snapshot.path, max_bytes=MAX_RECORDS_BYTES
    )
    if snapshot.order is not None:
        pieces = snapshot.order.pieces(pieces, where=snapshot.path)
    for _ in build_arena(directory, pieces):
        yield
    compressed.unlink()


def _fetch_rocksdb(
    snapshot: ChosenSnapshot, files: CheckpointFiles, disk: LocalBases, directory: Path, progress: RestoreProgress
) -> Generator[None, None, SnapshotManifest]:
    data = files.read(snapshot.path, DEFAULT_MAX_ZIP_BYTES)
    manifest = parse_snapshot_zip(data, name=snapshot.path, merge_operator_version=snapshot.merge_operator_version)
    _write_members(manifest, directory)
    progress.begin(sum(table.size_bytes for table in manifest.sst_files))
    for table in manifest.sst_files:
        destination = directory / table.local_name
        disk.fetched[files.fetch(f"{snapshot.directory}/SSTs/{table.dfs_name}", destination)] += 1
        size_bytes = destination.stat().st_size
        if size_bytes != table.size_bytes:
            raise CorruptFileError(
                f"the table has {size_bytes} bytes where the snapshot says {table.size_bytes}",
                where=f"{snapshot.directory}/SSTs/{table.dfs_name}",
                fix="The replica restores from another snapshot when there is one; check the storage",
            )
        progress.fetched(size_bytes)
        yield
    return manifest


def _write_members(manifest: SnapshotManifest, directory: Path) -> None:
    for name, content in manifest.members.items():
        (directory / name).write_bytes(content)


@contextmanager
def _blaming(snapshot: ChosenSnapshot, files: CheckpointFiles, directory: Path) -> Generator[None, None, None]:
    """Report damage of the local copy as the snapshot's: the copy is removed, so only the snapshot can be examined."""
    try:
        yield
    except CorruptFileError as damage:
        if str(directory) not in damage.where:
            raise
        raise CorruptFileError(
            damage.what,
            where=f"{files.url}/{snapshot.path}",
            fix="The replica restores from another snapshot when there is one; check the storage",
        ) from damage
