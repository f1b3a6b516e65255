"""Kafka Streams' `PartitionGroup` (4.1), one record at a time, with a switch for each deviation of this project.

Without switches it is Kafka: it answers the commands of streams/PartitionGroupDriver.java, which drives the real class,
with the same words. With all of them it is the source of this project. So a difference between the two is one of the
switches, or it is a mistake.

    begin                             forget everything
    log a-0 5 7 -1                    the timestamps of a partition's records; -1 is none
    open 0 20 a-0 b-0                 task 0 begins with these partitions, with an idle time of 20 ms
    fetch 0 a-0 2                     task 0 buffers the next two records of a-0
    lag a-0 3                         the consumer says how many more records there are; ? is unknown
    assign 0 a-0                      task 0 has these partitions from now on
    close 0                           task 0 ends; `open` brings it back
    run 0 100 5                       at 100 ms task 0 takes as many records as it may, at most 5 (-1: any number)
    idle a 60                         partitions of topic a have an idle time of 60 ms; Kafka knows no such thing
    drift 5                           no record is taken 5 ms ahead of the slowest input; nor such a thing
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set
from enum import Enum
from typing import NamedTuple

from tests.support.kafka.java_priority_queue import JavaPriorityQueue

UNKNOWN_TIME = -1
NEVER_WAIT = -1
NO_TIME = float("-inf")


class Deviation(Enum):
    """What differs here, by the statements of docs/kips.md and the table of docs/decisions/0022-order-of-heads.md."""

    TIES = "34: of equal timestamps the topic named first comes first, then the lower partition; not the heap's order"
    ONE_PASS = "30: all inputs are judged, not only those up to the first that blocks"
    CLOCK = "28: inputs are judged once more behind the last record of a turn, whatever ended it"
    FORGOTTEN = "35: deadlines and times of partitions that are gone do not count"
    BELOW_ZERO = "38, 44: a lag below 0 is 0, and one that more records came of than it said is unknown"
    AGE = "27, 44: a lag that is too old is unknown"
    IDLE = "23: a topic may have an idle time of its own"
    DRIFT = "max_drift_ms: an empty input blocks no record that is within the drift of the slowest input"
    POISON = "34: every record without a timestamp has its turn, at once; Kafka drops all but the last of a queue"


NONE: Set[Deviation] = frozenset()
ALL: Set[Deviation] = frozenset(Deviation)


class Turn(NamedTuple):
    """The answer to `run`. All numbers but stream time count from `begin`, over all tasks."""

    stream_time_ms: int
    enforced: int
    late: tuple[int, int, int]
    """Records, the sum of their lateness, the greatest."""
    taken: tuple[tuple[str, int], ...]
    """Partition and offset, in order."""

    @classmethod
    def parse(cls, line: str) -> Turn:
        stream_time, enforced, late, *taken = line.split()
        count, total, most = late.removeprefix("late=").split("/")
        return cls(
            int(stream_time.removeprefix("stream-time=")),
            int(enforced.removeprefix("enforced=")),
            (int(count), int(total), int(most)),
            tuple((partition, int(offset)) for partition, _, offset in (each.partition("@") for each in taken)),
        )


class _Lag(NamedTuple):
    records: int
    asked_ms: int
    since: int = 0
    """Records that were fetched since."""


class _Queue:
    def __init__(self, partition: str, rank: tuple[int, int]) -> None:
        self.partition = partition
        self.rank = rank
        self.records: deque[tuple[int, int]] = deque()
        """Offset and timestamp."""

    def head_ms(self) -> int:
        return self.records[0][1]


class _Group:
    def __init__(self, idle_ms: int, compare: Callable[[_Queue, _Queue], int]) -> None:
        self.idle_ms = idle_ms
        self.queues: dict[str, _Queue] = {}
        """In the order in which they are looked at."""
        self.filled = JavaPriorityQueue(compare)
        self.deadlines: dict[str, int] = {}
        self.stream_time_ms = UNKNOWN_TIME


class PartitionGroups:
    """Answers the commands above. `topics` are in the order of their ranks; `lag_max_age_ms` is for Deviation.AGE."""

    def __init__(self, topics: tuple[str, ...], deviations: Set[Deviation] = NONE, *, lag_max_age_ms: int = 0) -> None:
        self._topics = topics
        self._deviations = deviations
        self._lag_max_age_ms = lag_max_age_ms
        self._begin()

    def apply(self, line: str) -> Turn | None:
        """The answer to one command; only `run` has one."""
        name, *words = line.split()
        match name:
            case "begin":
                self._begin()
            case "log":
                self._logs[words[0]] = [int(word) for word in words[1:]]
            case "open":
                self._open(int(words[0]), int(words[1]), words[2:])
            case "close":
                for partition in self._groups.pop(int(words[0])).queues:
                    self._forget(partition)
            case "assign":
                self._assign(self._groups[int(words[0])], words[1:])
            case "fetch":
                self._fetch(self._groups[int(words[0])], words[1], int(words[2]))
            case "lag":
                self._answer(words[0], words[1])
            case "run":
                return self._run(self._groups[int(words[0])], int(words[1]), int(words[2]))
            case _:
                self._configure(name, words)
        return None

    def _has(self, deviation: Deviation) -> bool:
        return deviation in self._deviations

    def _begin(self) -> None:
        self._logs: dict[str, list[int]] = {}
        self._fetched: dict[str, int] = {}
        self._consumed: dict[str, int] = {}
        self._times_ms: dict[str, int] = {}
        self._lags: dict[str, _Lag] = {}
        self._groups: dict[int, _Group] = {}
        self._idle_ms: dict[str, int] = {}
        """The idle times of topics that have their own."""
        self._drift_ms: int | None = None
        self._now_ms = 0
        self._enforced = 0
        self._late = (0, 0, 0)

    def _configure(self, name: str, words: list[str]) -> None:
        match name:
            case "idle":
                self._idle_ms[words[0]] = int(words[1])
            case "drift":
                self._drift_ms = int(words[0])
            case _:
                raise ValueError(name)

    def _open(self, task: int, idle_ms: int, partitions: list[str]) -> None:
        group = self._groups[task] = _Group(idle_ms, self._compare)
        self._add_queues(group, partitions)
        group.stream_time_ms = self._greatest_time_ms(group)

    def _assign(self, group: _Group, partitions: list[str]) -> None:
        gone = [each for each in group.queues if each not in partitions]
        for each in gone:
            del group.queues[each]
            self._forget(each)
            if self._has(Deviation.FORGOTTEN):
                group.deadlines.pop(each, None)
        self._add_queues(group, [each for each in partitions if each not in group.queues])
        group.filled.remove_if(lambda queue: queue.partition in gone)
        if self._has(Deviation.FORGOTTEN):
            group.stream_time_ms = self._greatest_time_ms(group)

    def _add_queues(self, group: _Group, partitions: list[str]) -> None:
        for each in partitions:
            topic, _, number = each.rpartition("-")
            group.queues[each] = _Queue(each, (self._topics.index(topic), int(number)))

    def _greatest_time_ms(self, group: _Group) -> int:
        return max((self._times_ms.get(each, UNKNOWN_TIME) for each in group.queues), default=UNKNOWN_TIME)

    def _forget(self, partition: str) -> None:
        self._fetched[partition] = self._consumed.get(partition, 0)
        self._lags.pop(partition, None)

    def _fetch(self, group: _Group, partition: str, count: int) -> None:
        first = self._fetched.get(partition, 0)
        records = list(enumerate(self._logs[partition]))[first : first + count]
        self._fetched[partition] = first + len(records)
        if partition in self._lags:
            lag = self._lags[partition]
            self._lags[partition] = lag._replace(since=lag.since + len(records))
        queue = group.queues[partition]
        was_empty = not queue.records
        queue.records.extend(records)
        if was_empty and records:
            self._drop_poison(queue)
            group.filled.offer(queue)

    def _answer(self, partition: str, records: str) -> None:
        if records == "?":
            self._lags.pop(partition, None)
        else:
            self._lags[partition] = _Lag(int(records), self._now_ms)

    def _drop_poison(self, queue: _Queue) -> None:
        """Find a new head. Kafka keeps the last record of a queue, whatever it is: its offset is committed then."""
        while len(queue.records) > 1 and queue.records[0][1] == UNKNOWN_TIME and not self._has(Deviation.POISON):
            queue.records.popleft()

    def _compare(self, one: _Queue, other: _Queue) -> int:
        first, second = (one.head_ms(), one.rank), (other.head_ms(), other.rank)
        if not self._has(Deviation.TIES):
            return (first[0] > second[0]) - (first[0] < second[0])
        return (first > second) - (first < second)

    def _lag(self, partition: str) -> int | None:
        """None: the task waits without limit, as for one above 0."""
        if partition not in self._lags:
            return None
        records, asked_ms, since = self._lags[partition]
        if self._has(Deviation.AGE) and self._now_ms - asked_ms > self._lag_max_age_ms:
            return None
        if self._has(Deviation.BELOW_ZERO):
            return max(0, records) - since if max(0, records) >= since else None
        return None if records - since == -1 else records - since

    def _run(self, group: _Group, now_ms: int, limit: int) -> Turn:
        self._now_ms = now_ms
        taken: list[tuple[str, int]] = []
        count = 0
        while count != limit:
            is_ready, is_enforced = self._look(group)
            if not is_ready or (queue := group.filled.poll()) is None:
                break
            count += 1
            self._enforced += is_enforced
            offset, timestamp_ms = queue.records.popleft()
            self._consumed[queue.partition] = offset + 1
            self._drop_poison(queue)
            if queue.records:
                group.filled.offer(queue)
            if timestamp_ms != UNKNOWN_TIME:
                taken.append((queue.partition, offset))
            if timestamp_ms != UNKNOWN_TIME or not self._has(Deviation.POISON):
                self._pass(group, queue.partition, timestamp_ms)
        if self._has(Deviation.CLOCK):
            self._look(group)
        return Turn(group.stream_time_ms, self._enforced, self._late, tuple(taken))

    def _pass(self, group: _Group, partition: str, timestamp_ms: int) -> None:
        """Move the times on behind a record that was taken."""
        self._times_ms[partition] = max(timestamp_ms, self._times_ms.get(partition, UNKNOWN_TIME))
        group.stream_time_ms = max(group.stream_time_ms, timestamp_ms)
        late_ms = group.stream_time_ms - timestamp_ms
        count, total_ms, most_ms = self._late
        self._late = (count + 1, total_ms + late_ms, max(most_ms, late_ms))

    def _look(self, group: _Group) -> tuple[bool, bool]:
        """`readyToProcess`: whether a record may be taken now, and whether an input was given up on for that."""
        if all(self._idle_of(group, partition) == NEVER_WAIT for partition in group.queues) and not self._is_drifting():
            return True, False
        blocking: set[str] = set()
        passes = False
        for partition, queue in group.queues.items():
            lag, idle_ms = self._lag(partition), self._idle_of(group, partition)
            if idle_ms == NEVER_WAIT:
                group.deadlines.pop(partition, None)
                is_blocking = False
            elif queue.records or lag is None or lag > 0:
                group.deadlines.pop(partition, None)
                is_blocking = not queue.records
            else:
                deadline_ms = group.deadlines.setdefault(partition, self._now_ms + idle_ms)
                is_blocking = self._now_ms < deadline_ms
                passes = passes or not is_blocking
            if is_blocking and not self._has(Deviation.ONE_PASS):
                return False, False
            blocking |= {partition} if is_blocking else set()
        if self._is_drifting():
            return self._look_within_drift(group, blocking)
        is_ready = not blocking and not (passes and not any(queue.records for queue in group.queues.values()))
        return is_ready, is_ready and passes

    def _look_within_drift(self, group: _Group, blocking: Set[str]) -> tuple[bool, bool]:
        """Whether the least head is within the drift of the slowest input, and whether an input had none to compare."""
        heads_ms = {each: _known(queue.head_ms()) for each, queue in group.queues.items() if queue.records}
        if not heads_ms:
            return False, False
        slowest_ms = min(
            max(heads_ms.get(each, NO_TIME), _known(self._times_ms.get(each, UNKNOWN_TIME)))
            for each in {*heads_ms, *blocking}
        )
        assert self._drift_ms is not None
        is_enforced = any(
            not queue.records and self._idle_of(group, each) != NEVER_WAIT for each, queue in group.queues.items()
        )
        is_ready = min(heads_ms.values()) <= slowest_ms + self._drift_ms
        return is_ready, is_ready and is_enforced

    def _idle_of(self, group: _Group, partition: str) -> int:
        topic, _, _ = partition.rpartition("-")
        return self._idle_ms.get(topic, group.idle_ms) if self._has(Deviation.IDLE) else group.idle_ms

    def _is_drifting(self) -> bool:
        return self._drift_ms is not None and self._has(Deviation.DRIFT)


def _known(time_ms: int) -> float:
    return NO_TIME if time_ms == UNKNOWN_TIME else time_ms
