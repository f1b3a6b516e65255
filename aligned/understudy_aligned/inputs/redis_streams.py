"""Redis Streams as an input: one stream for each partition, with the key `<topic>:<partition>`.

A record's offset is its entry's ID. Its ordinal counts entries since the stream was created, including those that were
removed before the query began. So later losses can be found by counting (redis_rows.py).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from understudy_aligned.inputs.columns import chunk_of
from understudy_aligned.inputs.protocol import ClientQueue, DataLostError, Fetched, UnknownTopicError
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.inputs.redis_ranges import FIRST_ENTRIES, MAX_BYTES, MAX_ENTRIES
from understudy_aligned.inputs.redis_rows import (
    NO_ENTRY_EVER,
    EntryFields,
    StreamInfo,
    StreamPosition,
    advance,
    entry_id,
    entry_rows,
    find_loss,
    id_text,
    position_after_loss,
    with_known_counts,
)
from understudy_aligned.inputs.redis_server import DATA_LOSS_FIX, StreamServer, stream_key
from understudy_aligned.inputs.timestamps import TimestampRules
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.masking import masked

log = logging.getLogger(__name__)

_KEYS_PER_LOOKUP = 64
"""Keys whose type is looked up in one request."""


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """Topics of one Redis. `partitions` is the number of streams of each topic; None counts existing ones from 0 on.

    `url` may name sentinels (`redis+sentinel://`). A Redis Cluster is refused. Raises SettingsError.
    """

    url: str = field(repr=False)
    topics: tuple[str, ...]
    partitions: int | None = None
    key_field: str = "key"
    value_field: str = "value"
    timestamp: TimestampRules = field(default_factory=TimestampRules)
    fail_on_data_loss: bool = True
    request_timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        if self.partitions is not None and self.partitions < 1:
            raise SettingsError(f"{self.partitions} is not a number of partitions", where="option partitions")
        StreamServer(self.url, request_timeout_ms=self.request_timeout_ms).close()

    @property
    def kind(self) -> str:
        return "redis"

    @property
    def server(self) -> str:
        return masked(self.url)

    def fields_of(self, topic: str) -> EntryFields:
        """Return the fields of a topic's entries from which records are made."""
        return EntryFields(self.key_field.encode(), self.value_field.encode(), self.timestamp.of(topic))


class RedisInput:
    """An input of one Redis. Methods raise InputError if an answer takes longer than `request_timeout_ms`."""

    def __init__(self, config: RedisConfig) -> None:
        self._config = config
        self._server = StreamServer(config.url, request_timeout_ms=config.request_timeout_ms)
        self._places: dict[TopicPartition, StreamPosition] = {}
        self._entry_bytes: dict[TopicPartition, float] = {}
        self.losses = 0
        self.client_queue: ClientQueue | None = None

    def partitions(self, *, timeout_ms: int) -> Mapping[str, int]:
        return {topic: self._count(topic) for topic in self._config.topics}

    def topic_ids(self, topics: Collection[str], *, timeout_ms: int) -> Mapping[str, str]:
        return {}

    def ends(self, partitions: Sequence[TopicPartition], *, timeout_ms: int) -> Mapping[TopicPartition, Cursor]:
        looks = self._server.read_streams([(stream_key(tp), "", 0) for tp in partitions])
        return {tp: _end(info) for tp, (info, _) in zip(partitions, looks, strict=True)}

    def beginnings(self, partitions: Sequence[TopicPartition], *, timeout_ms: int) -> Mapping[TopicPartition, Cursor]:
        looks = self._server.read_streams([(stream_key(tp), "", 0) for tp in partitions])
        return {
            tp: Cursor("", 0 if info is None else info.removed or 0)
            for tp, (info, _) in zip(partitions, looks, strict=True)
        }

    def seek(self, cursors: Mapping[TopicPartition, Cursor], *, timeout_ms: int) -> None:
        looks = self._server.read_streams([(stream_key(tp), "", 0) for tp in cursors])
        places = {}
        for (tp, cursor), (info, _) in zip(cursors.items(), looks, strict=True):
            place = StreamPosition(cursor.offset, cursor.ordinal, cursor.ordinal)
            places[tp], _ = self._check_loss(tp, place, info)
        self._places.update(places)

    def fetch(self, wanted: Mapping[TopicPartition, int], *, timeout_ms: int) -> Fetched:
        wanted = {tp: count for tp, count in wanted.items() if count > 0}
        if not wanted:
            return Fetched([], {})
        fetched = self._read_once(wanted)
        if not fetched.chunks and self._wait(wanted, timeout_ms=timeout_ms):
            fetched = self._read_once(wanted)
        return fetched

    def close(self) -> None:
        self._server.close()

    def _wait(self, wanted: Mapping[TopicPartition, int], *, timeout_ms: int) -> bool:
        places = [(stream_key(tp), self._places[tp].offset) for tp in wanted]
        return self._server.wait(places, timeout_ms=timeout_ms)

    def _read_once(self, wanted: Mapping[TopicPartition, int]) -> Fetched:
        """Read every wanted stream in one round trip. If it fails, no position changes."""
        counts = {tp: min(count, self._max_entries(tp)) for tp, count in wanted.items()}
        looks = self._server.read_streams([(stream_key(tp), self._places[tp].offset, n) for tp, n in counts.items()])
        chunks, lags, places = [], {}, {}
        for (tp, count), (info, entries) in zip(counts.items(), looks, strict=True):
            place, is_whole = self._check_loss(tp, self._places[tp], info)
            places[tp] = advance(place, entries, info) if is_whole else place
            if is_whole:  # otherwise the next read starts at the new position
                lags[tp] = int(info is not None and len(entries) == count and entry_id(places[tp].offset) < info.last)
            if is_whole and entries:
                chunks.append(
                    chunk_of(tp, entry_rows(entries, self._config.fields_of(tp.topic), ordinal=place.ordinal))
                )
        self._places.update(places)
        self._entry_bytes.update((chunk.partition, float(chunk.sizes.mean())) for chunk in chunks)
        return Fetched(chunks, lags)

    def _check_loss(
        self, tp: TopicPartition, place: StreamPosition, info: StreamInfo | None
    ) -> tuple[StreamPosition, bool]:
        """Return the position to read from, and whether nothing was lost. Raises DataLostError."""
        lost = find_loss(place, info)
        if lost is None:
            return with_known_counts(place, info), True
        what = f"entries of the stream '{stream_key(tp)}' behind {place.offset or 'its beginning'} are lost: {lost}"
        if self._config.fail_on_data_loss:
            raise DataLostError(what, where=self._server.where, fix=DATA_LOSS_FIX)
        self.losses += 1
        log.warning("%s", what, extra={"action": "data-lost", "topic": tp.topic, "partition": tp.partition})
        return with_known_counts(position_after_loss(place, info), info), False

    def _max_entries(self, tp: TopicPartition) -> int:
        """Return how many entries one read asks for at most."""
        entry_bytes = self._entry_bytes.get(tp)
        return FIRST_ENTRIES if entry_bytes is None else max(1, min(MAX_ENTRIES, int(MAX_BYTES / entry_bytes)))

    def _count(self, topic: str) -> int:
        """Count a topic's partitions. Raises UnknownTopicError without any, or if a key holds another type."""
        given = self._config.partitions
        found = 0
        while given is None or found < given:
            keys = [
                stream_key(TopicPartition(topic, p))
                for p in range(found, min(found + _KEYS_PER_LOOKUP, given or found + _KEYS_PER_LOOKUP))
            ]
            for key, kind in zip(keys, self._server.key_types(keys), strict=True):
                if kind == "none" and given is None:
                    return found or self._unknown_topic(topic)
                if kind not in ("none", "stream"):
                    raise self._server.not_a_stream(key, f"a {kind}")
                found += 1
        return found

    def _unknown_topic(self, topic: str) -> int:
        there = f", but a stream '{topic}'" if self._server.key_types([topic]) == ["stream"] else ""
        raise UnknownTopicError(
            f"there is no stream '{topic}:0'{there}",
            where=self._server.where,
            fix="Partition p of a topic is the stream <topic>:<p>. Set the option partitions to wait for its streams",
        )


def _end(info: StreamInfo | None) -> Cursor:
    if info is None or info.last == NO_ENTRY_EVER:
        return Cursor()
    return Cursor(id_text(info.last), info.added or 0)
