"""Answers the keys of a hop's group in slices, from the visible versions of this node (no I/O but the stores').

A key counts as absent only if Spark would have stored it in the partition that was asked. A router with another
catalogue than this node may ask the wrong partition for an existing key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from understudy_node.questions.lookup.reads import keep_for_others
from understudy_node.replica.read_views import Reading
from understudy_node.stores.lookup import Hidden, Said, StoreReader
from understudy_shared.http.problems import Problem, ProblemType
from understudy_shared.questions.lookup.hop import MAX_HOP_BYTES
from understudy_shared.questions.lookup.hop_columns import (
    ABSENT,
    FOUND,
    OPEN,
    PROBLEM,
    HopKey,
    HopKeys,
    HopOutcome,
    HopOutcomes,
    indexes_by_partition,
)
from understudy_shared.questions.lookup.scattered import NOT_FOUND
from understudy_shared.reads.bounds import Bound

HOP_SLICE_KEYS = StoreReader.keys_at_once
"""Number of keys answered before the event loop is yielded: about 1 ms."""


def outcome_of(problem: Problem) -> HopOutcome:
    return HopOutcome(PROBLEM, problem.body())


def not_here(detail: str) -> Problem:
    return Problem(ProblemType.NOT_OWNER, detail, fix="Read the catalogue and the assignment again")


def outdated(detail: str) -> Problem:
    return Problem(ProblemType.OUTDATED_CATALOGUE, detail, fix="Read the catalogue again, from this node")


LATE = outcome_of(Problem(ProblemType.DEADLINE, "the hop's deadline passed before this key"))
TOO_LARGE = outcome_of(
    Problem(ProblemType.TOO_LARGE, f"the values of this hop take more than {MAX_HOP_BYTES} bytes", fix="Ask for fewer")
)
"""The outcome of keys that were not looked up. A router drops such a reply and asks for half of the keys."""

MISPLACED = outdated("Spark would have stored this key in another partition")
"""The problem of a key that the asking router placed by another catalogue."""

_MISPLACED = outcome_of(MISPLACED)


class GroupLookups:
    """The lookups of one group, stored as columns, partition by partition, each partition at one version.

    Iteration does the work in slices, and yields the cost of each in keys. `body_bytes`: size of the answers so far in
    a reply.
    """

    def __init__(self, reader: StoreReader, keys: Sequence[HopKey], bound: Bound, known_end: int) -> None:
        self.body_bytes = 0
        self._reader = reader
        self._keys = HopKeys.of(keys)
        self._bound = bound
        self._known_end = known_end
        count = len(self._keys)
        self._kinds = bytearray((OPEN,)) * count
        self._bodies: list[bytes] = [b""] * count
        self._tails: list[bytes] = [b""] * count

    def __iter__(self) -> Iterator[int]:
        partitions, rows = self._keys.partitions, self._keys.rows
        if len(rows) == 1:  # nearly all hops without load
            self._look_up(partitions[0], self._read_from(partitions[0]), (0,), rows)
            yield 1
            return
        step = self._reader.keys_at_once
        for partition, indexes in indexes_by_partition(partitions).items():
            reading = self._read_from(partition)
            for start in range(0, len(indexes), step):
                part = indexes[start : start + step]
                self._look_up(partition, reading, part, [rows[index] for index in part])
                # In keys of plain stores: where fewer keys make a slice, each costs as much more.
                yield len(part) * HOP_SLICE_KEYS // step

    def outcomes(self, rest: HopOutcome) -> HopOutcomes:
        """Return the outcomes in the order of the keys; `rest` is the outcome of keys that were not reached."""
        if OPEN in self._kinds:
            left = [index for index, kind in enumerate(self._kinds) if kind == OPEN]
            self._keep(left, [rest] * len(left))
        return HopOutcomes(self._kinds, self._bodies, self._tails)

    def _read_from(self, partition: int) -> Reading | HopOutcome:
        """Return the version to answer a partition's keys from, or the one outcome of all its keys."""
        if partition >= self._reader.partitions:
            return outcome_of(not_here(f"there is no partition {partition}"))
        reading = self._reader.read_from(partition, self._bound, self._known_end)
        if isinstance(reading, Problem):
            return outcome_of(reading)
        keep_for_others(self._reader, partition, reading)
        return reading

    def _look_up(
        self, partition: int, reading: Reading | HopOutcome, indexes: Sequence[int], rows: Sequence[bytes]
    ) -> None:
        """Look up the rows of these indexes. `reading` is the version of their partition, or their one outcome."""
        if isinstance(reading, HopOutcome):
            self._keep(indexes, [reading] * len(rows))
        else:
            tail = reading.tail
            found = self._reader.find_many(rows, reading, partition, self._bound.selection)
            kinds, bodies, tails = self._kinds, self._bodies, self._tails
            for index, row, each in zip(indexes, rows, found, strict=True):
                if type(each) is bytes:  # nearly always
                    kinds[index] = FOUND
                    bodies[index] = each
                    tails[index] = tail
                else:
                    self._keep((index,), (self._not_found(partition, reading, row, each),))
        self.body_bytes += sum([len(self._bodies[index]) for index in indexes])

    def _keep(self, indexes: Sequence[int], outcomes: Sequence[HopOutcome]) -> None:
        for index, outcome in zip(indexes, outcomes, strict=True):
            self._kinds[index], self._bodies[index], self._tails[index] = outcome

    def _not_found(self, partition: int, reading: Reading, row: bytes, said: Said) -> HopOutcome:
        """Return the outcome of a key of which no value is shown."""
        if isinstance(said, Hidden):
            return HopOutcome(ABSENT, said.members, reading.tail)
        return self._absent(partition, reading, row) if said is None else outcome_of(cast(Problem, said))

    def _absent(self, partition: int, reading: Reading, row: bytes) -> HopOutcome:
        """Return the outcome of an absent key. Only absent ones need the check: Spark placed all stored keys."""
        reader = self._reader
        if not reader.store.codec.may_hold(partition, row, reader.partitions):
            return _MISPLACED
        return HopOutcome(ABSENT, NOT_FOUND, reading.tail)
