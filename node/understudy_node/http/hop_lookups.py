"""Answers the keys of a hop's group in slices, from the visible versions of this node (no I/O but the stores').

A key counts as absent only if Spark would have stored it in the partition that was asked. A router with another
catalogue than this node may ask the wrong partition for an existing key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from understudy_node.replica.readings import Reading
from understudy_node.stores.lookup import ABSENT as NOT_FOUND
from understudy_node.stores.lookup import Hidden, StoreReader
from understudy_shared.bounds import Bound
from understudy_shared.hop import ABSENT, FOUND, MAX_HOP_BYTES, PROBLEM, HopKey, HopOutcome
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

_MISPLACED = outcome_of(outdated("this is no key of this partition as Spark would have stored it"))


class GroupLookups:
    """The lookups of one group, partition by partition, each partition at one version.

    Iteration does the work in slices, and yields the cost of each in keys. `body_bytes`: what the answers so far take
    in a reply.
    """

    def __init__(
        self, reader: StoreReader, keys: Sequence[HopKey], bound: Bound, known_end: int, *, shares_tails: bool
    ) -> None:
        self.body_bytes = 0
        self._shares_tails = shares_tails
        self._reader = reader
        self._keys = keys
        self._bound = bound
        self._known_end = known_end
        self._done: list[HopOutcome | None] = [None] * len(keys)

    def __iter__(self) -> Iterator[int]:
        keys = self._keys
        if len(keys) == 1:
            partition, row = keys[0]
            (only,) = self._look_up(partition, self._read_from(partition), [row])
            self._done = [only]
            self._count(only)
            yield 1
            return
        by_partition: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            indexes = by_partition.get(key[0])
            if indexes is None:
                by_partition[key[0]] = [index]
            else:
                indexes.append(index)
        done, step = self._done, self._reader.keys_at_once
        for partition, indexes in by_partition.items():
            reading = self._read_from(partition)
            for start in range(0, len(indexes), step):
                part = indexes[start : start + step]
                outcomes = self._look_up(partition, reading, [keys[index][1] for index in part])
                for index, outcome in zip(part, outcomes, strict=True):
                    done[index] = outcome
                    self._count(outcome)
                yield len(part) * HOP_SLICE_KEYS // step

    def _count(self, outcome: HopOutcome) -> None:
        self.body_bytes += len(outcome[1]) if self._shares_tails else len(outcome[1]) + len(outcome[2])

    def outcomes(self, rest: HopOutcome) -> list[HopOutcome]:
        """The outcomes in the order of the keys; `rest` is the outcome of keys that were not reached."""
        done = self._done
        if None not in done:
            return cast(list[HopOutcome], done)
        return [rest if outcome is None else outcome for outcome in done]

    def _read_from(self, partition: int) -> Reading | HopOutcome:
        """The version to answer a partition's keys from, or the one outcome of all its keys."""
        if partition >= self._reader.partitions:
            return outcome_of(not_here(f"there is no partition {partition}"))
        reading = self._reader.read_from(partition, self._bound, self._known_end)
        return outcome_of(reading) if isinstance(reading, Problem) else reading

    def _look_up(self, partition: int, reading: Reading | HopOutcome, rows: list[bytes]) -> list[HopOutcome]:
        if isinstance(reading, HopOutcome):
            return [reading] * len(rows)
        tail = reading.tail
        return [
            HopOutcome(FOUND, found, tail)
            if type(found) is bytes
            else self._absent(partition, reading, row)
            if found is None
            else HopOutcome(ABSENT, found.members, tail)
            if isinstance(found, Hidden)
            else outcome_of(cast(Problem, found))
            for row, found in zip(
                rows, self._reader.find_many(rows, reading, partition, self._bound.selection), strict=True
            )
        ]

    def _absent(self, partition: int, reading: Reading, row: bytes) -> HopOutcome:
        """The outcome of a key that is not stored here. Only these need the check: Spark placed all stored keys."""
        reader = self._reader
        if reader.store.codec.place(row, reader.partitions) != partition:
            return _MISPLACED
        return HopOutcome(ABSENT, NOT_FOUND, reading.tail)
