"""Redis Streams as an input: one stream for each partition, with the key `<topic>:<partition>`.

A record's offset is its entry's ID. Its ordinal counts entries since the stream was created, including those that were
removed before the query began. So later losses can be found by counting (redis_rows.py). Executors read planned ranges
by XRANGE: exactly the planned entries, or an error.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import redis
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from understudy_aligned.inputs.protocol import ClientQueue, DataLostError, Fetched, InputError, Range, UnknownTopicError
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.inputs.redis_rows import (
    NO_ENTRY_EVER,
    Entry,
    EntryFields,
    StreamInfo,
    StreamPosition,
    advance,
    chunk_of,
    entry_id,
    entry_rows,
    find_loss,
    id_text,
    lag_behind,
    position_after_loss,
    stream_info,
    with_known_counts,
)
from understudy_aligned.inputs.timestamps import TimestampRules
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.masking import masked, words_of
from understudy_shared.bus.redis_connection import checked, leaves
from understudy_shared.bus.redis_pools import thread_pool

StreamReply = tuple[StreamInfo | None, Sequence[Entry]]
"""The state of a stream (None if it does not exist) and some of its entries, read at the same moment."""


DATA_LOSS_FIX = "Start with a new checkpoint, or set fail_on_data_loss=false to go on with what is left"
"""The fix of an error about lost entries."""


def stream_key(tp: TopicPartition) -> str:
    return f"{tp.topic}:{tp.partition}"


class StreamServer:
    """One connection, opened on demand and reopened when it breaks. Commands are not retried."""

    def __init__(self, url: str, *, request_timeout_ms: int) -> None:
        """Prepare without I/O. Raises SettingsError for a URL that is not a Redis URL."""
        self.where = masked(url)
        self._url = url
        self._timeout_ms = request_timeout_ms
        pool = checked(url, lambda: thread_pool(url, timeout_s=request_timeout_ms / 1000))
        self._pool = pool
        self._client = redis.Redis(connection_pool=pool)
        for command in ("XRANGE", "XREAD"):
            self._client.set_response_callback(command, lambda reply, **_: reply)

    def key_types(self, keys: Sequence[str]) -> Sequence[str]:
        """Return the type of each key: `stream`, another type, or `none`."""
        with self._translated("looking for streams"), self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.type(key)
            return [kind.decode() for kind in pipe.execute()]

    def read_streams(self, wanted: Sequence[tuple[str, str, int]]) -> Sequence[StreamReply]:
        """Read the state and entries of streams in one transaction.

        Each item of `wanted` is a key, the ID to read after ("" for the beginning), and a number of entries.
        """
        with self._translated("reading streams"), self._client.pipeline(transaction=True) as pipe:
            for key, behind, count in wanted:
                pipe.execute_command("XINFO", "STREAM", key)  # type: ignore[no-untyped-call]
                if count:
                    bounds = (f"({behind}" if behind else "-", "+")
                    pipe.execute_command("XRANGE", key, *bounds, "COUNT", count)  # type: ignore[no-untyped-call]
            replies = iter(pipe.execute(raise_on_error=False))
            return [self._parse_reply(key, next(replies), next(replies) if count else []) for key, _, count in wanted]

    def entries(self, key: str, first: str, last: str, count: int) -> Sequence[Entry]:
        """Return up to `count` entries of a range. `first` and `last` are as for XRANGE."""
        with self._translated("reading a range"):
            reply: Sequence[Entry] = self._run("XRANGE", key, first, last, "COUNT", count)
            return reply

    def wait(self, places: Sequence[tuple[str, str]], *, timeout_ms: int) -> bool:
        """Wait until a stream has an entry after its ID, and return whether one has.

        Waits at most half of the request timeout, so that the answer itself is not late.
        """
        block_ms = min(timeout_ms, self._timeout_ms // 2)
        if block_ms <= 0:  # BLOCK 0 waits for ever
            return False
        keys, ids = [key for key, _ in places], [behind or "0-0" for _, behind in places]
        with self._translated("waiting for entries"):
            return bool(self._run("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", *keys, *ids))

    def close(self) -> None:
        self._client.close()
        self._pool.close()

    def _run(self, *command: str | int) -> Any:
        return self._client.execute_command(*command)  # type: ignore[no-untyped-call]

    def _parse_reply(self, key: str, info: object, entries: object) -> StreamReply:
        for reply in (info, entries):
            if isinstance(reply, ResponseError):
                if "no such key" in str(reply):
                    return None, []
                if str(reply).startswith("WRONGTYPE"):
                    raise self.not_a_stream(key, "something else")
                raise self._error(reply, "reading streams")
        assert isinstance(info, list)
        assert isinstance(entries, list)
        return stream_info(info), entries

    def not_a_stream(self, key: str, kind: str) -> UnknownTopicError:
        """Make the error for a key that holds another type."""
        return UnknownTopicError(
            f"the key '{key}' holds {kind}, not a stream",
            where=self.where,
            fix="Partition p of a topic is the stream <topic>:<p>. Use another topic, or delete the key",
        )

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            if leaves(error):
                self._pool.disconnect()
            raise self._error(error, doing) from error

    def _error(self, error: BaseException, doing: str) -> InputError | UnknownTopicError:
        if isinstance(error.__cause__, RedisError):  # redis-py wraps a refused login on a unix socket, for one
            error = error.__cause__
        why = words_of(error, self._url)
        what, fix = f"Redis cannot be reached while {doing}: {why}", "Check that it runs and accepts connections"
        if isinstance(error, (AuthenticationError, AuthorizationError)):
            what, fix = f"Redis refused the login while {doing}: {why}", "Check user and password in the URL"
        elif isinstance(error, NoPermissionError):
            fix = "Let the user run TYPE, XINFO, XRANGE, XREAD, MULTI and EXEC on the streams' keys"
            what = f"Redis refused {doing}: {why}"
        elif isinstance(error, ResponseError):
            what, fix = f"Redis refused {doing}: {why}", "Check that it is Redis 6.2 or newer and not a cluster node"
        elif isinstance(error, (TimeoutError, RedisTimeoutError)):
            what = f"Redis did not answer within {self._timeout_ms} ms while {doing}"
            fix = "Check that it runs, is not overloaded, and accepts connections from this host"
        return InputError(what, where=self.where, fix=fix)


log = logging.getLogger(__name__)

MAX_ENTRIES = 5_000
FIRST_ENTRIES = 500
MAX_BYTES = 8 << 20
"""Most entries and bytes of one page, and of one stream in one fetch: the server builds each answer as a whole and
serves no other client meanwhile. The size of earlier entries says how many fit.
"""


class RedisRangeReader:
    """A reader of ranges. Ordinals have no gaps, so a range's ends say how many entries it must have.

    A range from the beginning of a stream is counted back from its end: only a stream without XDEL has as many entries
    as were planned.
    """

    def __init__(self, config: RedisConfig) -> None:
        self._config = config
        self._server = StreamServer(config.url, request_timeout_ms=config.request_timeout_ms)
        self.losses = 0

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        if span.start.offset == span.end.offset:
            return
        ordinal = span.start.ordinal
        if not span.start.offset:
            ordinal = span.end.ordinal - sum(len(page) for page in self._pages(span))
            self._check_beginning(span, missing=ordinal - span.start.ordinal)
        last, fields = b"", self._config.fields_of(span.partition.topic)
        for page in self._pages(span):
            yield entry_rows(page, fields, ordinal=ordinal)
            ordinal, last = ordinal + len(page), page[-1][0]
        if last != span.end.offset.encode():
            self._report_loss(span, f"the last entry that was planned, {span.end.offset}, is gone")
        elif ordinal != span.end.ordinal:
            self._report_loss(
                span, f"{span.end.ordinal - ordinal} of {span.end.ordinal - span.start.ordinal} entries are gone"
            )

    def close(self) -> None:
        self._server.close()

    def _pages(self, span: Range) -> Iterator[Sequence[Entry]]:
        key, behind, end = stream_key(span.partition), span.start.offset, span.end.offset
        if behind and entry_id(behind) > entry_id(end):  # planned across a loss: the stream was created again between
            behind = ""
        count = FIRST_ENTRIES
        while page := self._server.entries(key, f"({behind}" if behind else "-", end, count):
            yield page
            behind = page[-1][0].decode()
            if behind == end or len(page) < count:
                return
            page_bytes = sum(len(field) for _, fields in page for field in fields)
            count = max(1, min(MAX_ENTRIES, MAX_BYTES * len(page) // max(page_bytes, 1)))

    def _check_beginning(self, span: Range, *, missing: int) -> None:
        """Report entries that were trimmed since the range was planned. Entries that XDEL removed may be missing."""
        if missing > 0:
            ((info, _),) = self._server.read_streams([(stream_key(span.partition), "", 0)])
            if info is None or not info.has_deleted:
                self._report_loss(span, f"{missing} of its first entries are gone")

    def _report_loss(self, span: Range, what: str) -> None:
        text = f"entries of the stream '{stream_key(span.partition)}' up to {span.end.offset} are lost: {what}"
        if self._config.fail_on_data_loss:
            raise DataLostError(text, where=self._server.where, fix=DATA_LOSS_FIX)
        self.losses += 1
        log.warning("%s", text, extra={"action": "data-lost", **span.partition._asdict()})


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
                has_more = info is not None and len(entries) == count and entry_id(places[tp].offset) < info.last
                lags[tp] = lag_behind(places[tp], info) if has_more else 0
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
