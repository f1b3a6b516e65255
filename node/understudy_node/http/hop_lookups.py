"""Answers the keys of a hop's group in slices, from the visible versions of this node (no I/O but the stores').

A key counts as absent only if Spark would have stored it in the partition that was asked. A router with another
catalogue than this node may ask the wrong partition for an existing key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import cast

from understudy_node.replica.readings import Reading
from understudy_node.stores.lookup import ABSENT as NOT_FOUND
from understudy_node.stores.lookup import Hidden, StoreReader
from understudy_shared.bounds import Bound
from understudy_shared.hop import MAX_HOP_BYTES
from understudy_shared.hop_columns import (
    ABSENT,
    FOUND,
    PROBLEM,
    HopKey,
    HopKeys,
    HopOutcome,
    HopOutcomes,
    indexes_by_partition,
)
from understudy_shared.http.problems import Problem, ProblemType

HOP_SLICE_KEYS = StoreReader.keys_at_once
"""Keys answered before the event loop is yielded: about 1 ms."""


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

_NOT_REACHED = 255
"""The kind of a key that was not looked up."""

_MISPLACED = outcome_of(outdated("this is no key of this partition as Spark would have stored it"))


class GroupLookups:
    """The lookups of one group, kept as columns, partition by partition, each partition at one version.

    Iteration does the work in slices, and yields the cost of each in keys. `body_bytes`: what the answers so far take
    in a reply.
    """

    def __init__(
        self, reader: StoreReader, keys: Sequence[HopKey], bound: Bound, known_end: int, *, shares_tails: bool
    ) -> None:
        self.body_bytes = 0
        self._shares_tails = shares_tails
        self._reader = reader
        self._keys = HopKeys.of(keys)
        self._bound = bound
        self._known_end = known_end
        count = len(self._keys)
        self._kinds = bytearray((_NOT_REACHED,)) * count
        self._bodies: list[bytes] = [b""] * count
        self._tails: list[bytes] = [b""] * count

    def __iter__(self) -> Iterator[int]:
        partitions, rows = self._keys.partitions, self._keys.rows
        step = self._reader.keys_at_once
        for partition, indexes in indexes_by_partition(partitions).items():
            reading = self._read_from(partition)
            for start in range(0, len(indexes), step):
                part = indexes[start : start + step]
                if isinstance(reading, HopOutcome):
                    self._keep(part, [reading] * len(part))
                else:
                    self._look_up(partition, reading, part, [rows[index] for index in part])
                yield len(part) * HOP_SLICE_KEYS // step

    def outcomes(self, rest: HopOutcome) -> HopOutcomes:
        """The outcomes in the order of the keys; `rest` is the outcome of keys that were not reached."""
        if _NOT_REACHED in self._kinds:
            self._keep([index for index, kind in enumerate(self._kinds) if kind == _NOT_REACHED], repeat(rest))
        return HopOutcomes(self._kinds, self._bodies, self._tails)

    def _read_from(self, partition: int) -> Reading | HopOutcome:
        """The version to answer a partition's keys from, or the one outcome of all its keys."""
        if partition >= self._reader.partitions:
            return outcome_of(not_here(f"there is no partition {partition}"))
        reading = self._reader.read_from(partition, self._bound, self._known_end)
        return outcome_of(reading) if isinstance(reading, Problem) else reading

    def _look_up(self, partition: int, reading: Reading, indexes: Sequence[int], rows: list[bytes]) -> None:
        found = self._reader.find_many(rows, reading, partition, self._bound.selection)
        if set(map(type, found)) == {bytes}:  # nearly always: every key is there
            self._keep_found(indexes, cast("Sequence[bytes]", found), reading.tail)
            return
        self._keep(
            indexes,
            [
                HopOutcome(FOUND, each, reading.tail)
                if type(each) is bytes
                else self._absent(partition, reading, row)
                if each is None
                else HopOutcome(ABSENT, each.members, reading.tail)
                if isinstance(each, Hidden)
                else outcome_of(cast(Problem, each))
                for row, each in zip(rows, found, strict=True)
            ],
        )

    def _keep_found(self, indexes: Sequence[int], found: Sequence[bytes], tail: bytes) -> None:
        kinds, bodies, tails = self._kinds, self._bodies, self._tails
        for index, body in zip(indexes, found, strict=True):
            kinds[index] = FOUND
            bodies[index] = body
            tails[index] = tail
        self.body_bytes += sum(map(len, found)) + (0 if self._shares_tails else len(tail) * len(found))

    def _keep(self, indexes: Sequence[int], outcomes: Iterable[HopOutcome]) -> None:
        kinds, bodies, tails = self._kinds, self._bodies, self._tails
        for index, (kind, body, tail) in zip(indexes, outcomes, strict=False):
            kinds[index], bodies[index], tails[index] = kind, body, tail
            self.body_bytes += len(body) if self._shares_tails else len(body) + len(tail)

    def _absent(self, partition: int, reading: Reading, row: bytes) -> HopOutcome:
        """The outcome of a key that is not stored here. Only these need the check: Spark placed all stored keys."""
        reader = self._reader
        if reader.store.codec.place(row, reader.partitions) != partition:
            return _MISPLACED
        return HopOutcome(ABSENT, NOT_FOUND, reading.tail)
