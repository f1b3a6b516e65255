"""What a stream's entries are as records, and what its `XINFO` tells of entries that are gone (pure: no I/O).

Rule: an entry that is still there is never passed over, and entries that were removed unread are never passed over in
silence. Redis removes entries from the beginning (XTRIM, MAXLEN, MINID), all at once (DEL, FLUSHALL), or one by one
(XDEL). The last is a word about one entry, as compaction is in Kafka; only when it takes everything up to the position
away does it look like the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from understudy_pipeline.inputs.columns import rows, times_in_values, within_years
from understudy_pipeline.inputs.timestamps import TimestampRule

Entry = tuple[bytes, list[bytes]]
"""An ID, and names and values of its fields in turn: a pair, as the server sends it."""

EntryId = tuple[int, int]

NO_ENTRY_EVER: EntryId = (0, 0)


class StreamInfo(NamedTuple):
    """A stream at one moment."""

    last: EntryId
    """The greatest ID that it ever had."""

    first: EntryId | None
    """Of the first entry that is still there."""

    length: int
    added: int | None
    """Entries that were ever added. Servers tell since Redis 7.0."""

    @property
    def removed(self) -> int | None:
        """Entries that were removed since the stream was made."""
        return None if self.added is None else self.added - self.length


class StreamPosition(NamedTuple):
    """Where a reader of one stream stands."""

    offset: str
    """The ID of the last entry that was taken; "" is the beginning."""

    ordinal: int
    """Of the next record."""

    counted: int | None
    """Entries that were ever added up to here, and those behind that were removed before this reader looked: once
    everything up to here is removed, just so many are. None: not known, and nothing is told by counting.
    """


def entry_id(text: str | bytes) -> EntryId:
    """`<milliseconds>-<sequence>` as something to compare."""
    ms, _, sequence = (text if isinstance(text, str) else text.decode()).partition("-")
    return int(ms), int(sequence or 0)


def id_text(of: EntryId) -> str:
    """As the server writes it."""
    return f"{of[0]}-{of[1]}"


def stream_info(reply: Sequence[object]) -> StreamInfo:
    """Of the reply to XINFO STREAM: names and values in turn, which differ by version."""
    told = dict(zip(reply[::2], reply[1::2], strict=True))
    first, last, added = told[b"first-entry"], told[b"last-generated-id"], told.get(b"entries-added")
    assert isinstance(last, bytes)
    return StreamInfo(
        last=entry_id(last),
        first=entry_id(first[0]) if isinstance(first, list | tuple) else None,
        length=int(str(told[b"length"])),
        added=None if added is None else int(str(added)),
    )


def find_loss(place: StreamPosition, info: StreamInfo | None) -> str | None:
    """How it shows that entries behind the place were removed unread; None when they were not.

    `info` is None for a stream that does not exist. While an entry up to the place is there, nothing behind it was
    trimmed; and when all are gone, as many must be gone as were counted.
    """
    if not place.offset:
        return None
    here = entry_id(place.offset)
    if info is None:
        return "the stream is gone"
    if info.last < here:
        return f"the stream ends at {id_text(info.last)}: it was made anew, or a replica without its end took over"
    if place.counted is None:
        return None
    if info.added is not None and info.added < place.counted:
        return f"the stream was made anew: it had {info.added} entries in all, fewer than were counted"
    if info.last == here or (info.first is not None and info.first <= here):
        return None
    if info.removed is None:
        return "everything up to there was removed, and perhaps more: this server, older than 7.0, does not tell"
    if info.removed < place.counted:
        return f"the stream was made anew: {info.removed} of its entries were removed, fewer than were counted"
    behind = info.removed - place.counted
    return f"{behind} entries behind it were removed unread" if behind else None


def position_after_loss(place: StreamPosition, info: StreamInfo | None) -> StreamPosition:
    """Where to go on after a loss: at what is left behind the place, or of a stream that was made anew, all."""
    if info is None or info.last < entry_id(place.offset):
        return StreamPosition("", place.ordinal, None)
    is_past = info.first is None or info.first > entry_id(place.offset)
    return place._replace(counted=info.removed if is_past else None)


def with_known_counts(place: StreamPosition, info: StreamInfo | None) -> StreamPosition:
    """The same place, when the stream is known: the beginning has a number, the end an exact one."""
    if info is None or info.last == NO_ENTRY_EVER:
        return place
    if not place.offset:
        base = info.removed or 0
        return StreamPosition("", place.ordinal or base, base)
    return place._replace(counted=info.added) if info.last == entry_id(place.offset) and info.added else place


def advance(place: StreamPosition, entries: Sequence[Entry], info: StreamInfo | None) -> StreamPosition:
    """Behind these entries, which an answer of the same moment as `info` brought; `place` is settled."""
    if info is None or info.last == NO_ENTRY_EVER:
        return place
    if not entries:
        return place if place.offset else StreamPosition(id_text(info.last), place.ordinal, info.added or place.ordinal)
    ordinal = place.ordinal + len(entries)
    counted = None if place.counted is None else place.counted + len(entries)
    return with_known_counts(
        StreamPosition(entries[-1][0].decode(), ordinal, ordinal if info.added is None else counted), info
    )


class EntryFields(NamedTuple):
    """How an entry becomes a record."""

    key: bytes
    value: bytes
    timestamp: TimestampRule


def entry_rows(entries: Sequence[Entry], fields: EntryFields, *, ordinal: int) -> pa.RecordBatch:
    """Records of entries that follow each other, numbered from `ordinal` on. An absent field is null."""
    ids = pa.array([entry[0] for entry in entries], pa.binary()).cast(pa.string())
    keys, values = columns_of([entry[1] for entry in entries], fields.key, fields.value)
    times = id_times(ids) if fields.timestamp.field is None else times_in_values(fields.timestamp, values)
    key_column, value_column = pa.array(keys, pa.binary()), pa.array(values, pa.binary())
    return rows(offsets=ids, ordinal=ordinal, times=times, keys=key_column, values=value_column)


def id_times(ids: pa.StringArray) -> pa.Int64Array:
    """First halves of IDs, which are times unless their writers chose them otherwise."""
    ms = pc.list_element(pc.split_pattern(ids, "-", max_splits=1), 0).cast(pa.uint64())
    fits = pc.less(ms, pa.scalar(2**62, pa.uint64()))
    return within_years(pc.if_else(fits, ms, pa.scalar(None, pa.uint64())).cast(pa.int64()))


def columns_of(named: Sequence[list[bytes]], *names: bytes) -> list[list[bytes | None]]:
    """Each name's values; of a name that an entry has twice, the first. Fast when all entries have the same names."""
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
