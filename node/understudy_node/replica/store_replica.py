"""Takes one store of a task through the committed versions: restore, advance, rebase, shrink.

Everything here works on `view`, which readers do not see: the task publishes it when all its stores are at one
version. Each method is a generator of bounded steps; the commit log alone decides what becomes part of a view.

A version's merges and range deletes become puts and deletes first: operations apply in order, each to the result of the
ones before.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from understudy_node.checkpoint.snapshots import StateFile, parse_state_files, why_not_next
from understudy_node.engine.base import Base, EmptyBase
from understudy_node.engine.view import Spill, StateView, Tier, brings_families, write_spill
from understudy_node.follow.history import CommitRecord
from understudy_node.replica.chosen_files import (
    BaseChoice,
    ChangelogReader,
    ReachingHistory,
    ReadChangelog,
    RewrittenError,
    changelog_name,
    missing_snapshot,
    missing_version,
)
from understudy_node.replica.local_bases import ChosenSnapshot, LocalBase, RestoreProgress, open_base, restore, writing
from understudy_node.replica.past_versions import StoreChanges
from understudy_node.replica.replica_context import StorePlace, Surroundings
from understudy_node.replica.task_view import Mark
from understudy_shared.base.errors import (
    CheckpointError,
    CorruptFileError,
    MissingVersionError,
    UnsupportedError,
    VanishedError,
)


class Operation(Protocol):
    """One record of a changelog. A range delete's `key` is its begin and its `value` the end, exclusive."""

    @property
    def kind(self) -> Literal["put", "delete", "merge", "delete-range"]: ...

    @property
    def key(self) -> bytes: ...

    @property
    def value(self) -> bytes | None: ...


def resolve_operations(
    view: StateView,
    operations: Iterable[Operation],
    delimiter: bytes,
    changes: dict[bytes, bytes | None] | None = None,
) -> dict[bytes, bytes | None]:
    """Return the changes for `view.with_changes`. `delimiter` separates list elements in the store's merge operator.

    `changes` are the same version's before these operations; they are updated and returned. A range delete costs
    a scan over its range. The pieces merged into one key are joined once, however many there are.
    """
    if changes is None:
        changes = {}
    pieces: dict[bytes, list[bytes]] = {}
    for operation in operations:
        kind, key = operation.kind, operation.key
        if kind == "merge":
            assert operation.value is not None, "a merge has a value"
            merged = pieces.get(key)
            if merged is None:
                before = changes[key] if key in changes else view.get(key)
                merged = pieces[key] = [] if before is None else [before]
            merged.append(operation.value)
            continue
        if kind == "delete-range":
            _join(changes, pieces, delimiter)
            _delete_range(view, changes, key, operation.value)
            continue
        assert kind == "delete" or operation.value is not None, "a put has a value"
        pieces.pop(key, None)
        changes[key] = None if kind == "delete" else operation.value
    _join(changes, pieces, delimiter)
    return changes


def _join(changes: dict[bytes, bytes | None], pieces: dict[bytes, list[bytes]], delimiter: bytes) -> None:
    """Make values of the pieces merged so far."""
    for key, merged in pieces.items():
        changes[key] = delimiter.join(merged)
    pieces.clear()


def _delete_range(view: StateView, changes: dict[bytes, bytes | None], begin: bytes, end: bytes | None) -> None:
    for key in changes:
        if begin <= key and (end is None or key < end):
            changes[key] = None
    for key, _ in view.scan(begin, end):
        changes[key] = None


log = logging.getLogger(__name__)

Steps = Generator[None, None, None]
T = TypeVar("T")

OVERLAY_WHILE_BEHIND = 4
"""The multiple of the budget that changes in memory may take while a store is behind: each spill writes all of them."""

DAMAGE = (CorruptFileError, UnsupportedError)
"""Errors of a file that is truncated, overwritten, or of a newer Spark: only another file helps."""


def _result(steps: Generator[None, None, T]) -> T:
    """Take all steps, and return what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: T = done.value
            return found


class StoreReplica:
    """The working state of one store. `marks` only grow; a rebuild starts a new object."""

    def __init__(self, place: StorePlace, around: Surroundings) -> None:
        self.place = place
        self.view: StateView | None = None
        self.marks: set[Mark] = set()
        self.outgrown: list[Tier] = []
        """Tiers that `shrink` replaced; the task drops them in steps (`release_tiers`) once the new view is out."""
        self.restoring = RestoreProgress()
        self._around = around
        self._committed = around.history
        self._choice = BaseChoice(place, around.files, around.history)
        self._changelogs = ChangelogReader(place, around)
        self._attempts: dict[int, str] = {}
        """Format v2's attempt of the present version, which the next changelog must continue."""

    @property
    def _local_directory(self) -> Path:
        return self._around.disk.store_directory(self.place.task, self.place.lineage, self.place.name)

    @property
    def version(self) -> int:
        """The version reached; -1 before the base is open."""
        return -1 if self.view is None else self.view.version

    @property
    def over_budget(self) -> bool:
        """Whether the changes since the base take more memory than `overlay_max_bytes`."""
        return self.view is not None and self.view.overlay_bytes > self._around.overlay_max_bytes

    @property
    def far_over_budget(self) -> bool:
        """Whether they take so much more that they cannot wait until the store has caught up."""
        return self.view is not None and self.view.overlay_bytes > OVERLAY_WHILE_BEHIND * self._around.overlay_max_bytes

    @property
    def damage(self) -> CorruptFileError | None:
        """The damage of its local copy, once it was seen."""
        return None if self.view is None else self.view.base.damage

    @property
    def has_background_work(self) -> bool:
        """Whether parts of its local copy were not compared with their sums yet, or its keys not sorted."""
        return self.view is not None and self.view.base.has_background_work

    @property
    def has_read_ahead(self) -> bool:
        """Whether `prefetch` has nothing left to do before the next commit."""
        return self._changelogs.has_read_ahead

    def restore(self, target: int) -> Steps:
        """Open the best base at or below `target`: a local one when it is recent, else the newest snapshot."""
        self._reach_back_from(target)
        snapshot = self._snapshot(target, above=0)
        local = self._choice.local(
            self._around.disk.whole(self._local_directory), target, newest_snapshot=snapshot.version if snapshot else 0
        )
        base = None if local is None else self._reopened(local)
        if local is not None and base is not None:
            version, unique_id = local.record.version, local.record.unique_id
            self._around.disk.remove_others(self._local_directory, local.directory)
        else:
            self._around.disk.remove_others(self._local_directory, None)
            if snapshot is None and self.place.has_families:
                raise missing_snapshot(self.place, self._around.files.url)
            version, unique_id = (snapshot.version, snapshot.unique_id) if snapshot else (0, None)
            base = (yield from self._open(snapshot)) if snapshot else EmptyBase()
        self.view = StateView.of(base, version)
        self._forget_changelogs(unique_id)
        yield

    def _reach_back_from(self, target: int) -> None:
        """Also find the purged commits that `target` rests on: Spark keeps their files as long as it retains
        `target`.
        """
        history = ReachingHistory(self._committed, self._around.files, self.place, target)
        self._choice.history = history
        self._around = replace(self._around, history=history)

    def advance(self, target: int) -> Steps:
        """Move to the next version, or to a newer snapshot when the next changelog is missing or damaged."""
        assert self.view is not None, "advance follows restore"
        version = self.view.version + 1
        record = self._around.history.record(version)
        if record is not None and not self.place.fits(record):
            record = None  # written in another layout: only a snapshot of this one helps
        try:
            read = None if record is None else (yield from self._continuation(record))
        except DAMAGE as damage:
            yield from self._jump(target, damage)
            return
        if record is None or read is None:
            yield from self._jump(target, None)
            return
        if self.place.has_families and self._brings_families(read):
            if not (yield from self._rebase()):
                reason = f"version {version} of {self.place.task} has a new table, and only a snapshot says its place"
                where = f"{self._around.files.url}/{self.place.directory}"
                fix = "Spark writes one with it: the node looks again by itself"
                yield from self._jump(target, MissingVersionError(reason, where=where, fix=fix))
            return
        self._check_last_applied()
        changes = read.changes
        if read.operations:
            delimiter = record.offsets.properties.merge_delimiter
            changes = resolve_operations(self.view, read.operations, delimiter, changes)
        unique_id = self.place.unique_id(record)
        self.view = self.view.with_changes(changes, version)
        self._attempts = {version: unique_id} if unique_id else {}
        if unique_id is None:  # in format v2 a name is given once: its file is never rewritten
            self._changelogs.applied(read)

    def changelog_of(self, record: CommitRecord) -> StoreChanges | None:
        """Return what a committed version changed, without the state; None if no file says that. Storage is asked
        unless it was just read.
        """
        kept = self._around.past.changelogs
        path = f"{self.place.directory}/{changelog_name(self.place, record)}"
        found = kept.find(path, record.committed_at_ns)
        if found is not None:
            return found
        before = self._committed.record(record.version - 1)
        unique_id = None if before is None or not self.place.fits(before) else self.place.unique_id(before)
        self._attempts = {record.version - 1: unique_id} if unique_id else {}
        read = _result(self._continuation(record))
        if read is None:
            return None
        found = StoreChanges(read.changes, read.operations)
        kept.keep(path, record.committed_at_ns, found)
        return found

    def changelogs(self) -> tuple[int, int] | None:
        """Return the first and the last of the newest versions with changelogs without a gap; None if Spark writes only
        snapshots. Raises VanishedError while the folder is away: nothing is known then.
        """
        names = self._around.files.list(self.place.directory)
        if names is None:
            raise VanishedError("The folder of the store is away", where=self.place.directory, fix="Ask again")
        versions = {file.version for file in parse_state_files(names) if not file.is_snapshot}
        if not versions:
            return None
        first = last = max(versions)
        while first - 1 in versions:
            first -= 1
        return first, last

    def prefetch(self) -> Steps:
        """Read the probable next changelog, before its commit exists."""
        latest = None if self.view is None else self._around.history.record(self.view.version)
        if latest is not None:
            yield from self._changelogs.read_ahead(latest)

    def shrink(self) -> Steps:
        """Bring the overlay under its budget: onto a newer snapshot if there is one, else to disk."""
        view = self.view
        assert view is not None, "shrink follows restore"
        if (yield from self._rebase()):
            return
        directory = self._around.disk.new_directory(self._local_directory, view.version)
        with writing(directory):
            for _ in write_spill(view.tiers, directory, below=view.spill):
                yield
            spill = Spill.open(directory, cache=self._around.cache)
        self._replace(view.with_spill(spill))

    def _rebase(self) -> Generator[None, None, bool]:
        """Put the changes onto a newer snapshot up to the present version. Return False without one."""
        view = self.view
        assert view is not None, "a rebase follows restore"
        newer = self._snapshot(view.version, above=view.base_version)
        if newer is None:
            return False
        base = yield from self._open(newer)
        self._replace(view.with_base(base, newer.version))
        return True

    def work_in_background(self) -> Steps:
        """Compare a part of the local copy with its sums, or sort some of its keys."""
        assert self.view is not None, "background work follows restore"
        self.view.base.work_in_background()
        yield

    def look_for_damage(self) -> None:
        """Check whether a local file was cut off."""
        if self.view is not None:
            self.view.base.look_for_damage()

    def disown(self) -> None:
        """Prevent the local files from being used again; a view in flight still reads them."""
        self._around.disk.disown(self._local_directory)

    def leave(self) -> None:
        """Remove the local files, those in use once their last reader is gone. No other call follows."""
        view, self.view = self.view, None
        if view is None:
            self._around.disk.remove_others(self._local_directory, None)
            return
        self._around.disk.disown(self._local_directory)
        view.base.remove_when_unused()
        if view.spill is not None:
            view.spill.remove_when_unused()

    def _reopened(self, local: LocalBase) -> Base | None:
        """Open an earlier process' base; return None when it does not open: a reboot may have truncated it."""
        try:
            return open_base(local, self._around.cache, self.place.order)
        except DAMAGE as damage:
            log.warning("%s", damage, extra={"action": "local-base-dropped", "task": str(self.place.task)})
            return None

    def _brings_families(self, read: ReadChangelog) -> bool:
        assert self.view is not None, "a changelog follows a base"
        keys = chain(read.changes, (operation.key for operation in read.operations))
        return brings_families(self.view.base.families, keys)

    def _continuation(self, record: CommitRecord) -> Generator[None, None, ReadChangelog | None]:
        """Read the changelog of a committed version, checked to continue the attempt that was applied before it."""
        read = yield from self._changelogs.read(record)
        if read is not None and self.place.unique_id(record) is not None:
            reason = why_not_next(record.version, read.lineage, self._attempts)
            if reason is not None:
                raise CorruptFileError(
                    reason,
                    where=f"{self.place.directory}/{read.name}",
                    fix="The store continues from Spark's next snapshot",
                )
        return read

    def _jump(self, target: int, damage: CheckpointError | None) -> Steps:
        """Move to a newer snapshot: the next changelog is missing, of another layout, or damaged."""
        assert self.view is not None, "jump follows restore"
        newer = self._snapshot(target, above=self.view.version)
        if newer is None:
            # Nothing else is left to try, and a rejected snapshot may be repaired by the next attempt.
            self._choice.forgive()
            missing = missing_version(self.place, self.view.version + 1, self._around.files.url)
            raise damage or self._choice.damage or missing
        base = yield from self._open(newer)
        self._replace(StateView.of(base, newer.version))
        self._forget_changelogs(newer.unique_id)

    def _open(self, file: StateFile) -> Generator[None, None, Base]:
        around, directory = self._around, self._local_directory
        record = self._committed.record(file.version)  # a substitute for a purged commit proves nothing after a restart
        # Settings change only at a restart, so for a purged commit the oldest known batch is the best substitute.
        properties = around.history.nearest(file.version).offsets.properties
        snapshot = ChosenSnapshot(
            file=file,
            directory=self.place.directory,
            committed_at_ns=None if record is None else record.committed_at_ns,
            row_checksum=properties.row_checksum,
            merge_operator_version=properties.merge_operator_version,
            order=self.place.order,
        )
        try:
            base = yield from restore(snapshot, around.files, around.disk, directory, around.cache, self.restoring)
            around.measures.restored_bytes += self.restoring.done_bytes
            return base
        except DAMAGE as damage:
            self._choice.reject(file, damage)  # the next choice is an older snapshot, or the next that Spark writes
            raise
        except VanishedError as gone:
            self._choice.miss(file, gone)
            raise

    def _snapshot(self, target: int, *, above: int) -> StateFile | None:
        search = self._choice.snapshot(target, above=above)
        if search.met_stale:
            self.marks.add(Mark.STALE_SNAPSHOT)
        return search.chosen

    def _check_last_applied(self) -> None:
        try:
            self._changelogs.check_last_applied()
        except RewrittenError:
            self.marks.add(Mark.UNVERIFIABLE_V1)
            raise

    def _forget_changelogs(self, unique_id: str | None) -> None:
        """Drop read-ahead data: the view is on a base that the attempt `unique_id` wrote."""
        self._attempts = {self.version: unique_id} if unique_id else {}
        self._changelogs.forget()

    def _replace(self, view: StateView) -> None:
        """Switch to `view` and release what it does not use: files with their last reader, tiers in steps."""
        before, self.view = self.view, view
        assert before is not None, "there was a view to replace"
        self.outgrown = [tier for tier in before.tiers if tier not in view.tiers]
        if before.base is not view.base:
            self._around.measures.replaced_bases += 1
            before.base.remove_when_unused()
        if before.spill is not None and before.spill is not view.spill:
            before.spill.remove_when_unused()
