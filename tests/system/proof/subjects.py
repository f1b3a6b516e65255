"""The queries that the proof can run, as their readers know them (pure); `query.py` has what Spark runs of each."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tests.system.proof import keys, kinds_keys, many_keys, moods_keys
from tests.system.proof.question import Question


@dataclass(frozen=True, slots=True)
class Subject:
    """A query under proof. `kinds` has its stores with the kind of state of each, `choose` what a reader asks when a
    version is the newest. A batch begins every `every_ms`. `formats` are those of world.py that it can be kept in,
    `added` the stores that are not there before the fault `added-variable`: readers ask for them when they are told.
    """

    name: str
    kinds: Mapping[str, str]
    partitions: int
    every_ms: int
    choose: Callable[[random.Random, int], Question]
    formats: tuple[str, ...]
    added: frozenset[str] = frozenset()


COUNTS: Final = Subject(
    name="counts",
    kinds=MappingProxyType({keys.STORE: "value"}),
    partitions=6,
    every_ms=700,
    choose=keys.choose_question,
    formats=("rocksdb", "rocksdb-v1", "hdfs"),
)
KINDS: Final = Subject(
    name="kinds",
    kinds=MappingProxyType(kinds_keys.STORES),
    partitions=2,
    every_ms=2000,
    choose=kinds_keys.choose_question,
    formats=("rocksdb",),
)
SCATTERED: Final = Subject(
    name="scattered",
    kinds=MappingProxyType(kinds_keys.SCATTERED_STORES),
    partitions=2,
    every_ms=2000,
    choose=kinds_keys.choose_scattered_question,
    formats=("rocksdb",),
)
MOODS: Final = Subject(
    name="moods",
    kinds=moods_keys.STORES,
    partitions=4,
    every_ms=2000,
    choose=moods_keys.choose_question,
    formats=("rocksdb-v1",),
    added=frozenset({moods_keys.MOOD}),
)
MANY: Final = Subject(
    name="many",
    kinds=MappingProxyType({keys.STORE: "value"}),
    partitions=4,
    every_ms=400,
    choose=many_keys.choose_question,
    formats=("rocksdb", "hdfs"),
)
SUBJECTS: Final = MappingProxyType({subject.name: subject for subject in (COUNTS, KINDS, SCATTERED, MOODS, MANY)})
