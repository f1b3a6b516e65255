"""The keys of a hop's group, answered in slices from the versions that this node shows (no I/O but the stores').

Rule: a key is called absent only if Spark would have put it where it was looked for. A router whose catalogue is not
this node's looks for existing keys in places where they cannot be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from understudy_node.stores.lookup import Reading, StoreReader
from understudy_shared.bounds import Bound
from understudy_shared.errors import UnderstudyError
from understudy_shared.hop import ABSENT, FOUND, MAX_HOP_BYTES, PROBLEM, HopKey, HopOutcome
from understudy_shared.http.problems import Problem, ProblemType, problem_of

HOP_SLICE_KEYS = 200
"""Keys answered between two turns of the event loop: about a millisecond."""


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
"""Of keys that were not looked up any more. Routers do not read such a reply to its end: they ask for half of it."""

_MISPLACED = outcome_of(outdated("this is no key of this partition as Spark would have stored it"))


class GroupLookups:
    """The lookups of one group, partition by partition: each is read at one version throughout.

    Iterating does the work, in slices, and yields the keys done in each. `body_bytes` is what they answer so far.
    """

    def __init__(self, reader: StoreReader, keys: Sequence[HopKey], bound: Bound, known_end: int) -> None:
        self.body_bytes = 0
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
            self.body_bytes = len(only.body)
            yield 1
            return
        by_partition: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            indexes = by_partition.get(key[0])
            if indexes is None:
                by_partition[key[0]] = [index]
            else:
                indexes.append(index)
        done = self._done
        for partition, indexes in by_partition.items():
            reading = self._read_from(partition)
            for start in range(0, len(indexes), HOP_SLICE_KEYS):
                part = indexes[start : start + HOP_SLICE_KEYS]
                outcomes = self._look_up(partition, reading, [keys[index][1] for index in part])
                for index, outcome in zip(part, outcomes, strict=True):
                    done[index] = outcome
                    self.body_bytes += len(outcome[1])
                yield len(part)

    def outcomes(self, rest: HopOutcome) -> list[HopOutcome]:
        """In the order of the keys; `rest` is what comes of those that were not reached."""
        done = self._done
        if None not in done:
            return cast(list[HopOutcome], done)
        return [rest if outcome is None else outcome for outcome in done]

    def _read_from(self, partition: int) -> Reading | HopOutcome:
        """The version to answer a partition's keys from, or what comes of all of them."""
        if partition >= self._reader.partitions:
            return outcome_of(not_here(f"there is no partition {partition}"))
        reading = self._reader.read_from(partition, self._bound, self._known_end)
        return outcome_of(reading) if isinstance(reading, Problem) else reading

    def _look_up(self, partition: int, reading: Reading | HopOutcome, rows: list[bytes]) -> list[HopOutcome]:
        if isinstance(reading, HopOutcome):
            return [reading] * len(rows)
        reader = self._reader
        try:
            prefix, rest = reader.row_prefix, reader.rest
            keys = [prefix + row for row in rows] if prefix else rows
            values = reading.view.stores[reader.store.store_name].get_many(keys)
            return [
                HopOutcome(FOUND, rest(value, reading))
                if value is not None
                else self._absent(partition, reading, rows[index])
                for index, value in enumerate(values)
            ]
        except UnderstudyError as error:
            if len(rows) == 1:
                return [outcome_of(problem_of(error))]
            # The damage is of some keys.
            return [outcome for row in rows for outcome in self._look_up(partition, reading, [row])]

    def _absent(self, partition: int, reading: Reading, row: bytes) -> HopOutcome:
        """Of a key that is not there. One that is there is in its right place: Spark put it there."""
        reader = self._reader
        if reader.store.codec.place(row, reader.partitions) != partition:
            return _MISPLACED
        return HopOutcome(ABSENT, reader.rest(None, reading))
