"""Kafka topics that a regular expression names, and the positions at which a new query begins to read topics (pure)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_shared.base.errors import SettingsError

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own topics, which match no pattern."""

_NESTED = re.compile(r"\[[^\]]*\[")
"""Java's union of sets, `[a-c[x-z]]`. Python takes the inner bracket for a character, which is in no topic's name."""


@dataclass(frozen=True, slots=True)
class TopicsPattern:
    """The topics whose names contain a match of a regular expression (Python's `re`). `^` and `$` anchor it.

    Spark's source searches in the same way. Raises SettingsError for an invalid expression.
    """

    text: str

    def __post_init__(self) -> None:
        try:
            if _NESTED.search(self.text):
                raise re.error("a set in a set is Java's")
            with warnings.catch_warnings():
                # Java's [a-z&&[^b]] has another meaning in Python, which warns of it.
                warnings.simplefilter("error", FutureWarning)
                re.compile(self.text)
        except (re.error, FutureWarning, OverflowError, RecursionError) as error:
            raise SettingsError(
                f"'{self.text}' is not a regular expression: {error}",
                where="option topics_pattern",
                fix="Write it in the syntax of Python's re, which is nearly Java's, like 'flights-.*'",
            ) from error

    def __contains__(self, topic: object) -> bool:
        """Whether this is the name of a topic that the pattern names."""
        return isinstance(topic, str) and topic not in INTERNAL_TOPICS and re.search(self.text, topic) is not None


LATEST, EARLIEST = -1, -2
"""Offsets that stand for the end and the beginning of a log, as in Spark's JSON."""

ByPartition = tuple[tuple[str, int, int], ...]
"""Topic, partition and number."""


@dataclass(frozen=True, slots=True)
class StartPositions:
    """The positions at which partitions begin. Exactly one of `offsets`, `times_ms` and `time_ms` is set."""

    option: str
    """The option that gave these positions."""

    offsets: ByPartition | None = None
    """An offset may be LATEST or EARLIEST."""

    times_ms: ByPartition | None = None
    """Begin at the first record that is not earlier."""

    time_ms: int | None = None
    """The same time for all partitions."""

    latest_if_none: bool = False
    """Begin at the end of a partition that has no record from that time on. Otherwise that is an error."""

    def topics(self) -> frozenset[str] | None:
        """Return the topics that are named. None if all are meant."""
        given = self.offsets if self.times_ms is None else self.times_ms
        return None if given is None else frozenset(topic for topic, _, _ in given)

    def of_partitions(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offset or the time of each partition. Raises SettingsError unless exactly these are given."""
        given = self.offsets if self.times_ms is None else self.times_ms
        if given is None:
            return dict.fromkeys(partitions, self.time_ms or 0)
        found = {TopicPartition(topic, partition): number for topic, partition, number in given}
        missing, unknown = sorted(set(partitions) - found.keys()), sorted(found.keys() - set(partitions))
        if missing or unknown:
            what = "leaves out" if missing else "names partitions that do not exist:"
            raise SettingsError(
                f"{self.option} {what} {', '.join(map(str, missing or unknown))}",
                where=f"option {self.option}",
                fix="Name exactly the partitions that exist; -2 stands for the beginning of one, -1 for its end",
            )
        return found


def cursor_at(partition: TopicPartition, offset: int, *, low: int, end: int, option: str) -> Cursor:
    """Return the cursor before the record at `offset`, in a log from `low` to before `end`. Raises SettingsError."""
    offset = {EARLIEST: low, LATEST: end}.get(offset, offset)
    if not low <= offset <= end:
        raise SettingsError(
            f"{partition} has offsets from {low} to {end}, not {offset}",
            where=f"option {option}",
            fix="Give an offset in that range; -2 stands for the beginning, -1 for the end",
        )
    return Cursor(offset=str(offset - 1), ordinal=offset)


def cursor_at_time(
    partition: TopicPartition, offset: int | None, *, time_ms: int, end: int, positions: StartPositions
) -> Cursor:
    """Return the cursor before `offset`, the first record at `time_ms` or later. None: no such record exists."""
    if offset is None and not positions.latest_if_none:
        raise SettingsError(
            f"{partition} has no record at {time_ms} ms or later",
            where=f"option {positions.option}",
            fix="Set startingOffsetsByTimestampStrategy to latest to begin at its end, or give an earlier time",
        )
    first = end if offset is None else offset
    return Cursor(offset=str(first - 1), ordinal=first)
