"""The files of the checkpoint that give a version of a store: the base to start from, and each commit's changelog.

The commit log must vouch for a base; a snapshot that turned out damaged is not chosen again. Spark restarts from the
same files, so if one is gone the query cannot be restarted, whatever a node still has in memory.

A changelog is read ahead of its commit where it can be. In format v2 the unique id in the commit names it, so it cannot
be another attempt's. A file read before its commit is used only if it is still the same file after it; in v1 the file
applied last is checked again. A re-run batch, a rewritten delta or a dead attempt never reaches a reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from understudy_node.checkpoint.changelog import (
    Changelog,
    ChangelogOperation,
    Form,
    LineageItem,
    iter_changelog_slices,
    parse_header,
)
from understudy_node.checkpoint.compression import decompress
from understudy_node.checkpoint.files import CheckpointFiles, FileStat
from understudy_node.checkpoint.logs import COPY_AGAIN
from understudy_node.checkpoint.snapshots import (
    DEFAULT_MAX_ZIP_BYTES,
    StateFile,
    choose_snapshot,
    committed_unique_ids,
    extend_by_lineage,
    parse_snapshot_zip,
    parse_state_files,
)
from understudy_node.follow.history import CommitHistory, CommitRecord
from understudy_node.replica.local_bases import REOPEN_VERSIONS, LocalBase, usable_again
from understudy_node.replica.replica_context import StorePlace, Surroundings, file_name
from understudy_shared.base.errors import CheckpointError, CorruptFileError, MissingVersionError, VanishedError
from understudy_shared.bus.messages import task_key

MAX_CHANGELOG_BYTES = 4 << 30
"""Limit on a decompressed changelog: the changes of one micro-batch in one partition."""


class RewrittenError(CheckpointError):
    """A committed file changed after it was applied: the task is marked and rebuilt from the present files."""


@dataclass(frozen=True, slots=True)
class ReadChangelog:
    """A decoded changelog file, and its stat when it was read."""

    name: str
    stat: FileStat
    lineage: tuple[LineageItem, ...] | None
    changes: dict[bytes, bytes | None]
    operations: tuple[ChangelogOperation, ...]


class ChangelogReader:
    """The reader of one store's changelogs. It holds at most one read ahead, and which one was applied last."""

    def __init__(self, place: StorePlace, around: Surroundings) -> None:
        self._place = place
        self._around = around
        self._ahead: ReadChangelog | None = None
        self._applied: tuple[str, FileStat] | None = None
        self._listed: FileStat | None = None
        """The stat of the directory at its last listing. While it is the same, the directory has no new files."""

    def read(self, record: CommitRecord) -> Generator[None, None, ReadChangelog | None]:
        """Read the changelog of a committed version; None when there is no such file."""
        name = changelog_name(self._place, record)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.name == name and ahead.stat == self._stat(name):
            return ahead
        return (yield from self._decode(name, record))

    @property
    def has_read_ahead(self) -> bool:
        """Whether the next version's changelog was read before its commit."""
        return self._ahead is not None

    def read_ahead(self, latest: CommitRecord) -> Generator[None, None, None]:
        """Read the probable changelog of the version after `latest`, before its commit exists."""
        if self._ahead is not None:
            return
        names = self._uncommitted_names(latest)
        if len(names) != 1:  # absent, or several attempts: only the commit names the winner
            return
        try:
            # Whether it is still this file is checked after the commit.
            self._ahead = yield from self._decode(names[0], latest)
        except CheckpointError:
            self._listed = None  # an uncommitted file may be incomplete: it is read again, after the commit at last

    def applied(self, read: ReadChangelog) -> None:
        """Remember the changelog that became part of the view; one with a lineage is the only one of its name."""
        self._applied = (read.name, read.stat) if read.lineage is None else None

    def forget(self) -> None:
        """Drop what was read: the view was rebuilt on a snapshot."""
        self._ahead = self._applied = self._listed = None

    def check_last_applied(self) -> None:
        """Raise RewrittenError when the file applied last has changed."""
        if self._applied is None:
            return
        name, stat = self._applied
        now = self._stat(name)
        if now is not None and now != stat:
            raise RewrittenError(
                f"{name} was rewritten after its commit",
                where=f"{self._around.files.url}/{self._place.directory}",
                fix="Use checkpoint format v2: spark.sql.streaming.stateStore.checkpointFormatVersion=2 with RocksDB",
            )

    def _decode(self, name: str, record: CommitRecord) -> Generator[None, None, ReadChangelog | None]:
        path = f"{self._place.directory}/{name}"
        try:
            (content,) = self._around.files.read_all([path])
        except VanishedError:
            if self._stat(name) is None:
                return None
            raise  # rewritten meanwhile
        raw = decompress(content.data, name=path, max_bytes=MAX_CHANGELOG_BYTES)
        form: Form = "delta" if name.endswith(".delta") else "changelog"
        row_checksum = record.offsets.properties.row_checksum
        slices: list[Changelog] = []
        for part in iter_changelog_slices(raw, name=path, form=form, row_checksum=row_checksum):
            if slices:
                yield
            slices.append(part)
        changes = slices[0].changes
        for part in slices[1:]:
            changes.update(part.changes)
        if self._place.order is not None:
            changes = self._place.order.changes(changes)
        operations = tuple(operation for part in slices for operation in part.operations)
        return ReadChangelog(name, content.stat, slices[0].lineage, changes, operations)

    def _uncommitted_names(self, latest: CommitRecord) -> list[str]:
        """Possible names of the next version's changelog; format v2 needs a listing."""
        version, kind = latest.version + 1, _kind(latest)
        if self._place.unique_id(latest) is None:
            return [file_name(version, None, kind)]
        files, directory = self._around.files, self._place.directory
        # A new file changes its directory's stat, which costs a tenth of a listing and does not grow with the files.
        # Where one comes within the resolution of the clock it is missed here, and read after its commit.
        now = files.stat(directory)
        if now is not None and now == self._listed:
            return []
        prefix = f"{version}_"
        names = [name for name in files.list(directory) or () if name.startswith(prefix)]
        self._listed = now
        return [file.name for file in parse_state_files(names) if file.version == version and file.kind == kind]

    def _stat(self, name: str) -> FileStat | None:
        return self._around.files.stat(f"{self._place.directory}/{name}")


def changelog_name(place: StorePlace, record: CommitRecord) -> str:
    """Return the name of the changelog that a commit refers to."""
    return file_name(record.version, place.unique_id(record), _kind(record))


def _kind(record: CommitRecord) -> str:
    return "delta" if record.offsets.properties.provider == "hdfs" else "changelog"


MAX_MISSES = 3
"""Number of listings that may lack a file of a snapshot; in format v1, Spark may just be replacing a zip."""


@dataclass(frozen=True, slots=True)
class SnapshotSearch:
    """The snapshot to use, if any, and whether the search met a stale one."""

    chosen: StateFile | None
    met_stale: bool


@dataclass(slots=True)
class BaseChoice:
    """The choice of bases for one store. `damage` is the error of the last rejected snapshot."""

    place: StorePlace
    files: CheckpointFiles
    history: CommitHistory
    damage: CheckpointError | None = None
    _damaged: set[str] = field(default_factory=set)
    _misses: Counter[str] = field(default_factory=Counter)

    def reject(self, file: StateFile, damage: CheckpointError) -> None:
        """Leave a damaged snapshot out of the choice until `forgive`."""
        self._damaged.add(file.name)
        self.damage = damage

    def miss(self, file: StateFile, gone: VanishedError) -> None:
        """Count a missing file. Spark's clean-up removes the whole snapshot: one that stays incomplete is damaged."""
        self._misses[file.name] += 1
        if self._misses[file.name] >= MAX_MISSES:
            damage = CorruptFileError(
                f"snapshot {file.name} lacks a file that it names",
                where=gone.where,
                fix="The store starts from another snapshot when there is one, else from the next that Spark writes",
            )
            self.reject(file, damage)

    def forgive(self) -> None:
        """Choose among all snapshots again; `damage` stays."""
        self._damaged.clear()
        self._misses.clear()

    def snapshot(self, target: int, *, above: int) -> SnapshotSearch:
        """Find the newest committed snapshot in (above, target], from a fresh listing."""
        names = self.files.list(self.place.directory) or []
        listed = parse_state_files(names)
        found = [file for file in listed if file.version > above and file.name not in self._damaged]
        chosen, left_out = choose_snapshot(
            found,
            at_most_version=target,
            wanted_unique_ids=self._committed_ids(found, target),
            mtimes_ns=self._mtimes_ns(found, listed),
        )
        if chosen is not None and not self.place.fits(self.history.nearest(chosen.version)):
            chosen = None  # An older one does not fit either: the layout changed between it and the target.
        return SnapshotSearch(chosen, "stale-snapshot" in left_out.values())

    def local(self, bases: Iterable[LocalBase], target: int, *, newest_snapshot: int) -> LocalBase | None:
        """Return the newest reusable local base that is not far below the newest snapshot."""
        for base in bases:
            record = base.record
            if newest_snapshot - record.version > REOPEN_VERSIONS:
                return None
            name = file_name(record.version, record.unique_id, record.kind)
            source = self.files.stat(f"{self.place.directory}/{name}")
            commit = self.history.record(record.version)
            if commit is None or not self.place.fits(commit):
                continue
            if usable_again(record, target=target, committed_at_ns=commit.committed_at_ns, source=source):
                return base
        return None

    def _committed_ids(self, found: list[StateFile], target: int) -> dict[int, str] | None:
        """Return format v2's committed attempt per version with a snapshot; None when all of the checkpoint is v1."""
        history = self.history
        newest = history.record(target)
        if all(file.unique_id is None for file in found) and (newest is None or newest.commit.unique_ids is None):
            return None
        versions = {file.version for file in found if file.is_snapshot and file.version <= target}
        records = [record for version in versions if (record := history.record(version)) is not None]
        task = self.place.task
        known = committed_unique_ids(
            (record.commit for record in records),
            operator_id=task.operator_id,
            partition=task.partition,
            store_index=self.place.index,
        )
        # A snapshot may outlive its commit file: the newest changelog's lineage still names it.
        lineage = committed_lineage(self.place, self.files, newest)
        return extend_by_lineage(known or {}, lineage, name=self.place.directory)

    def _mtimes_ns(self, found: list[StateFile], listed: list[StateFile]) -> dict[str, int]:
        """Return format v1's modification times of snapshots and of the deltas or changelogs of the same versions.

        A snapshot with other column families than the one before it is left out: every attempt writes it before its
        changelog, so it is older without being a dead attempt's. One that is older than the commit before it stays in:
        a rewind has taken it back, and other code may have run since.
        """
        names = {file.name for file in listed}
        pairs = [(file, changes) for file in found if (changes := file.changes_beside) in names]
        wanted = [name for file, changes in pairs for name in (file.name, changes) if name]
        stats = self.files.stats([f"{self.place.directory}/{name}" for name in wanted])
        times = {name: stat.mtime_ns for name, stat in zip(wanted, stats, strict=True) if stat is not None}
        if self.place.has_families:
            for file, changes in pairs:
                is_forced = _is_older(times, file.name, changes) and self._changes_families(file, listed)
                if is_forced and times[file.name] >= self._begun_ns(file.version):
                    del times[file.name]
        return times

    def _begun_ns(self, version: int) -> int:
        """Return when the batch before a version was committed: the version was begun after that. 0 if it is purged."""
        before = self.history.record(version - 1)
        return 0 if before is None else before.committed_at_ns

    def _changes_families(self, file: StateFile, listed: list[StateFile]) -> bool:
        """Whether a snapshot has other column families than the one before it, if any is left."""
        before = [each for each in listed if each.is_snapshot and each.version < file.version]
        try:
            return self._families(file) != (self._families(before[-1]) if before else {})
        except (VanishedError, CorruptFileError):
            return False

    def _families(self, file: StateFile) -> dict[str, int]:
        path = f"{self.place.directory}/{file.name}"
        data = self.files.read(path, DEFAULT_MAX_ZIP_BYTES)
        return dict(parse_snapshot_zip(data, name=path, merge_operator_version=1).column_families)


def _is_older(times: Mapping[str, int], name: str, other: str | None) -> bool:
    own, others = times.get(name), times.get(other or "")
    return own is not None and others is not None and own < others


def committed_lineage(
    place: StorePlace, files: CheckpointFiles, record: CommitRecord | None
) -> tuple[LineageItem, ...]:
    """Return the attempts that a committed changelog names, since the snapshot before it; empty in format v1."""
    if record is None or (unique_id := place.unique_id(record)) is None:
        return ()
    path = f"{place.directory}/{file_name(record.version, unique_id, 'changelog')}"
    try:
        raw = decompress(files.read(path), name=path, max_bytes=MAX_CHANGELOG_BYTES)
        return parse_header(raw, name=path, form="changelog").lineage or ()
    except (VanishedError, CorruptFileError):
        return ()


class ReachingHistory(CommitHistory):
    """The committed history, with substitutes for the purged commits before `version`, as its restore needs them."""

    def __init__(self, history: CommitHistory, files: CheckpointFiles, place: StorePlace, version: int) -> None:
        super().__init__(files)
        self._history = history
        self._place = place
        self._version = version

    def record(self, version: int) -> CommitRecord | None:
        known = self._history.record(version)
        if known is not None or not 1 <= version < self._version:
            return known
        oldest = self._history.nearest(version)
        if oldest.version > self._version:
            return None
        unique_ids = None
        if oldest.commit.unique_ids is not None:
            task, index = self._place.task, self._place.index
            named = self._lineage.get(version)
            if named is None:
                return None
            stores = (*("",) * index, named)  # the attempts of its other stores are not asked for here
            unique_ids = {task.operator_id: (*((),) * task.partition, stores)}
        commit = replace(oldest.commit, batch_id=version - 1, unique_ids=unique_ids)
        return replace(oldest, version=version, commit=commit, committed_at_ns=0, digest="")

    @cached_property
    def _lineage(self) -> dict[int, str]:
        """The attempts that the changelog of the version names, by version."""
        items = committed_lineage(self._place, self._files, self._history.record(self._version))
        return {item.version: item.unique_id for item in items}


def missing_version(place: StorePlace, version: int, url: str) -> MissingVersionError:
    """Make the error for a version without its changelog, and without a snapshot at or above it."""
    return MissingVersionError(
        f"version {version} of {task_key(place.task)} has neither changelog nor snapshot",
        where=f"{url}/{place.directory}",
        fix=f"A file was deleted, or the copy lacks it. {COPY_AGAIN}. A running query continues, and the store from "
        "Spark's next snapshot",
    )


def missing_snapshot(place: StorePlace, url: str) -> MissingVersionError:
    """Make the error for a missing snapshot of a store with tables that only a snapshot names."""
    return MissingVersionError(
        f"{task_key(place.task)} has no snapshot yet, which says where its tables are",
        where=f"{url}/{place.directory}",
        fix="Spark writes one after the first batch: the node looks again by itself",
    )


def missing_of(
    place: StorePlace, files: CheckpointFiles, history: CommitHistory, target: int
) -> Iterator[CheckpointError]:
    """Yield the obstacles to rebuilding version `target` of a store; nothing if all its files are there."""
    history = ReachingHistory(history, files, place, target)
    choice = BaseChoice(place, files, history)
    while (snapshot := choice.snapshot(target, above=0).chosen) is not None:
        damage = _damage_of(snapshot, place, files)
        if damage is None:
            break
        choice.reject(snapshot, damage)
    if snapshot is None and place.has_families:
        yield choice.damage or missing_snapshot(place, files.url)
        return
    versions = range(1 if snapshot is None else snapshot.version + 1, target + 1)
    records = [history.record(version) for version in versions]
    names = [None if each is None or not place.fits(each) else changelog_name(place, each) for each in records]
    there = iter(files.stats([f"{place.directory}/{name}" for name in names if name is not None]))
    found = [None if name is None else next(there) for name in names]
    if choice.damage is not None and not all(found):
        yield choice.damage
    for version, name, stat in zip(versions, names, found, strict=True):
        if stat is None:
            yield missing_version(place, version, files.url)
        elif not stat.size:
            yield CorruptFileError("The file is empty: it has 0 bytes", where=f"{place.directory}/{name}")


def _damage_of(snapshot: StateFile, place: StorePlace, files: CheckpointFiles) -> CheckpointError | None:
    """Return why a snapshot is not whole, by names and sizes of files."""
    path = f"{place.directory}/{snapshot.name}"
    try:
        if snapshot.kind != "zip":
            found = files.stat(path)
            return None if found is None or found.size else CorruptFileError("The snapshot is empty", where=path)
        data = files.read(path, DEFAULT_MAX_ZIP_BYTES)
        tables = parse_snapshot_zip(data, name=path, merge_operator_version=1).sst_files
    except (CorruptFileError, VanishedError) as damage:
        return damage
    stats = files.stats([f"{place.directory}/SSTs/{table.dfs_name}" for table in tables])
    for table, stat in zip(tables, stats, strict=True):
        if stat is None or stat.size != table.size_bytes:
            what = "is gone" if stat is None else f"has {stat.size} bytes in place of {table.size_bytes}"
            where = f"{files.url}/{place.directory}/SSTs/{table.dfs_name}"
            return CorruptFileError(f"A table of snapshot {snapshot.name} {what}", where=where)
    return None
