"""The changes of some keys since a version that their watchers have seen, read from the checkpoint in one pass.

Watchers that come back together, after a node or a router ended, share one pass over the versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import Final, NamedTuple

from understudy_node.questions.watch.watched_task import KeyChange, are_equal, members_of, said_of
from understudy_node.replica.local_bases import LocalBases
from understudy_node.replica.task import TaskReplica
from understudy_node.stores.lookup import StoreReader
from understudy_shared.reads.bounds import ReadVersion, Selection

MAX_CHANGES_BYTES: Final = 4 * 1024 * 1024
"""Size of the values at which a pass ends, with one version at least: what is missing is another pass."""


class SeenKey(NamedTuple):
    """A key, as the codec encodes it, and the version that its watcher has seen."""

    row: bytes
    version: int


class KeyChanges(NamedTuple):
    """The changes of keys in order, up to `reached`."""

    entries: list[KeyChange]
    reached: int


def read_changes(  # noqa: PLR0917  # whose state, which keys, and within which bounds
    reader: StoreReader,
    replica: TaskReplica,
    selection: Selection,
    seen: Sequence[SeenKey],
    last: int,
    until_s: float,
    disk: LocalBases,
) -> KeyChanges:
    """Read what changed of some keys of a partition, up to version `last`, or to that in which the time ran out.

    Raises MissingVersionError and VanishedError for versions that the checkpoint lacks, LineageChangedError if the
    history was rewound.
    """
    entries: list[KeyChange] = []
    before: dict[int, bytes] = {}
    first, size = min(each.version for each in seen), 0
    for view in replica.read_each(ReadVersion(first, of_any_commit=True), last, disk):
        wanted = [index for index, each in enumerate(seen) if each.version <= view.version]
        rows = [seen[index].row for index in wanted]
        said = said_of(reader, rows, view, replica.task.partition, selection)
        light = replace(view, stores={})
        for index, members in zip(wanted, map(members_of, said), strict=True):
            if seen[index].version < view.version and not are_equal(members, before[index]):
                entries.append(KeyChange(index, light, members))
                size += len(members)
            before[index] = members
        if view.version < last and (size >= MAX_CHANGES_BYTES or monotonic() >= until_s):
            return KeyChanges(entries, view.version)
    return KeyChanges(entries, last)
