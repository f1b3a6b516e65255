"""Keys and outcomes of a hop, as columns (pure).

A batch makes no object per key: its code works on the columns. Code for a single lookup takes one item. Every lookup
asks which of the two it has, by `type(...) is`: `isinstance` with an abstract sequence takes four times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar, overload

FOUND, ABSENT, PROBLEM = 0, 1, 2
"""Kinds of an outcome. The body of a PROBLEM is its whole `application/problem+json`."""

OPEN = 255
"""A value in a column of kinds: there is no outcome yet. It never travels."""

NO_PARTITION = -1
"""The partition of a key of a batch that does not parse."""


class HopKey(NamedTuple):
    """A key's partition, and its UnsafeRow bytes without the provider's prefix."""

    partition: int
    row: bytes


class HopOutcome(NamedTuple):
    """The outcome of one key. The `tail` belongs behind the body; a problem has no tail."""

    kind: int
    body: bytes
    tail: bytes = b""


Item = TypeVar("Item", HopKey, HopOutcome)


class _Columns(Sequence[Item]):
    """A sequence of items that is stored as columns."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it equals lists, which have no hash

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r:.200})"


class HopKeys(_Columns[HopKey]):
    """Keys as columns: the partition and the row of each."""

    __slots__ = ("partitions", "rows")

    def __init__(self, partitions: Sequence[int], rows: Sequence[bytes]) -> None:
        self.partitions = partitions
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[HopKey]:
        return map(HopKey, self.partitions, self.rows)

    @overload
    def __getitem__(self, at: int) -> HopKey: ...
    @overload
    def __getitem__(self, at: slice) -> HopKeys: ...
    def __getitem__(self, at: int | slice) -> HopKey | HopKeys:
        if isinstance(at, slice):
            return HopKeys(self.partitions[at], self.rows[at])
        return HopKey(self.partitions[at], self.rows[at])

    def at(self, indexes: Sequence[int]) -> HopKeys:
        """Return the keys at these indexes."""
        partitions, rows = self.partitions, self.rows
        return HopKeys([partitions[index] for index in indexes], [rows[index] for index in indexes])

    @classmethod
    def of(cls, keys: Sequence[HopKey]) -> HopKeys:
        """Return these keys as columns."""
        return keys if type(keys) is HopKeys else HopKeys([key[0] for key in keys], [key[1] for key in keys])


class HopOutcomes(_Columns[HopOutcome]):
    """Outcomes as columns: the kind, the body and the tail of each."""

    __slots__ = ("bodies", "kinds", "tails")

    def __init__(self, kinds: Sequence[int], bodies: Sequence[bytes], tails: Sequence[bytes]) -> None:
        self.kinds = kinds
        self.bodies = bodies
        self.tails = tails

    def __len__(self) -> int:
        return len(self.bodies)

    def __iter__(self) -> Iterator[HopOutcome]:
        return map(HopOutcome, self.kinds, self.bodies, self.tails)

    @overload
    def __getitem__(self, at: int) -> HopOutcome: ...
    @overload
    def __getitem__(self, at: slice) -> HopOutcomes: ...
    def __getitem__(self, at: int | slice) -> HopOutcome | HopOutcomes:
        if isinstance(at, slice):
            return HopOutcomes(self.kinds[at], self.bodies[at], self.tails[at])
        return HopOutcome(self.kinds[at], self.bodies[at], self.tails[at])

    @classmethod
    def of(cls, outcomes: Sequence[HopOutcome]) -> HopOutcomes:
        """Return these outcomes as columns."""
        if type(outcomes) is HopOutcomes:
            return outcomes
        return HopOutcomes(
            [outcome[0] for outcome in outcomes],
            [outcome[1] for outcome in outcomes],
            [outcome[2] for outcome in outcomes],
        )

    @classmethod
    def joined(cls, parts: Sequence[HopOutcomes]) -> HopOutcomes:
        """Join the outcomes of all parts, one after another."""
        if len(parts) == 1:
            return parts[0]
        return HopOutcomes(
            [kind for part in parts for kind in part.kinds],
            [body for part in parts for body in part.bodies],
            [tail for part in parts for tail in part.tails],
        )


def indexes_by_partition(partitions: Sequence[int]) -> dict[int, list[int]]:
    """Group the indexes of the keys by partition."""
    found: dict[int, list[int]] = {}
    for index, partition in enumerate(partitions):
        if partition in found:
            found[partition].append(index)
        else:
            found[partition] = [index]
    found.pop(NO_PARTITION, None)
    return found
