"""The versions of a store that the files of its checkpoint no longer give: one rule for replicas and for `doctor`.

A version is the newest committed snapshot at or below it, whole, and every changelog after that. Spark restarts from
the same files, so where one of them is gone the query cannot be restarted, whatever a node still has in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.logs import COPY_AGAIN
from understudy_node.checkpoint.snapshots import DEFAULT_MAX_ZIP_BYTES, StateFile, parse_snapshot_zip
from understudy_node.follow.history import CommitHistory
from understudy_node.replica.base_choice import BaseChoice
from understudy_node.replica.changelog_reader import changelog_name
from understudy_node.replica.purged_commits import ReachingHistory
from understudy_node.replica.replica_context import StorePlace
from understudy_shared.base.errors import CheckpointError, CorruptFileError, MissingVersionError, VanishedError
from understudy_shared.bus.messages import task_key


def missing_version(place: StorePlace, version: int, url: str) -> MissingVersionError:
    """Make the error for a version whose changelog is gone, with no snapshot at or above it."""
    return MissingVersionError(
        f"version {version} of {task_key(place.task)} has neither changelog nor snapshot",
        where=f"{url}/{place.directory}",
        fix=f"A file was deleted, or the copy lacks it. {COPY_AGAIN}. A query that runs goes on, and the store from "
        "Spark's next snapshot",
    )


def missing_snapshot(place: StorePlace, url: str) -> MissingVersionError:
    """Make the error for a store whose tables only a snapshot names, where the snapshot is missing."""
    return MissingVersionError(
        f"{task_key(place.task)} has no snapshot yet, which says where its tables are",
        where=f"{url}/{place.directory}",
        fix="Spark writes one after the first batch: the node looks again by itself",
    )


def missing_of(
    place: StorePlace, files: CheckpointFiles, history: CommitHistory, target: int
) -> Iterator[CheckpointError]:
    """Yield what keeps version `target` of a store from being rebuilt; nothing when its files are all there."""
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
    """Return why a snapshot is not whole, as far as names and sizes of files say it."""
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
