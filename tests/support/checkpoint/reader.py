"""Reads a checkpoint as of one committed version, in the calling thread: for comparisons with Spark's own reader.

It reads as a replica does (same restore, same changelogs), but once and up to a chosen version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from understudy_node.checkpoint.description import (
    NONE_NAMED,
    CheckpointDescription,
    OperatorDescription,
    StoreDescription,
    describe,
)
from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.logs import batch_ids
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.engine.rocksdb_base import BlockCache
from understudy_node.engine.view import StateView
from understudy_node.follow.history import CommitHistory, CommitRecord
from understudy_node.generations import ROW_PREFIX, Layout, layout_of
from understudy_node.replica.local_bases import LocalBases
from understudy_node.replica.replica_context import StorePlace, Surroundings
from understudy_node.replica.store_replica import StoreReplica
from understudy_node.replica.task_view import task_view
from understudy_node.stores.parts import has_families, scan_order_of
from understudy_node.stores.stores import ServedStore, served_stores
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import ApplicationId, TaskId
from understudy_shared.reads.bounds import EVERYTHING
from understudy_shared.spark.types import VoidType


class Row(NamedTuple):
    """A key and its value as UnsafeRow bytes, without the provider's prefix."""

    partition: int
    key: bytes
    value: bytes


class CheckpointReader:
    """Reads versions of a checkpoint's stores. `directory` takes the local copies and belongs to one reader."""

    def __init__(self, checkpoint: str | Path, directory: Path, operators: Mapping[int, str] = NONE_NAMED) -> None:
        self._files: CheckpointFiles = open_checkpoint_files(checkpoint)
        self.description: CheckpointDescription = describe(self._files, operators)
        self.stores = served_stores(self.description, {})
        self._history = CommitHistory(self._files)
        self._disk = LocalBases(directory)

    def close(self) -> None:
        """Release the directory."""
        self._disk.release()

    def versions(self) -> list[int]:
        """The committed versions that the commit log still has, oldest first."""
        return [batch + 1 for batch in batch_ids(self._files.list("commits") or [])]

    def record(self, version: int) -> CommitRecord:
        """The commit record of `version`."""
        record = self._history.record(version)
        if record is None:
            known = self.versions()
            raise UnderstudyError(
                f"version {version} is not in the commit log",
                where=self._files.url,
                fix=f"It has versions {known[0]} to {known[-1]}" if known else "Nothing was committed yet",
            )
        return record

    def rows(self, store: ServedStore, version: int) -> Iterator[Row]:
        """Every row of a store at a version, partition by partition, in key order; of sessions as keys are kept."""
        layout = layout_of(self.record(version))
        prefix = len(ROW_PREFIX[layout.provider])
        for partition in range(self._partitions(store, layout)):
            for key, value in self.view(store, partition, version).scan():
                yield Row(partition, key[prefix:], value[prefix:])

    def finder(self, store: ServedStore, partition: int, version: int) -> Callable[[bytes], bytes | None]:
        """A function from a key's row bytes to what an answer says of it at `version`, None for an absent key."""
        record = self.record(version)
        prefix = ROW_PREFIX[layout_of(record).provider]
        operator = self._operator(store)
        views = {found.name: self._view(operator, found, partition, version) for found in operator.served}
        if store.make_finder is None:
            view = views[store.store_name]

            def find(row: bytes) -> bytes | None:
                stored = view.get(prefix + row)
                return None if stored is None else store.print_found(stored[len(prefix) :])

            return find
        task = TaskId(ApplicationId("reader"), store.operator_id, partition)
        shown = task_view(
            task, self.description.query_id, version=version, stores=views, record=record, marks=frozenset()
        )
        finder = store.make_finder(prefix)

        def find_all(row: bytes) -> bytes | None:
            found = finder.find(shown, prefix + row, EVERYTHING)
            assert found is None or found.next is None, "tests keep fewer elements than a page has"
            return None if found is None else found.members

        return find_all

    def view(self, store: ServedStore, partition: int, version: int) -> StateView:
        """One partition of a store at exactly `version`."""
        operator = self._operator(store)
        (found,) = (found for found in operator.served if found.name == store.store_name)
        return self._view(operator, found, partition, version)

    def _operator(self, store: ServedStore) -> OperatorDescription:
        (operator,) = (each for each in self.description.operators if each.operator_id == store.operator_id)
        return operator

    def _view(self, operator: OperatorDescription, store: StoreDescription, partition: int, version: int) -> StateView:
        task = TaskId(ApplicationId("reader"), store.operator_id, partition)
        layout = layout_of(self.record(version))
        order = scan_order_of(operator, store, layout.provider)
        directory = store.directory(partition)
        place = StorePlace(
            task,
            self.description.query_id,
            store.name,
            directory,
            store.index,
            layout.fits,
            order,
            has_families(operator),
        )
        around = Surroundings(
            files=self._files, history=self._history, disk=self._disk, cache=BlockCache(), overlay_max_bytes=1 << 40
        )
        replica = StoreReplica(place, around)
        _run(replica.restore(version))
        while replica.version < version:
            _run(replica.advance(version))
        assert replica.view is not None, "restore opened it"
        return replica.view

    def _partitions(self, store: ServedStore, layout: Layout) -> int:
        return layout.partitions if has_keys(store) else 1


def has_keys(store: ServedStore) -> bool:
    """Whether the keys of a store have columns."""
    return any(not isinstance(field.type, VoidType) for field in store.key_schema.fields)


def _run(steps: Iterator[None]) -> None:
    for _ in steps:
        pass
