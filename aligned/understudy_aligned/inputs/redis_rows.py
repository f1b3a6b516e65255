"""Stream entries as records, and lost entries, which the stream's `XINFO` shows (pure: no I/O).

Rule: every entry that still exists is read, and entries that were removed unread are always reported. Redis removes
entries from the beginning (XTRIM, MAXLEN, MINID), all at once (DEL, FLUSHALL), or one by one (XDEL). An XDEL is not a
loss, like compaction in Kafka. It looks like a trim only if it removes everything up to the reader's position. Before a
reader has read anything, a trim cannot be told from an XDEL, so in a stream that ever had an XDEL it goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from understudy_aligned.inputs.records import (
    ROW_SCHEMA,
    Chunk,
    TopicPartition,
    binaries,
    lengths,
    numbers,
    optional_numbers,
    record_size,
    scalar,
    to_numpy,
)
from understudy_aligned.inputs.timestamps import END_TIME_MS, LEAST_TIME_MS, TimestampRule, value_times_ms


def rows(
    *, offsets: pa.StringArray, ordinal: int, times: pa.Int64Array, keys: pa.BinaryArray | None, values: pa.BinaryArray
) -> pa.RecordBatch:
    """Make a record batch whose records are numbered from `ordinal` on."""
    count = len(values)
    return pa.record_batch(
        [
            offsets,
            numbers(np.arange(ordinal, ordinal + count, dtype=np.int64)),
            times,
            pa.nulls(count, pa.binary()) if keys is None else keys,
            values,
            pa.nulls(count, ROW_SCHEMA.field("headers").type),
            pa.nulls(count, pa.int32()),
        ],
        schema=ROW_SCHEMA,
    )


def chunk_of(partition: TopicPartition, batch: pa.RecordBatch) -> Chunk:
    """Make a chunk with the sizes of its records, which have no headers."""
    return Chunk(partition, batch, _sizes(partition.topic, batch))


def times_in_values(rule: TimestampRule, values: Sequence[bytes | None]) -> pa.Int64Array:
    """Read timestamps from a field of the values; null where the field has no usable one."""
    return optional_numbers(value_times_ms(rule, values))


def within_years(times: pa.Int64Array) -> pa.Int64Array:
    """Replace times outside the range of Spark's timestamps by null."""
    times_ms = to_numpy(times, null=END_TIME_MS)
    return numbers(times_ms, nulls=(times_ms < LEAST_TIME_MS) | (times_ms >= END_TIME_MS))


def _sizes(topic: str, batch: pa.RecordBatch) -> NDArray[np.int64]:
    return lengths(batch.column("key")) + lengths(batch.column("value")) + record_size(topic, None, None)


Entry = tuple[bytes, list[bytes]]
"""An entry as the server sends it: its ID, and a list in which field names and values alternate."""

EntryId = tuple[int, int]

NO_ENTRY_EVER: EntryId = (0, 0)


class StreamInfo(NamedTuple):
    """The state of a stream at one moment."""

    last: EntryId
    """The greatest ID that the stream ever had."""

    first: EntryId | None
    """The ID of the first entry that still exists."""

    length: int
    added: int | None
    """Entries that were ever added. None before Redis 7.0, which does not report it."""

    has_deleted: bool = False
    """Whether an entry was removed by XDEL."""

    @property
    def removed(self) -> int | None:
        """Entries that were removed since the stream was created."""
        return None if self.added is None else self.added - self.length


class StreamPosition(NamedTuple):
    """The position of a reader in one stream."""

    offset: str
    """The ID of the last entry that was read. "" is the beginning."""

    ordinal: int
    """The ordinal of the next record."""

    counted: int | None
    """Entries that were ever added up to here, plus later ones that were removed before this reader began. Once
    everything up to here is removed, the stream has lost exactly this many entries, or else unread ones as well. None:
    unknown, so counting finds no loss.
    """


def entry_id(text: str | bytes) -> EntryId:
    """Parse an ID, `<milliseconds>-<sequence>`, into a pair that sorts correctly."""
    ms, _, sequence = (text if isinstance(text, str) else text.decode()).partition("-")
    return int(ms), int(sequence or 0)


def id_text(of: EntryId) -> str:
    """Return the ID as the server writes it."""
    return f"{of[0]}-{of[1]}"


def stream_info(reply: Sequence[object]) -> StreamInfo:
    """Parse the reply to XINFO STREAM, in which names and values alternate. Its fields differ by server version."""
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    first, last, added = fields[b"first-entry"], fields[b"last-generated-id"], fields.get(b"entries-added")
    assert isinstance(last, bytes)
    return StreamInfo(
        last=entry_id(last),
        first=entry_id(first[0]) if isinstance(first, list | tuple) else None,
        length=int(str(fields[b"length"])),
        added=None if added is None else int(str(added)),
        has_deleted=fields.get(b"max-deleted-entry-id", b"0-0") != b"0-0",
    )


def find_loss(place: StreamPosition, info: StreamInfo | None) -> str | None:
    """Return the evidence that entries after `place` were removed unread. None without evidence.

    `info` is None for a stream that does not exist. While an entry up to `place` exists, nothing after it was trimmed.
    When all of them are gone, the number of removed entries must be the number that was counted.
    """
    if not place.offset:
        return _loss_before_the_first(place.counted, info)
    here = entry_id(place.offset)
    if info is None:
        return "the stream is gone"
    if info.last < here:
        return f"the stream ends at {id_text(info.last)}: it was created again, or a replica without its end took over"
    if place.counted is None:
        return None
    if info.added is not None and info.added < place.counted:
        return f"the stream was created again: it had {info.added} entries in all, fewer than were counted"
    if info.last == here or (info.first is not None and info.first <= here):
        return None
    if info.removed is None:
        return "everything up to there was removed, and perhaps more: a server before 7.0 does not report it"
    if info.removed < place.counted:
        return f"the stream was created again: {info.removed} of its entries were removed, fewer than were counted"
    behind = info.removed - place.counted
    return f"{behind} entries behind it were removed unread" if behind else None


def _loss_before_the_first(counted: int | None, info: StreamInfo | None) -> str | None:
    """Return the evidence that more entries were removed before the reader's first one than were counted."""
    if counted is None or info is None or info.removed is None or info.has_deleted or info.removed <= counted:
        return None
    return f"{info.removed - counted} entries were removed before they were read"


def position_after_loss(place: StreamPosition, info: StreamInfo | None) -> StreamPosition:
    """Return where to continue after a loss: at what is left, or at the beginning of a recreated stream."""
    if not place.offset or info is None or info.last < entry_id(place.offset):
        removed = 0 if place.offset or info is None else info.removed or 0
        return StreamPosition("", max(place.ordinal, removed), None)
    is_past = info.first is None or info.first > entry_id(place.offset)
    return place._replace(counted=info.removed if is_past else None)


def with_known_counts(place: StreamPosition, info: StreamInfo | None) -> StreamPosition:
    """Return the position with counts from `info`: the ordinal at the beginning, or the exact count at the end."""
    if info is None or info.last == NO_ENTRY_EVER:
        return place
    if not place.offset:
        base = info.removed or 0
        return StreamPosition("", place.ordinal or base, base)
    return place._replace(counted=info.added) if info.last == entry_id(place.offset) and info.added else place


def advance(place: StreamPosition, entries: Sequence[Entry], info: StreamInfo | None) -> StreamPosition:
    """Return the position after `entries`, read at the moment of `info`. `place` must have known counts."""
    if info is None or info.last == NO_ENTRY_EVER:
        return place
    if not entries:
        return place if place.offset else StreamPosition(id_text(info.last), place.ordinal, info.added or place.ordinal)
    ordinal = place.ordinal + len(entries)
    counted = None if place.counted is None else place.counted + len(entries)
    return with_known_counts(
        StreamPosition(entries[-1][0].decode(), ordinal, ordinal if info.added is None else counted), info
    )


def lag_behind(place: StreamPosition, info: StreamInfo | None) -> int:
    """Count the entries after `place`, of which there are some; 1 if the count is unknown."""
    if info is None or info.added is None or place.counted is None:
        return 1
    return max(1, info.added - place.counted)


class EntryFields(NamedTuple):
    """The names of an entry's key and value fields, and where its timestamp comes from."""

    key: bytes
    value: bytes
    timestamp: TimestampRule


def entry_rows(entries: Sequence[Entry], fields: EntryFields, *, ordinal: int) -> pa.RecordBatch:
    """Convert adjacent entries to records numbered from `ordinal` on. A missing field is null."""
    ids = binaries([entry[0] for entry in entries]).cast(pa.string())
    keys, values = columns_of([entry[1] for entry in entries], fields.key, fields.value)
    times = id_times(ids) if fields.timestamp.is_record_time else times_in_values(fields.timestamp, values)
    key_column, value_column = binaries(keys), binaries(values)
    return rows(offsets=ids, ordinal=ordinal, times=times, keys=key_column, values=value_column)


def id_times(ids: pa.StringArray) -> pa.Int64Array:
    """Return the first halves of IDs. They are times unless the writer set other IDs."""
    ms = pc.list_element(pc.split_pattern(ids, "-", max_splits=1), scalar(0, pa.int64())).cast(pa.uint64())
    fits = pc.less(ms, scalar(2**62, pa.uint64()))
    return within_years(pc.if_else(fits, ms, scalar(None, pa.uint64())).cast(pa.int64()))


def columns_of(named: Sequence[list[bytes]], *names: bytes) -> list[list[bytes | None]]:
    """Return the values of each name, the first of a repeated one. Fast if all entries have the same fields."""
    try:
        places = list(zip(*named, strict=True))
    except ValueError:  # not the same number of fields
        places = []
    count = len(named)
    alike = places and all(places[at].count(places[at][0]) == count for at in range(0, len(places), 2))
    if not alike:
        return [[_value(fields, name) for fields in named] for name in names]
    shape = [place[0] for place in places[::2]]
    return [list(places[2 * shape.index(name) + 1]) if name in shape else [None] * count for name in names]


def _value(fields: list[bytes], name: bytes) -> bytes | None:
    return next((fields[at + 1] for at in range(0, len(fields), 2) if fields[at] == name), None)
