"""All stores of one task, brought to one version in bounded steps.

A job is a generator: each `next` does one piece of work. One worker at a time runs the job of a task.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from understudy_node.checkpoint.changelog import ChangelogOperation
from understudy_node.counters import Measures
from understudy_node.engine.view import release_tiers
from understudy_node.follow.history import CommitRecord
from understudy_node.replica.local_bases import LocalBases, of_all
from understudy_node.replica.replica_context import StorePlace, Surroundings
from understudy_node.replica.store_replica import StoreReplica
from understudy_node.replica.task_view import Mark, RetainedVersions, TaskView, task_view
from understudy_shared.base.errors import CorruptFileError, MissingVersionError
from understudy_shared.bus.messages import Restore
from understudy_shared.reads.bounds import ReadVersion
from understudy_shared.reads.tokens import OtherLineageError

Job = Generator[None, None, None]


class VersionChanges(NamedTuple):
    """The changes of a version in a store: first all of `changes` (None: a deletion), then `operations` in order.
    `view` is the version without its state.
    """

    view: TaskView
    changes: Mapping[bytes, bytes | None]
    operations: Sequence[ChangelogOperation]


class TaskStores:
    """The stores at `places`. `marks` name anomalies of the files that they were read from."""

    def __init__(self, places: Sequence[StorePlace], around: Surroundings) -> None:
        self.marks: frozenset[Mark] = frozenset()
        self._places = tuple(places)
        self._around = around
        self._stores = self._new_stores()

    @property
    def version(self) -> int | None:
        """The version that all stores are at; None while they differ."""
        versions = {store.version for store in self._stores}
        return versions.pop() if len(versions) == 1 else None

    @property
    def are_open(self) -> bool:
        """Whether each store has a version that can be read."""
        return all(store.view is not None for store in self._stores)

    @property
    def restore(self) -> Restore:
        """The progress of the restore of all stores."""
        return of_all([(store.restoring, store.view is not None) for store in self._stores])

    @property
    def have_read_ahead(self) -> bool:
        """Whether the next changelog of each store was read before its commit."""
        return all(store.has_read_ahead for store in self._stores)

    @property
    def damage(self) -> CorruptFileError | None:
        """Describe how the local copy of a store is damaged; None when it is not known to be."""
        return next((store.damage for store in self._stores if store.damage is not None), None)

    def has_work(self, target: int) -> bool:
        return any(
            store.version < target or store.over_budget or store.outgrown or store.has_background_work
            for store in self._stores
        )

    def only_works_in_background(self, target: int) -> bool:
        """Whether its only work is work that can wait."""
        return any(store.has_background_work for store in self._stores) and not any(
            store.version < target or store.over_budget or store.outgrown for store in self._stores
        )

    def look_for_damage(self) -> None:
        """Check whether a local file was cut off."""
        for store in self._stores:
            store.look_for_damage()

    def disown_damaged(self) -> None:
        """Prevent damaged local copies from being used again."""
        for store in self._stores:
            if store.damage is not None:
                store.disown()

    def next_job(self, target: int, *, can_write: bool = True) -> Job | None:
        """Return the most urgent job on the way to version `target`; None when there is no job. Without
        `can_write`, changes stay in memory until the store has caught up.
        """
        for store in self._stores:
            if store.outgrown:
                return release_tiers(store.outgrown)
            if can_write and store.far_over_budget:
                return store.shrink()
        last = min(self._stores, key=lambda store: store.version)
        if last.view is None:
            return last.restore(target)
        if last.version < target:
            return last.advance(target)
        for store in self._stores:
            if store.over_budget:
                return store.shrink()
        for store in self._stores:
            if store.has_background_work:
                return store.work_in_background()
        return None

    def prefetch(self) -> Job:
        """Read the probable changelog of the next version of each store ahead."""
        for store in self._stores:
            yield from store.prefetch()

    def view_after(self, shown: TaskView | None) -> TaskView | None:
        """Return the view to show after `shown`; None without a newer version that all stores have reached."""
        version = self.version
        if version is None or version < (1 if shown is None else shown.version):
            return None
        self._collect_marks()
        stores = {store.place.name: store.view for store in self._stores if store.view is not None}
        if shown is not None and shown.version == version and shown.marks == self.marks and shown.stores == stores:
            return None
        for store in self._stores:
            if store.place.order is not None:
                stores[store.place.name].prepare_scan()
        place = self._places[0]
        record = self._around.history.record(version)
        return task_view(place.task, place.lineage, version=version, stores=stores, record=record, marks=self.marks)

    def read_past(self, wanted: ReadVersion, disk: LocalBases) -> TaskView:
        """Read an older version from the checkpoint into files of its own, next to these stores. Called by any thread.

        Raises MissingVersionError if the checkpoint does not have that version in this layout, and OtherLineageError
        if it was committed anew.
        """
        record = self._around.history.record(wanted.number)
        view = next(self.read_each(wanted, wanted.number, disk))
        commit = self._around.files.stat(f"commits/{wanted.number - 1}")
        if record is not None and commit is not None and commit.mtime_ns != record.committed_at_ns:
            raise _rewound(wanted.number)  # meanwhile: in format v1 its files have the names of those before
        return view

    def read_each(self, first: ReadVersion, last: int, disk: LocalBases) -> Iterator[TaskView]:
        """Yield each version from `first` to `last`, read as `read_past` does, each from the one before it."""
        stores = TaskStores(self._places, replace(self._around, disk=disk, measures=Measures()))
        for number in range(first.number, last + 1):
            self._require_readable(first if number == first.number else ReadVersion(number, of_any_commit=True))
            yield stores._view_at(number)

    def read_changes(self, name: str, first: int, last: int) -> Iterator[VersionChanges]:
        """Yield what each version from `first` to `last` changed in a store, by its changelogs alone. Called by any
        thread. Raises MissingVersionError for a version without a changelog in this layout.
        """
        store = self._new_store(name)
        for number in range(first, last + 1):
            record = self._require_readable(ReadVersion(number, of_any_commit=True))
            read = store.changelog_of(record)
            if read is None:
                raise _gone(number, "it has no changelog")
            of = (store.place.task, store.place.lineage)
            view = task_view(*of, version=number, stores={}, record=record, marks=frozenset())
            yield VersionChanges(view, read.changes, read.operations)

    def changelogs(self, name: str) -> tuple[int, int] | None:
        """Return the first and the last version with readable changes; None for a store without changelogs."""
        return self._new_store(name).changelogs()

    def _new_store(self, name: str) -> StoreReplica:
        return StoreReplica(next(each for each in self._places if each.name == name), self._around)

    def retained(self) -> RetainedVersions | None:
        """Return the versions that the checkpoint retains in this layout. Reads the log."""
        history, fits = self._around.history, self._places[0].fits
        found = history.retained()
        if found is None:
            return None
        first, last = found

        def is_readable(version: int) -> bool:
            record = history.record(version)
            return record is None or fits(record)

        since = first if is_readable(first) else first + bisect_left(range(first, last), True, key=is_readable)
        return RetainedVersions(since, last, since > first)

    def _require_readable(self, wanted: ReadVersion) -> CommitRecord:
        record = self._around.history.record(wanted.number)
        if record is None:
            raise _gone(wanted.number, "Spark purged its commit")
        if not wanted.is_of(record.version, record.committed_at_us):
            raise _rewound(wanted.number)
        if not self._places[0].fits(record):
            why = "it was written with another number of partitions, or by another state store provider"
            raise _gone(wanted.number, why)
        return record

    def _view_at(self, version: int) -> TaskView:
        """Bring all stores to a version, and return it."""
        while self.version != version:
            job = self.next_job(version)
            if job is None:
                raise _gone(version, f"the stores of {self._places[0].task} do not reach it together")
            for _ in job:
                pass
        view = self.view_after(None)
        assert view is not None, "all stores are at the version"
        return view

    def marked(self, shown: TaskView) -> TaskView:
        """Return the same view with the current marks."""
        place = self._places[0]
        record = self._around.history.record(shown.version)
        return task_view(
            place.task, place.lineage, version=shown.version, stores=shown.stores, record=record, marks=self.marks
        )

    def start_over(self) -> None:
        """Drop all stores and begin with new ones; the marks stay."""
        self._collect_marks()
        self._stores = self._new_stores()

    def leave(self) -> None:
        """Remove the local files of all stores."""
        for store in self._stores:
            store.leave()
        self._stores = []

    def _collect_marks(self) -> None:
        self.marks = self.marks.union(*(store.marks for store in self._stores))

    def _new_stores(self) -> list[StoreReplica]:
        return [StoreReplica(place, self._around) for place in self._places]


def _rewound(version: int) -> OtherLineageError:
    return OtherLineageError(f"version {version} was committed anew: the query was rewound")


def _gone(version: int, why: str) -> MissingVersionError:
    return MissingVersionError(f"version {version} cannot be read any more: {why}", where="version")
