"""The positions at which a query begins, and at which one with AvailableNow stops: the logs' current ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from understudy_aligned.inputs.arrays import scalar, to_numpy
from understudy_aligned.inputs.protocol import Input
from understudy_aligned.inputs.records import Chunk, Cursor, TopicPartition
from understudy_aligned.open_inputs import OpenInputs
from understudy_aligned.options import AlignedOptions

if TYPE_CHECKING:
    from understudy_aligned.inputs.kafka_config import KafkaConfig


class Positions(NamedTuple):
    """Positions in the partitions that exist, and the partition count of each topic."""

    cursors: Mapping[TopicPartition, Cursor]
    counts: Mapping[str, int]


def first_positions(options: AlignedOptions, inputs: OpenInputs, *, timeout_ms: int) -> Positions:
    """Find where a new query begins in each partition that exists now. Later ones are read from their first record.

    Asks every server. Raises InputError, and SettingsError for positions that there are not.
    """
    if options.start_positions is not None:
        from understudy_aligned.inputs.kafka_starts import start_cursors  # noqa: PLC0415  # loads Kafka's client

        config, positions = cast("KafkaConfig", options.inputs[0]), options.start_positions
        return _ask(
            options, inputs, lambda _, tps: start_cursors(config, positions, tps, timeout_ms=timeout_ms), timeout_ms
        )
    if options.starting == "latest":
        return _current_ends(options, inputs, timeout_ms)
    return _ask(options, inputs, lambda asked, tps: asked.beginnings(tps, timeout_ms=timeout_ms), timeout_ms)


def current_ends(options: AlignedOptions, inputs: OpenInputs, *, timeout_ms: int) -> Mapping[TopicPartition, Cursor]:
    """Ask every server where its logs end. Raises InputError when one does not answer within `timeout_ms`."""
    return _current_ends(options, inputs, timeout_ms).cursors


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
    return Positions(cursors, counts)


def is_at(cursor: Cursor, end: Cursor) -> bool:
    """Whether a reader at `cursor` has reached `end`."""
    return end.offset in ("", cursor.offset) or cursor.ordinal >= end.ordinal > 0


def up_to(chunk: Chunk, end: Cursor) -> tuple[Chunk | None, bool]:
    """Return the part of a chunk up to `end` (None if empty), and whether the chunk reaches it.

    The end is found by its offset, or by its ordinal if that record no longer exists.
    """
    if not end.offset:
        return None, True
    counts = [chunk.rows.num_rows]
    at = pc.index(chunk.rows.column("offset"), scalar(end.offset, pa.string())).as_py()
    if at >= 0:
        counts.append(at + 1)
    ordinals = to_numpy(chunk.rows.column("ordinal"))
    if end.ordinal > 0 and ordinals[-1] >= end.ordinal - 1:
        counts.append(ordinals.searchsorted(end.ordinal))
    count = int(min(counts))
    kept = Chunk(chunk.partition, chunk.rows.slice(0, count), chunk.sizes[:count]) if count else None
    return kept, len(counts) > 1
