"""An input whose server is a script: logs in memory, and faults when a test says so.

`ScriptedServer` is the server; its `config` goes into AlignedOptions. Records come when the test puts them, and are
handed out when it lets them: `withhold` makes them exist (they count in lags) without coming, until `release`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from understudy_aligned.inputs.protocol import (
    ClientQueue,
    DataLostError,
    Fetched,
    Input,
    InputError,
    Range,
    RangeReader,
)
from understudy_aligned.inputs.records import ROW_SCHEMA, Chunk, Cursor, TopicPartition, record_size
from understudy_aligned.open_inputs import OPENERS, Opener

_HANG_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class ScriptedRecord:
    """A record of a scripted topic; `time_ms` is None for poison."""

    time_ms: int | None
    value: bytes = b""


def rows_of(records: Sequence[ScriptedRecord], first: int) -> pa.RecordBatch:
    """Records as an input returns them; `first` is the ordinal and the offset of the first one."""
    columns: Mapping[str, Sequence[object]] = {
        "offset": [str(first + index) for index in range(len(records))],
        "ordinal": list(range(first, first + len(records))),
        "timestamp_ms": [record.time_ms for record in records],
        "key": [None] * len(records),
        "value": [record.value for record in records],
        "headers": [None] * len(records),
        "timestamp_type": [None] * len(records),
    }
    return pa.RecordBatch.from_pydict(columns, schema=ROW_SCHEMA)


def chunk_of(partition: TopicPartition, records: Sequence[ScriptedRecord], *, first: int = 0) -> Chunk:
    """Records of one partition that follow each other."""
    sizes = np.array([record_size(partition.topic, None, record.value) for record in records], dtype=np.int64)
    return Chunk(partition, rows_of(records, first), sizes)


@dataclass(eq=False)
class ScriptedServer:
    """Topics with their partitions, all empty at first."""

    topics: dict[str, int]
    name: str = "scripted"
    fetches: int = 0
    """Turns that were asked for."""
    seeks: list[Mapping[TopicPartition, Cursor]] = field(default_factory=list)
    asked: set[TopicPartition] = field(default_factory=set)
    """Partitions that the last turn wanted."""
    open_inputs: int = 0
    opened: int = 0
    """Inputs that were opened until now."""
    reports_lags: bool = True
    goes_on_after_losses: bool = False
    """As with `fail_on_data_loss` off: an input that seeks lost records goes on behind them."""

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self.logs: dict[TopicPartition, list[ScriptedRecord]] = {}
        self.first: dict[TopicPartition, int] = {}
        self.truncated: set[TopicPartition] = set()
        self.compacted: dict[TopicPartition, set[int]] = {}
        self.ids: dict[str, str] = {}
        self.withheld: dict[TopicPartition, int] = {}
        self.stable: dict[TopicPartition, int] = {}
        self.error: Exception | None = None
        self.is_hanging = False
        self.has_caught = False
        """A call hangs now."""

    @property
    def config(self) -> ScriptedConfig:
        return ScriptedConfig(self)

    def put(self, topic: str, partition: int, *times_ms: int | None, size: int = 0) -> None:
        """Records of these times, with values of `size` bytes."""
        with self.changed:
            log = self.logs.setdefault(TopicPartition(topic, partition), [])
            log.extend(ScriptedRecord(time_ms, bytes(size)) for time_ms in times_ms)
            self.changed.notify_all()

    def withhold(self, topic: str, partition: int) -> None:
        """Nothing of the partition comes any more, though it is there."""
        with self.changed:
            self.withheld.setdefault(TopicPartition(topic, partition), 0)

    def release(self, topic: str, partition: int, count: int) -> None:
        """So many more records of a partition that is withheld may come."""
        with self.changed:
            self.withheld[TopicPartition(topic, partition)] += count
            self.changed.notify_all()

    def is_coming(self, topic: str, partition: int) -> bool:
        """Whether some of what was released was not fetched yet."""
        with self.changed:
            return self.withheld[TopicPartition(topic, partition)] > 0

    def wait_until_fetched(self, topic: str, partition: int, *, limit_s: float) -> None:
        """Return when everything that was released was fetched, or the time is over."""
        with self.changed:
            self.changed.wait_for(lambda: not self.withheld[TopicPartition(topic, partition)], limit_s)

    def open_transaction(self, topic: str, partition: int) -> None:
        """What is put from now on is neither given nor counted, as under `read_committed`, until `commit`."""
        with self.changed:
            self.stable[TopicPartition(topic, partition)] = self.end(TopicPartition(topic, partition))

    def commit(self, topic: str, partition: int) -> None:
        with self.changed:
            del self.stable[TopicPartition(topic, partition)]
            self.changed.notify_all()

    def grow(self, topic: str, count: int) -> None:
        """The topic has so many partitions from now on. It is made if it does not exist."""
        with self.changed:
            self.topics[topic] = count

    def delete(self, topic: str) -> None:
        """The topic and its records are gone."""
        with self.changed:
            del self.topics[topic]
            self.logs = {place: log for place, log in self.logs.items() if place.topic != topic}

    def make_anew(self, topic: str, identity: str) -> None:
        """The topic is another one, with this id, without records."""
        with self.changed:
            self.ids[topic] = identity
            for partition in [each for each in self.logs if each.topic == topic]:
                del self.logs[partition]
                self.first.pop(partition, None)
            self.changed.notify_all()

    def lose(self, topic: str, partition: int, count: int) -> None:
        with self.changed:
            self.first[TopicPartition(topic, partition)] = count
            self.changed.notify_all()

    def truncate(self, topic: str, partition: int, count: int) -> None:
        """The log ends behind so many records."""
        with self.changed:
            del self.logs[TopicPartition(topic, partition)][count:]
            self.truncated.add(TopicPartition(topic, partition))

    def compact(self, topic: str, partition: int, *ordinals: int) -> None:
        with self.changed:
            self.compacted.setdefault(TopicPartition(topic, partition), set()).update(ordinals)

    def fail(self, error: Exception | None) -> None:
        """Every call raises this, until None."""
        with self.changed:
            self.error = error
            self.changed.notify_all()

    def go_away(self) -> None:
        """Every call raises InputError, until `fail(None)`."""
        self.fail(InputError("no answer", where=self.name))

    def hang(self) -> None:
        """Calls do not return, until `resume`."""
        with self.changed:
            self.is_hanging = True

    def resume(self) -> None:
        """Let calls that hang go on."""
        with self.changed:
            self.is_hanging = False
            self.changed.notify_all()

    def answer(self) -> None:
        """Do what each call does first; the caller holds `changed`."""
        self.has_caught = self.is_hanging
        self.changed.wait_for(lambda: not self.is_hanging, _HANG_LIMIT_S)
        self.has_caught = False
        if self.error is not None:
            raise self.error

    def check_lost(self, partition: TopicPartition, ordinal: int) -> None:
        """Raises DataLostError if the record of that ordinal is gone, or a log that was truncated ends before it."""
        is_behind = partition in self.truncated and ordinal > len(self.logs[partition])
        if is_behind or ordinal < self.first.get(partition, 0):
            raise DataLostError(f"records of {partition} are gone", where=self.name)

    def end(self, partition: TopicPartition) -> int:
        return self.stable.get(partition, len(self.logs.get(partition, ())))


@dataclass(frozen=True)
class ScriptedConfig:
    """Not picklable: the server is in this process."""

    at: ScriptedServer

    @property
    def topics(self) -> Container[str]:
        return self.at.topics

    @property
    def server(self) -> str:
        return self.at.name

    @property
    def kind(self) -> str:
        return "scripted"


class ScriptedInput:
    def __init__(self, at: ScriptedServer) -> None:
        self._at = at
        self._next: dict[TopicPartition, int] = {}
        self.losses = 0

    @property
    def client_queue(self) -> ClientQueue | None:
        return None

    def partitions(self, *, timeout_ms: int) -> Mapping[str, int]:
        with self._at.changed:
            self._at.answer()
            return dict(self._at.topics)

    def topic_ids(self, topics: Collection[str], *, timeout_ms: int) -> Mapping[str, str]:
        with self._at.changed:
            return {topic: each for topic, each in self._at.ids.items() if topic in topics}

    def ends(self, partitions: Sequence[TopicPartition], *, timeout_ms: int) -> Mapping[TopicPartition, Cursor]:
        with self._at.changed:
            self._at.answer()
            ends = {partition: self._at.end(partition) for partition in partitions}
        return {partition: Cursor(str(end - 1), end) if end else Cursor() for partition, end in ends.items()}

    def beginnings(self, partitions: Sequence[TopicPartition], *, timeout_ms: int) -> Mapping[TopicPartition, Cursor]:
        with self._at.changed:
            self._at.answer()
            firsts = {partition: self._at.first.get(partition, 0) for partition in partitions}
        return {partition: Cursor(str(first - 1), first) for partition, first in firsts.items() if first}

    def seek(self, cursors: Mapping[TopicPartition, Cursor], *, timeout_ms: int) -> None:
        with self._at.changed:
            self._at.answer()
            self._at.seeks.append(dict(cursors))
            for partition, cursor in cursors.items():
                self._check_lost(partition, cursor.ordinal)
                self._next[partition] = max(cursor.ordinal, self._at.first.get(partition, 0))

    def fetch(self, wanted: Mapping[TopicPartition, int], *, timeout_ms: int) -> Fetched:
        with self._at.changed:
            self._at.fetches += 1
            self._at.asked = set(wanted)
            self._at.answer()
            self._at.changed.wait_for(
                lambda: self._at.error is not None or any(map(self._coming, wanted)), timeout_ms / 1000
            )
            self._at.answer()
            return self._fetched(wanted)

    def close(self) -> None:
        with self._at.changed:
            self._at.open_inputs -= 1
            self._at.changed.notify_all()

    def _check_lost(self, partition: TopicPartition, ordinal: int) -> None:
        try:
            self._at.check_lost(partition, ordinal)
        except DataLostError:
            if not self._at.goes_on_after_losses:
                raise
            self.losses += 1

    def _coming(self, partition: TopicPartition) -> int:
        there = max(0, self._at.end(partition) - self._next[partition])
        return min(there, self._at.withheld.get(partition, there))

    def _fetched(self, wanted: Mapping[TopicPartition, int]) -> Fetched:
        chunks = []
        for partition, limit in wanted.items():
            start = self._next[partition]
            self._at.check_lost(partition, start)
            count = min(limit, self._coming(partition))
            if count:
                records = self._at.logs[partition][start : start + count]
                chunks.append(chunk_of(partition, records, first=start))
                self._next[partition] += count
                if partition in self._at.withheld:
                    self._at.withheld[partition] -= count
                    self._at.changed.notify_all()
        lags = {partition: max(0, self._at.end(partition) - self._next[partition]) for partition in wanted}
        return Fetched(chunks, lags if self._at.reports_lags else {})


class ScriptedReader:
    def __init__(self, at: ScriptedServer) -> None:
        self._at = at
        self.losses = 0

    def read(self, span: Range) -> Iterator[pa.RecordBatch]:
        with self._at.changed:
            self._at.answer()
            self._at.check_lost(span.partition, span.start.ordinal)
            records = self._at.logs[span.partition][span.start.ordinal : span.end.ordinal]
            gone = self._at.compacted.get(span.partition, set())
        kept = [ordinal not in gone for ordinal in range(span.start.ordinal, span.end.ordinal)]
        yield rows_of(records, span.start.ordinal).filter(pa.array(kept))

    def close(self) -> None:
        """Do nothing: the reader holds no resources."""


def _open_input(config: ScriptedConfig) -> Input:
    config.at.open_inputs += 1
    config.at.opened += 1
    return ScriptedInput(config.at)


def _open_reader(config: ScriptedConfig) -> RangeReader:
    return ScriptedReader(config.at)


OPENERS["scripted"] = lambda: Opener(_open_input, _open_reader)
