"""The requests of the planner to an input. A prefetch thread sends one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from understudy_aligned.inputs.records import Cursor, TopicPartition


class CountPartitions(NamedTuple):
    """Count the partitions of the server's topics, and ask for the topics' ids."""


class Seek(NamedTuple):
    """Continue behind these cursors."""

    cursors: Mapping[TopicPartition, Cursor]
    generation: int


class Fetch(NamedTuple):
    """Fetch up to `wanted` records of each partition."""

    wanted: Mapping[TopicPartition, int]
    generation: int
    wait_ms: int


InputRequest = CountPartitions | Seek | Fetch
