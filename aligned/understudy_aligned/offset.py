"""The source's offset: everything that the next batch depends on, as JSON in Spark's write-ahead log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeVar

from understudy_aligned.inputs.records import NO_TIME_MS, Cursor, TopicPartition
from understudy_shared.base.errors import UnderstudyError

FORMAT = 1

T = TypeVar("T")

_SHOWN = 120
"""Characters of another source's offset that a message shows."""

_COUNTS = ("ring", "batches", "records", "bytes", "enforced", "undecodable")


class OffsetError(UnderstudyError):
    """The checkpoint belongs to another source, or to this source with other options."""


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A position between two batches. Two offsets with equal cursors are the same position."""

    fingerprint: Mapping[str, object]
    """The options that decide the order; a checkpoint is refused when they changed."""

    cursors: Mapping[TopicPartition, Cursor] = field(default_factory=dict)
    """A partition without a cursor is read from its beginning."""

    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The topics that the cursors belong to, where topics have ids: one that is made anew has another."""

    stream_time_ms: int = NO_TIME_MS
    """The least partition time of the inputs that count. It never decreases."""

    ring: int = 0
    """The task that has its turn first (KIP-41)."""

    batches: int = 0
    """Batches since the checkpoint began. So it is the number of the batch that ended here, the first field of
    `merge_order`."""

    records: int = 0
    """Records of the batch that ended here."""

    records_of: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The same for each partition in the batch. Without records it is not logged."""

    bytes: int = 0
    """Bytes of the batch that ended here, as KIP-770 counts them."""

    enforced: int = 0
    """Records that were taken while an input of their task was empty, since the checkpoint began."""

    undecodable: int = 0
    """Poison records since the checkpoint began."""

    @property
    def read_topics(self) -> frozenset[str]:
        """The topics of which a batch can have had records: those with a position, once there was a batch."""
        return frozenset(tp.topic for tp, cursor in self.cursors.items() if self.batches and cursor != Cursor())

    def to_json(self) -> dict[str, object]:
        """Write JSON for Spark's log. A cursor is `[offset, ordinal, time_ms]`, by topic and partition; no time yet is
        null.

        Equal offsets give equal text, whatever the order of their cursors.
        """
        at = _by_topic({place: _cursor_json(cursor) for place, cursor in self.cursors.items()})
        records_of = {"records_of": _by_topic(self.records_of)} if self.records_of else {}
        counts = {name: getattr(self, name) for name in _COUNTS}
        reached = {} if self.stream_time_ms == NO_TIME_MS else {"stream_time_ms": self.stream_time_ms}
        ids = {"topic_ids": dict(sorted(self.topic_ids.items()))} if self.topic_ids else {}
        begin = {"understudy": FORMAT, "fingerprint": dict(self.fingerprint), "at": at}
        return {**begin, **counts, **records_of, **ids, **reached}

    @classmethod
    def from_json(cls, found: object) -> SourceOffset:
        """Parse what `to_json` made. Raises OffsetError, which says what the JSON looks like instead."""
        if not isinstance(found, dict) or found.get("understudy") != FORMAT:
            raise OffsetError(
                f"the checkpoint holds {_looks_like(found)}, not an offset of the source 'understudy'",
                where=repr(found)[:_SHOWN],
                fix="Give this query a checkpointLocation of its own",
            )
        try:
            return cls(
                fingerprint=found["fingerprint"],
                cursors={place: _cursor(*cursor) for place, cursor in _by_place(found["at"])},
                records_of={place: int(count) for place, count in _by_place(found.get("records_of", {}))},
                topic_ids={topic: str(each) for topic, each in found.get("topic_ids", {}).items()},
                stream_time_ms=int(found.get("stream_time_ms", NO_TIME_MS)),
                **{name: int(found[name]) for name in _COUNTS},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as damage:
            raise OffsetError(
                "an offset of the source 'understudy' in the checkpoint is damaged",
                where=repr(found)[:_SHOWN],
                fix="Put the folder 'offsets' of the checkpoint back as Spark wrote it",
            ) from damage


def _by_topic(values: Mapping[TopicPartition, T]) -> dict[str, dict[str, T]]:
    found: dict[str, dict[str, T]] = {}
    for place, value in sorted(values.items(), key=itemgetter(0)):
        found.setdefault(place.topic, {})[str(place.partition)] = value
    return found


def _by_place(values: Mapping[str, Mapping[str, T]]) -> Iterator[tuple[TopicPartition, T]]:
    for topic, partitions in values.items():
        for partition, value in partitions.items():
            yield TopicPartition(topic, int(partition)), value


def _cursor_json(cursor: Cursor) -> list[object]:
    return [cursor.offset, cursor.ordinal, None if cursor.time_ms == NO_TIME_MS else cursor.time_ms]


def _cursor(offset: str, ordinal: int, time_ms: int | None) -> Cursor:
    return Cursor(str(offset), int(ordinal), NO_TIME_MS if time_ms is None else int(time_ms))


def _looks_like(found: object) -> str:
    match found:
        case {"understudy": version}:
            return f"an offset of another release (format {version}, this one reads {FORMAT})"
        case {"logOffset": _}:
            return "an offset of a file source"
        case {**topics} if topics and all(_counts_by_partition(partitions) for partitions in topics.values()):
            return "what looks like an offset of Spark's Kafka source"
        case _:
            return "an offset of some other source"


def _counts_by_partition(found: object) -> bool:
    return isinstance(found, dict) and all(key.isdigit() and isinstance(at, int) for key, at in found.items())
