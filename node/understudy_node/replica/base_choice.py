"""Chooses the snapshot or local base that a store starts from.

It must be one that the commit log vouches for; a snapshot that turned out damaged is not chosen again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from understudy_node.checkpoint.changelog import LineageItem, parse_header
from understudy_node.checkpoint.compression import decompress
from understudy_node.checkpoint.files import CheckpointFiles
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
from understudy_node.replica.changelog_reader import MAX_CHANGELOG_BYTES
from understudy_node.replica.local_bases import REOPEN_VERSIONS, LocalBase, usable_again
from understudy_node.replica.replica_context import StorePlace, file_name
from understudy_shared.base.errors import CheckpointError, CorruptFileError, VanishedError

MAX_MISSES = 3
"""Number of listings in which a snapshot may lack one of its files; in format v1, Spark may just be replacing a zip."""


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
        choice = choose_snapshot(
            found,
            at_most_version=target,
            wanted_unique_ids=self._committed_ids(found, target),
            mtimes_ns=self._mtimes_ns(found, listed),
        )
        chosen = choice.chosen
        if chosen is not None and not self.place.fits(self.history.nearest(chosen.version)):
            chosen = None  # An older one does not fit either: the layout changed between it and the target.
        return SnapshotSearch(chosen, any(left.reason == "stale-snapshot" for left in choice.left_out))

    def local(self, bases: Iterable[LocalBase], target: int, *, newest_snapshot: int) -> LocalBase | None:
        """Return the newest of the local bases that may be used again and is not far behind the newest snapshot."""
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

        A snapshot with other column families than the one before it is left out: every attempt writes it, and before
        its changelog, so that it is older and yet no dead attempt's.
        """
        names = {file.name for file in listed}
        pairs = [(file, changes) for file in found if (changes := file.changes_beside) in names]
        wanted = [name for file, changes in pairs for name in (file.name, changes) if name]
        stats = self.files.stats([f"{self.place.directory}/{name}" for name in wanted])
        times = {name: stat.mtime_ns for name, stat in zip(wanted, stats, strict=True) if stat is not None}
        if self.place.has_families:
            for file, changes in pairs:
                if _is_older(times, file.name, changes) and self._changes_families(file, listed):
                    del times[file.name]
        return times

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
