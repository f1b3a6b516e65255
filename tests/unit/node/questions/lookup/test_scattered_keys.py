"""A node asks all partitions of a scattered store, and calls a key absent only at one version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from understudy_node.questions.lookup.reads import find_everywhere
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.problems import Problem, refused
from understudy_shared.questions.lookup.hop import ABSENT, FOUND
from understudy_shared.reads.bounds import NO_BOUND, Bound, Refusal
from understudy_shared.reads.tokens import Position
from understudy_shared.spark.key_codec import ANY_PARTITION

SHOWN = {0: 4, 1: 3}
"""The newest version of each partition."""
HELD = {(0, 4): {b"b"}, (0, 3): {b"a", b"b"}, (1, 3): set[bytes]()}
"""The keys of each partition at each version: the one ahead lost `a`."""


class Reader:
    """A reader of two partitions at different versions. One without `past` has yet to open older ones."""

    partitions = 2
    store = SimpleNamespace(name="op0", codec=SimpleNamespace(is_scattered=True))

    def __init__(self, *, past: bool = True) -> None:
        self.past = past
        self.pinned: list[int] = []
        self.replicas = dict.fromkeys(SHOWN, SimpleNamespace(pin=self.pinned.append))

    def read_from(self, partition: int, bound: Bound) -> Any:
        version = SHOWN[partition] if bound.read_version is None else bound.read_version.number
        if version < SHOWN[partition] and not self.past:
            return refused(Refusal.VERSION_OPENING, candidates=[])
        position = Position(ApplicationId("app"), Lineage("l1"), version, None).encode().encode()
        tail = b'"partition":%d,"version":%d,"position":"%b"}' % (partition, version, position)
        return SimpleNamespace(view=version, tail=tail)

    def find_many(self, rows: list[bytes], reading: Any, partition: int, _: object) -> list[bytes | None]:
        held = HELD[partition, reading.view]
        return [b'"found":true,' if row in held else None for row in rows]


def test_a_key_that_the_partition_ahead_lost_is_found_at_the_version_of_the_one_behind() -> None:
    reader: Any = Reader()
    lost, found, nowhere = find_everywhere(reader, [b"a", b"b", b"c"], NO_BOUND, {})
    assert not isinstance(lost, Problem)
    assert not isinstance(found, Problem)
    assert not isinstance(nowhere, Problem)
    assert (lost.kind, lost.tail[:26]) == (FOUND, b'"partition":0,"version":3,')
    assert (found.kind, found.tail[:26]) == (FOUND, b'"partition":0,"version":4,')
    assert (nowhere.kind, nowhere.tail[:29]) == (ABSENT, b'"partition":null,"version":3,')
    assert set(reader.pinned) == {3, 4}


def test_while_that_version_is_opened_only_keys_that_are_not_found_wait_for_it() -> None:
    reader: Any = Reader(past=False)
    readings: dict[int, Any] = {}
    lost, found = find_everywhere(reader, [b"a", b"b"], NO_BOUND, readings)
    assert isinstance(lost, Problem)
    assert lost.refusal is Refusal.VERSION_OPENING
    assert not isinstance(found, Problem)
    assert readings[ANY_PARTITION].refusal is Refusal.VERSION_OPENING
    assert not any(isinstance(readings[partition], Problem) for partition in SHOWN)
