"""The history of a key: what each version in a range holds for it, where that differs from the version before.

A thread reads the versions from the checkpoint, one after another, beside the replica that is on show. KIP-968 asks the
same of versioned stores: the first entry is what was valid at the first version, whenever it was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Final, NamedTuple

from understudy_node.questions.watch.watched_task import are_equal, members_of, said_of
from understudy_node.replica.local_bases import LocalBases
from understudy_node.replica.task import TaskReplica
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.errors import MissingVersionError, VanishedError
from understudy_shared.http.problems import Problem, ProblemError
from understudy_shared.reads.bounds import ReadVersion, Selection

MAX_HISTORY_BYTES: Final = 1024 * 1024
"""Size at which a page of a history ends, with one entry at least."""


class KeyVersion(NamedTuple):
    """A version at which the answer for the key changed: the parts of its JSON, each without braces."""

    stamp: bytes
    members: bytes


class HistoryPage(NamedTuple):
    """A page of a history: the versions that it is of, its entries, and where the next page begins; None at the end."""

    first: int
    last: int
    entries: list[KeyVersion]
    next_from: int | None


@dataclass(frozen=True, slots=True)
class HistoryQuestion:
    """The history of a key from one version to another, both inclusive. Without `first` it begins with the oldest that
    can be read; `row` is the key as the codec encodes it.
    """

    partition: int
    row: bytes
    first: int | None
    last: int
    selection: Selection
    until_s: float


def read_history(reader: StoreReader, replica: TaskReplica, asked: HistoryQuestion, disk: LocalBases) -> HistoryPage:
    """Read a page of a history. Raises the problem of a key that cannot be read, and MissingVersionError for a range of
    which the checkpoint lacks a version.
    """
    entries: list[KeyVersion] = []
    before: bytes | None = None
    first, size = asked.first or 0, 0
    for view in _views(replica, asked, disk):
        first = first or view.version
        (said,) = said_of(reader, [asked.row], view, asked.partition, asked.selection)
        if isinstance(said, Problem):
            raise ProblemError(said)
        members = members_of(said)
        if before is None or not are_equal(members, before):
            entries.append(KeyVersion(view.stamp, members))
            before = members
            size += len(members)
        if view.version < asked.last and (size >= MAX_HISTORY_BYTES or monotonic() >= asked.until_s):
            return HistoryPage(first, view.version, entries, view.version + 1)
    return HistoryPage(first, asked.last, entries, None)


def _views(replica: TaskReplica, asked: HistoryQuestion, disk: LocalBases) -> Iterator[TaskView]:
    if asked.first is not None:
        yield from replica.read_each(_any_commit(asked.first), asked.last, disk)
        return
    retained = replica.retained()
    for number in range(asked.last if retained is None else retained.first, asked.last + 1):
        # Spark removes state files and commits at different moments: the oldest commits may have lost their state.
        views = replica.read_each(_any_commit(number), asked.last, disk)
        try:
            view = next(views)
        except (MissingVersionError, VanishedError):
            if number == asked.last or monotonic() >= asked.until_s:
                raise
            continue
        yield view
        yield from views
        return


def _any_commit(number: int) -> ReadVersion:
    return ReadVersion(number, of_any_commit=True)
