"""Opens the inputs of a query from their configurations, and asks them what a query needs before it reads.

A new kind of input needs an entry in `OPENERS` and its options in `option_parsing.py`. Inputs are imported when they
are first opened: the clients of Kafka and Redis load slowly, and most processes need only one of them. Connecting takes
longer than asking, so callers that ask an input before the query reads leave it open.

Options that need a server or a folder are checked at `load()`, before there is a query that could fail. The offset
keeps the ids of topics, because they alone show that a topic was deleted and created again: once the new log has grown
past a position, it looks like the old one.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from understudy_aligned.inputs.protocol import DataLostError, Input, InputConfig, RangeReader
from understudy_aligned.inputs.records import Chunk, Cursor, TopicPartition
from understudy_aligned.options import AlignedOptions
from understudy_shared.base.errors import SettingsError

if TYPE_CHECKING:
    from understudy_aligned.inputs.kafka_client import KafkaConfig


class Opener(NamedTuple):
    """The functions that make an input, and a reader of ranges, from the configuration of one kind."""

    input: Callable[[Any], Input]
    reader: Callable[[Any], RangeReader]


def open_input(config: InputConfig) -> Input:
    """Open an input for the planner. Does no I/O."""
    return OPENERS[config.kind]().input(config)


def open_reader(config: InputConfig) -> RangeReader:
    """Open a reader of ranges for an executor. Does no I/O."""
    return OPENERS[config.kind]().reader(config)


def _kafka() -> Opener:
    from understudy_aligned.inputs.kafka_input import KafkaInput  # noqa: PLC0415  # see above
    from understudy_aligned.inputs.kafka_reader import KafkaRangeReader  # noqa: PLC0415

    return Opener(KafkaInput, KafkaRangeReader)


def _redis() -> Opener:
    from understudy_aligned.inputs.redis_streams import RedisInput, RedisRangeReader  # noqa: PLC0415  # see above

    return Opener(RedisInput, RedisRangeReader)


OPENERS: dict[str, Callable[[], Opener]] = {"kafka": _kafka, "redis": _redis}
"""By the configuration's `kind`."""


class OpenInputs:
    """Opens an input when it is first asked for. Not thread-safe."""

    def __init__(self, configs: Sequence[InputConfig]) -> None:
        self.configs = configs
        self._kept: dict[int, Input] = {}
        self._taken: set[int] = set()

    @contextmanager
    def lend(self, index: int) -> Iterator[Input]:
        """Lend input number `index` for a block. If it was taken, it is in use, so open another one for the block.

        After an error the input is closed, so that the next caller gets a new one.
        """
        opened = self._kept.pop(index, None) or open_input(self.configs[index])
        is_kept = False
        try:
            yield opened
            is_kept = index not in self._taken
        finally:
            if is_kept:
                self._kept[index] = opened
            else:
                opened.close()

    def take(self, index: int) -> Input:
        """Hand an input over to a caller that closes it."""
        self._taken.add(index)
        return self._kept.pop(index, None) or open_input(self.configs[index])

    def close(self) -> None:
        """Close the open inputs that were not taken."""
        while self._kept:
            self._kept.popitem()[1].close()


def check_inputs(options: AlignedOptions) -> Mapping[str, int]:
    """Ask every server for its topics, over a new connection (`check_opened`)."""
    inputs = OpenInputs(options.inputs)
    try:
        return check_opened(options, inputs)
    finally:
        inputs.close()


def check_opened(options: AlignedOptions, inputs: OpenInputs) -> Mapping[str, int]:
    """Ask every server for its topics, and return the partition count of each topic.

    Raises InputError when a server does not answer within `request_timeout_ms`, UnknownTopicError, and SettingsError
    for a partition that is assigned and does not exist.
    """
    counts: dict[str, int] = {}
    for index in range(len(options.inputs)):
        with inputs.lend(index) as asked:
            counts |= asked.partitions(timeout_ms=options.request_timeout_ms)
    unknown = sorted((options.assigned or frozenset()) - set(options.partitions(counts)))
    if unknown:
        counted = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
        raise SettingsError(
            f"partitions that are assigned do not exist: {', '.join(map(str, unknown))}",
            where="option assign",
            fix=f"Partitions are numbered from 0: {counted}",
        )
    return counts


def check_even(options: AlignedOptions, counts: Mapping[str, int]) -> None:
    """Raise SettingsError if a new query cannot merge topics of these partition counts partition by partition.

    A query that has begun is never refused: a topic may have grown since, and its `merge` is fixed.
    """
    is_merged = options.merge == "task" and options.assigned is None
    if is_merged and len(set(counts.values())) > 1:
        counted = ", ".join(f"{topic} has {counts[topic]}" for topic in options.topics or counts)
        raise SettingsError(
            f"topics that are merged partition by partition need equal numbers of partitions: {counted}",
            where="option merge",
            fix="Set merge to 'global' to merge all partitions together, or give every topic as many partitions",
        )


def check_folders(options: AlignedOptions) -> None:
    """Raise SettingsError if this process cannot write to a folder that an option names. Make the folder of poison
    records.

    Executors do not make it: one that does not share the folder would write to its own disk unnoticed.
    """
    for name, folder in (("undecodable_path", options.undecodable_path), ("checkpoint", options.checkpoint)):
        if folder is not None and not _is_writable(folder):
            raise SettingsError(
                f"the folder '{folder}' cannot be created or written to",
                where=f"option {name}",
                fix="Name another folder, or give this user write access to it",
            )
    if options.undecodable_path is not None:
        options.undecodable_path.mkdir(parents=True, exist_ok=True)


def _is_writable(folder: Path) -> bool:
    """Whether the folder, or its nearest parent that exists, is a folder that this process can write to."""
    for place in (folder, *folder.parents):
        if place.exists():
            return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return False


Positions = tuple[Mapping[TopicPartition, Cursor], Mapping[str, int]]
"""Positions in the partitions that exist, and the partition count of each topic."""


def first_positions(options: AlignedOptions, inputs: OpenInputs, *, timeout_ms: int) -> Positions:
    """Find where a new query begins in each partition that exists now. New partitions are read from their first record.

    Asks every server. Raises InputError, and SettingsError for positions that do not exist.
    """
    if options.start_positions is not None:
        from understudy_aligned.inputs.kafka_client import start_cursors  # noqa: PLC0415  # loads Kafka's client

        config, positions = cast("KafkaConfig", options.inputs[0]), options.start_positions
        return _ask(
            options, inputs, lambda _, tps: start_cursors(config, positions, tps, timeout_ms=timeout_ms), timeout_ms
        )
    if options.starting == "latest":
        return _current_ends(options, inputs, timeout_ms)
    return _ask(options, inputs, lambda asked, tps: asked.beginnings(tps, timeout_ms=timeout_ms), timeout_ms)


def current_ends(options: AlignedOptions, inputs: OpenInputs, *, timeout_ms: int) -> Mapping[TopicPartition, Cursor]:
    """Ask every server where its logs end. Raises InputError when one does not answer within `timeout_ms`."""
    return _current_ends(options, inputs, timeout_ms)[0]


def _current_ends(options: AlignedOptions, inputs: OpenInputs, timeout_ms: int) -> Positions:
    return _ask(options, inputs, lambda asked, tps: asked.ends(tps, timeout_ms=timeout_ms), timeout_ms)


def _ask(
    options: AlignedOptions,
    inputs: OpenInputs,
    find: Callable[[Input, Sequence[TopicPartition]], Mapping[TopicPartition, Cursor]],
    timeout_ms: int,
) -> Positions:
    """Ask every server about all of its partitions."""
    cursors: dict[TopicPartition, Cursor] = {}
    counts: dict[str, int] = {}
    for index in range(len(options.inputs)):
        with inputs.lend(index) as asked:
            counted = asked.partitions(timeout_ms=timeout_ms)
            cursors.update(find(asked, options.partitions(counted)))
            counts.update(counted)
    return cursors, counts


def is_at(cursor: Cursor, end: Cursor) -> bool:
    """Whether a reader at `cursor` has surely reached `end`, without asking: seeking and fetching find what is lost."""
    return cursor.offset == end.offset


def up_to(chunk: Chunk, end: Cursor) -> tuple[Chunk | None, bool]:
    """Return the part of a chunk up to `end` (None if empty), and whether the chunk reaches it.

    Offsets are compared, because the record at `end` may not exist any more, and ordinals continue after a loss.
    """
    offsets, last = chunk.rows.column("offset"), _place_of(end.offset)
    count = bisect_right(range(len(offsets)), last, key=lambda index: _place_of(offsets[index].as_py()))
    kept = Chunk(chunk.partition, chunk.rows.slice(0, count), chunk.sizes[:count]) if count else None
    return kept, _place_of(offsets[-1].as_py()) >= last


def _place_of(offset: str) -> tuple[int, int]:
    """Return what orders offsets: numbers of Kafka, and IDs of Redis. "" and "-1" are before the first record."""
    first, _, second = offset.partition("-")
    return int(first or -1), int(second or 0)


log = logging.getLogger(__name__)


def made_anew(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """Return the topics whose id has changed (pure). A topic is left out if its old or its new id is unknown."""
    return frozenset(topic for topic, found in now.items() if before.get(topic, found) != found)


def report_made_anew(topics: Collection[str], *, is_error: bool) -> None:
    """Raise DataLostError if `is_error`, else log a warning."""
    named = ", ".join(sorted(topics))
    what = f"topics were deleted and created again, and what was not read before is lost: {named}"
    if is_error:
        raise DataLostError(
            what,
            where="option topics",
            fix="Start with a new checkpoint, or set fail_on_data_loss=false to read the new topics from the beginning",
        )
    log.warning("%s; reading the new topics from their beginning", what, extra={"action": "data-lost"})


def lost_topics(options: AlignedOptions, ids: Mapping[str, str], topics: Collection[str]) -> Collection[str]:
    """Return topics of a logged batch that cannot be replayed: created again since they had these ids, or deleted.

    Raises DataLostError for them unless data may be lost. Only a pattern's topics are checked for deletion: `load()`
    checks topics that the options name.
    """
    anew = made_anew(ids, _current_ids(options, ids)) if ids else frozenset()
    if anew:
        report_made_anew(anew, is_error=options.fail_on_data_loss)
    deleted = frozenset() if options.pattern is None else frozenset(topics) - check_inputs(options).keys()
    if deleted:
        report_lost(f"topics were deleted: {', '.join(sorted(deleted))}", is_error=options.fail_on_data_loss)
    return anew | deleted


def report_lost(what: str, *, is_error: bool) -> None:
    """Report topics or partitions that no longer exist: raise DataLostError if `is_error`, else log a warning."""
    if is_error:
        raise DataLostError(
            what,
            where="option topics",
            fix="Bring them back, or start with a new checkpoint; with fail_on_data_loss=false the query goes on "
            "without them",
        )
    log.warning("%s", what, extra={"action": "data-lost"})


def _current_ids(options: AlignedOptions, topics: Collection[str]) -> Mapping[str, str]:
    """Ask every server for the ids of these topics, over a new connection. Unknown ids are left out."""
    ids: dict[str, str] = {}
    for config in options.inputs:
        opened = open_input(config)
        try:
            asked = [topic for topic in topics if topic in config.topics]
            ids |= opened.topic_ids(asked, timeout_ms=options.request_timeout_ms)
        finally:
            opened.close()
    return ids
