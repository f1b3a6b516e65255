"""One store of a task on its way through the committed versions: restore, advance, rebase, shrink.

Everything here works on `self.view`, which readers do not see: the task publishes it when all its stores stand at one
version. Each method is a generator of bounded steps. What decides is the commit log: in format v2 a file is read by the
unique id that the commit names; in format v1 it is read after its commit exists, and remembered so that a later
rewrite is noticed.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

from understudy_node.checkpoint.changelog import (
    Changelog,
    Form,
    LineageItem,
    Operation,
    iter_changelog_slices,
    parse_header,
)
from understudy_node.checkpoint.compression import decompress
from understudy_node.checkpoint.files import CheckpointFiles, FileStat
from understudy_node.checkpoint.snapshots import StateFile, choose_snapshot, parse_state_files
from understudy_node.engine.base import Base, EmptyBase
from understudy_node.engine.operations import resolve_operations
from understudy_node.engine.rocksdb_base import BlockCache
from understudy_node.engine.spill import Spill, write_spill
from understudy_node.engine.view import View
from understudy_node.follow.history import CommitRecord, History
from understudy_node.replica.local_bases import REOPEN_VERSIONS, LocalBase, LocalBases, usable_again
from understudy_node.replica.restore import Snapshot, open_base, restore
from understudy_node.replica.task_view import Mark
from understudy_shared.errors import CheckpointError, CorruptFileError, VanishedError
from understudy_shared.words import Lineage, TaskId

Steps = Generator[None, None, None]

MAX_CHANGELOG_BYTES = 4 << 30
"""Cap of one decompressed changelog: what one micro-batch changed in one partition."""


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where one store of a task lives: its directory in the checkpoint, and its index in the commit's unique ids."""

    name: str
    directory: str
    index: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all replicas of a node share."""

    files: CheckpointFiles
    history: History
    disk: LocalBases
    cache: BlockCache
    overlay_max_bytes: int
    """Changes kept in memory per store partition before they go to a newer base or to disk."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A changelog file, read and decoded, and what it was like then."""

    name: str
    stat: FileStat
    changes: dict[bytes, bytes | None]
    operations: tuple[Operation, ...]


@dataclass(slots=True)
class StoreReplica:
    """The working state of one store. `marks` only grow; a rebuild starts a new object."""

    task: TaskId
    lineage: Lineage
    place: StorePlace
    around: Surroundings
    view: View | None = None
    marks: set[Mark] = field(default_factory=set)
    _prefetched: _Read | None = None
    _applied: _Read | None = None
    _damaged: set[str] = field(default_factory=set)

    @property
    def version(self) -> int:
        """Where it stands; -1 before its base is open."""
        return -1 if self.view is None else self.view.version

    def restore(self, target: int) -> Steps:
        """Open the best base at or below `target`: a local one when it is recent, else the newest snapshot."""
        chosen = self._choose(target, above=0)
        local = self._local(target, newest=chosen.version if chosen else 0)
        keep: Path | None = None
        base: Base = EmptyBase()
        version = 0
        if local is not None:
            base, keep, version = open_base(local, self.around.cache), local.directory, local.record.version
        elif chosen is not None:
            base, keep = yield from self._restore_from(chosen)
            version = chosen.version
        self.around.disk.remove_others(self._local_store, keep)
        self.view = View.of(base, version)
        yield

    def advance(self, target: int) -> Steps:
        """Move to the next version, or to a newer snapshot when the next changelog is not there."""
        assert self.view is not None, "advance follows restore"
        version = self.view.version + 1
        record = self.around.history.record(version)
        try:
            read = None if record is None else (yield from self._read(version, record))
        except CorruptFileError as damage:
            yield from self._jump(target, damage)
            return
        if record is None or read is None:
            yield from self._jump(target, None)
            return
        self._notice_rewrite()
        changes = read.changes
        if read.operations:
            delimiter = b"," if record.offsets.properties.merge_operator_version == 1 else b""
            before = self.view.with_changes(changes, version)
            changes = {**changes, **resolve_operations(before, read.operations, delimiter)}
        self.view = self.view.with_changes(changes, version)
        self._applied, self._prefetched = read, None

    def prefetch(self, version: int) -> Steps:
        """Read what may become `version` before its commit exists; `advance` uses it only if it is the very file."""
        if self._prefetched is not None or self.view is None or self.view.version != version - 1:
            return
        latest = self.around.history.record(version - 1)
        names = self._uncommitted_names(version, latest)
        if latest is None or len(names) != 1:
            return
        try:
            self._prefetched = yield from self._decode(names[0], latest)
        except CheckpointError:
            return  # not committed, not ours to judge: the commit decides, and then it is read again

    def shrink(self) -> Steps:
        """Bring the overlay under its budget: onto a newer snapshot if there is one, else to disk."""
        view = self.view
        if view is None or view.overlay_bytes <= self.around.overlay_max_bytes:
            return
        newer = self._choose(view.version, above=view.base_version)
        if newer is not None:
            base, _ = yield from self._restore_from(newer)
            self._replace_base(base, newer.version)
            return
        directory = self.around.disk.new_directory(self._local_store, view.version)
        for _ in write_spill(view.tiers, directory, below=view.spill):
            yield
        spill = Spill.open(directory, cache=self.around.cache)
        if view.spill is not None:
            view.spill.remove_when_unused()
        self.view = view.with_spill(spill)

    @property
    def over_budget(self) -> bool:
        return self.view is not None and self.view.overlay_bytes > self.around.overlay_max_bytes

    def _jump(self, target: int, damage: CorruptFileError | None) -> Steps:
        """The next changelog cannot be had: no changelogs at all, a version with a snapshot only, purged, or damaged."""
        assert self.view is not None
        newer = self._choose(target, above=self.view.version)
        if newer is None:
            raise damage or CheckpointError(
                f"version {self.view.version + 1} of {self.task} has neither changelog nor snapshot",
                where=f"{self.around.files.url}/{self.place.directory}",
                fix="It may still be arriving. If it stays: a file was deleted by hand, and the store follows again from "
                "Spark's next snapshot",
            )
        base, _ = yield from self._restore_from(newer)
        self._replace_base(base, newer.version, version=newer.version)
        self._applied = self._prefetched = None

    def _replace_base(self, base: Base, base_version: int, *, version: int | None = None) -> None:
        assert self.view is not None
        before = self.view
        self.view = before.with_base(base, base_version) if version is None else View.of(base, version)
        before.base.remove_when_unused()
        if before.spill is not None and self.view.spill is None:
            before.spill.remove_when_unused()

    def _restore_from(self, file: StateFile) -> Generator[None, None, tuple[Base, Path]]:
        record = self.around.history.record(file.version)
        # A purged commit: Spark changes these settings at a restart only, so those of the oldest known batch are next best.
        properties = self.around.history.nearest(file.version).offsets.properties
        snapshot = Snapshot(
            file=file,
            directory=self.place.directory,
            committed_at_ns=None if record is None else record.committed_at_ns,
            row_checksum=properties.row_checksum,
            merge_operator_version=properties.merge_operator_version,
        )
        around = self.around
        try:
            return (yield from restore(snapshot, around.files, around.disk, self._local_store, around.cache))
        except CorruptFileError:
            self._damaged.add(file.name)  # the next choice is an older one, or a newer one once Spark has written it
            raise

    def _choose(self, target: int, *, above: int) -> StateFile | None:
        """The newest committed snapshot in (above, target] that is not known to be damaged, from a fresh listing."""
        names = self.around.files.list(self.place.directory) or []
        found = [file for file in parse_state_files(names) if file.version > above and file.name not in self._damaged]
        mtimes_ns = self._mtimes(found)
        choice = choose_snapshot(
            found, at_most_version=target, wanted_unique_ids=self._wanted(found, target), mtimes_ns=mtimes_ns
        )
        if any(left_out.reason == "stale-snapshot" for left_out in choice.left_out):
            self.marks.add(Mark.STALE_SNAPSHOT)
        return choice.chosen

    def _mtimes(self, found: list[StateFile]) -> dict[str, int]:
        """Modification times of HDFS-backed snapshots and of their versions' deltas."""
        names = [name for file in found if file.kind == "snapshot" for name in (file.name, f"{file.version}.delta")]
        stats = {name: self.around.files.stat(f"{self.place.directory}/{name}") for name in names}
        return {name: stat.mtime_ns for name, stat in stats.items() if stat is not None}

    def _wanted(self, found: list[StateFile], target: int) -> dict[int, str] | None:
        """Format v2: the committed attempt of every version with a snapshot; None when the checkpoint is v1 throughout."""
        history = self.around.history
        newest = history.record(target)
        if all(file.unique_id is None for file in found) and (newest is None or newest.commit.unique_ids is None):
            return None
        wanted: dict[int, str] = {}
        for version in {file.version for file in found if file.is_snapshot and file.version <= target}:
            record = history.record(version)
            unique_id = None if record is None else self._unique_id(record)
            if unique_id is not None:
                wanted[version] = unique_id
        # A snapshot may outlive its commit file: the newest changelog's lineage names it.
        return {item.version: item.unique_id for item in self._lineage_at(target, newest)} | wanted

    def _lineage_at(self, target: int, record: CommitRecord | None) -> tuple[LineageItem, ...]:
        if record is None or (unique_id := self._unique_id(record)) is None:
            return ()
        path = f"{self.place.directory}/{target}_{unique_id}.changelog"
        try:
            raw = decompress(self.around.files.read(path), name=path, max_bytes=MAX_CHANGELOG_BYTES)
        except (VanishedError, CorruptFileError):
            return ()
        return parse_header(raw, name=path, form="changelog").lineage or ()

    def _local(self, target: int, *, newest: int) -> LocalBase | None:
        """The newest local base that may be used again."""
        around = self.around
        for base in around.disk.whole(self._local_store):
            record = base.record
            if newest - record.version > REOPEN_VERSIONS:
                return None
            source = self._stat(_file_name(record.version, record.unique_id, record.kind))
            committed_at_ns = around.history.commit_time_ns(record.version)
            if usable_again(record, target=target, committed_at_ns=committed_at_ns, source=source):
                return base
        return None

    @property
    def _local_store(self) -> Path:
        return self.around.disk.store_directory(self.task, self.lineage, self.place.name)

    def _unique_id(self, record: CommitRecord) -> str | None:
        return record.unique_id(self.task.operator_id, self.task.partition, self.place.index)

    def _read(self, version: int, record: CommitRecord) -> Generator[None, None, _Read | None]:
        """The committed changelog of `version`; None when there is no such file."""
        kind = "delta" if record.offsets.properties.provider == "hdfs" else "changelog"
        name = _file_name(version, self._unique_id(record), kind)
        ahead = self._prefetched
        if ahead is not None and ahead.name == name and ahead.stat == self._stat(name):
            return ahead
        self._prefetched = None
        return (yield from self._decode(name, record))

    def _decode(self, name: str, record: CommitRecord) -> Generator[None, None, _Read | None]:
        path = f"{self.place.directory}/{name}"
        stat = self._stat(name)
        if stat is None:
            return None
        raw = decompress(self.around.files.read(path), name=path, max_bytes=MAX_CHANGELOG_BYTES)
        slices: list[Changelog] = []
        form: Form = "delta" if name.endswith(".delta") else "changelog"
        checksums = record.offsets.properties.row_checksum
        for part in iter_changelog_slices(raw, name=path, form=form, row_checksum=checksums):
            slices.append(part)
            if len(slices) > 1:
                yield
        if self._stat(name) != stat:
            raise VanishedError("the changelog was rewritten while it was read", where=path)
        changes = slices[0].changes
        for part in slices[1:]:
            changes.update(part.changes)
        operations = tuple(operation for part in slices for operation in part.operations)
        return _Read(name, stat, changes, operations)

    def _stat(self, name: str) -> FileStat | None:
        return self.around.files.stat(f"{self.place.directory}/{name}")

    def _uncommitted_names(self, version: int, latest: CommitRecord | None) -> list[str]:
        """What the next version's changelog may be called; in format v2 only a listing tells."""
        if latest is None:
            return []
        kind = "delta" if latest.offsets.properties.provider == "hdfs" else "changelog"
        if self._unique_id(latest) is None:
            return [_file_name(version, None, kind)]
        names = self.around.files.list(self.place.directory) or []
        return [file.name for file in parse_state_files(names) if file.version == version and file.kind == kind]

    def _notice_rewrite(self) -> None:
        """Format v1: a file that changed after it was applied means that its content at the commit is not known."""
        before = self._applied
        if before is None:
            return
        now = self._stat(before.name)
        if now is not None and now != before.stat:
            self.marks.add(Mark.UNVERIFIABLE_V1)
            raise RewrittenError(
                f"{before.name} was rewritten after its commit",
                where=self.place.directory,
                fix="Switch the query to checkpoint format v2 (spark.sql.streaming.stateStore.checkpointFormatVersion=2)",
            )


class RewrittenError(CheckpointError):
    """A committed file changed under us: the task is rebuilt from what is there now, and marked."""


def _file_name(version: int, unique_id: str | None, kind: str) -> str:
    return f"{version}.{kind}" if unique_id is None else f"{version}_{unique_id}.{kind}"
