"""Random histories of a few inputs, and what the source's own planner delivers of them.

A history is made from a number alone, so the same number gives the same history. It is played to the planner, and
written down as commands for Kafka's `PartitionGroup` (tests/support/kafka/partition_group.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from tests.support.clock import ManualClock
from tests.support.kafka.partition_group import Deviation, PartitionGroups, Turn
from tests.support.spark.scripted_input import ScriptedRecord, chunk_of

from understudy_aligned.inputs.protocol import Fetched
from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner import PlannedBatch, Planner
from understudy_aligned.rows import RecordSource, RowOptions, TimedRecords, Times, output_rows, with_effective_times

TOPICS = ("flights", "weather", "alerts")
LAG_MAX_AGE_MS = 100


class Fetch(NamedTuple):
    """So many more records of a partition arrive, if there are so many."""

    partition: TopicPartition
    records: int


class Answer(NamedTuple):
    """A server says how many more records it has. None: nothing is known any more."""

    partition: TopicPartition
    lag: int | None


class Count(NamedTuple):
    """Topics have so many partitions from now on."""

    topics: tuple[str, ...]
    partitions: int


class Run(NamedTuple):
    now_ms: int


Step = Fetch | Answer | Count | Run


class History(NamedTuple):
    """What arrives, what is known and what is asked, in order."""

    merge: Literal["task", "global"]
    idle_ms: int
    max_poll_records: int
    topics: tuple[str, ...]
    partitions: int
    logs: Mapping[TopicPartition, Sequence[int | None]]
    steps: Sequence[Step]
    lag_max_age_ms: int = LAG_MAX_AGE_MS
    topic_idle_ms: Mapping[str, int] = {}
    max_drift_ms: int | None = None


FLIGHTS, WEATHER = TopicPartition("flights", 0), TopicPartition("weather", 0)
_CAUGHT_UP = (Answer(FLIGHTS, 0), Answer(WEATHER, 0))

A5_B50 = History(
    "task", 0, -1, ("flights", "weather"), 1, {FLIGHTS: [100, 5], WEATHER: [50]},
    [Fetch(FLIGHTS, 1), *_CAUGHT_UP, Run(0), Fetch(FLIGHTS, 1), Fetch(WEATHER, 1), *_CAUGHT_UP, Run(1)],
)  # fmt: skip
"""The smallest history in which the greatest timestamp of a partition is not what its next record is judged by."""

_EVERY_MS = 300
_ROUNDS = range(1, 9)

STARVATION = History(
    "task", 1_500, -1, ("flights", "weather"), 1,
    {FLIGHTS: [10**6, *(_EVERY_MS * n for n in _ROUNDS)], WEATHER: [0, *(_EVERY_MS * n + 1 for n in _ROUNDS)]},
    [
        Fetch(FLIGHTS, 1), Fetch(WEATHER, 1), *_CAUGHT_UP, Run(0), *_CAUGHT_UP, Run(1_500),
        *(
            step for n in _ROUNDS
            for step in (Fetch(FLIGHTS, 1), Fetch(WEATHER, 1), *_CAUGHT_UP, Run(1_500 + _EVERY_MS * n))
        ),
    ],
    5_000,
)  # fmt: skip
"""A record of the far future, which is taken when the other input pauses once; then a record of each every 300 ms."""


class Delivered(NamedTuple):
    taken: Mapping[int, Sequence[tuple[str, int]]]
    """By task, in order: partition and offset."""

    enforced: int
    """Since the beginning."""


@dataclass(slots=True)
class Played:
    """A history as the planner saw it."""

    runs: list[Delivered] = field(default_factory=list)
    late: tuple[int, int, int] = (0, 0, 0)
    """Records, the sum of their lateness, the greatest."""
    commands: list[str] = field(default_factory=list)
    """The same for `PartitionGroup`: one `run` for each task that there is."""

    def difference(self, turns: Sequence[Turn]) -> str | None:
        """The first difference to what came of the commands. None: there is none."""
        answers = iter(turns)
        last = None
        for number, run in enumerate(self.runs):
            for task, taken in run.taken.items():
                last = next(answers)
                if last.taken != tuple(taken):
                    return f"run {number} of task {task} delivered {taken}, not {last.taken}"
            if last is not None and last.enforced != run.enforced:
                return f"by run {number} {run.enforced} records were enforced, not {last.enforced}"
        if last is not None and last.late != self.late:
            return f"lateness (records, sum, greatest) is {self.late}, not {last.late}"
        return None


def history(number: int) -> History:
    """History `number`. Most are simple: what is special is drawn for a whole history."""
    story, chance = _kafkas_history(number), Random(f"own {number}")
    if chance.random() < 0.2:
        own = {topic: chance.choice((-1, 0, 10, 60)) for topic in story.topics if chance.random() < 0.5}
        story = story._replace(topic_idle_ms=own)
    # Which input is the slowest is a matter of all tasks: tests/unit/pipeline/aligned/test_batch_cut.py has several.
    if (story.merge == "global" or story.partitions == 1) and story.idle_ms != -1 and chance.random() < 0.3:
        story = story._replace(max_drift_ms=chance.choice((0, 2, 5, 20)))
    return story


def _kafkas_history(number: int) -> History:
    """One that Kafka can be configured for."""
    chance = Random(number)
    merge: Literal["task", "global"] = chance.choice(("task", "global"))
    topics = TOPICS[: chance.choice((1, 2, 2, 3))]
    partitions = chance.choice((1, 2))
    places = [TopicPartition(topic, p) for topic in topics for p in range(partitions)]
    kind = chance.choice(("in order", "in order", "ties", "disorder", "future"))
    has_poison = chance.random() < 0.2
    logs = {
        place: [
            None if has_poison and chance.random() < 0.15 else time_ms
            for time_ms in _timestamps(chance, kind, index, len(places))
        ]
        for index, place in enumerate(places)
    }
    return History(
        merge,
        chance.choice((-1, 0, 0, 20, 20)),
        chance.choice((-1, -1, -1, 1, 2, 4)),
        topics,
        partitions,
        logs,
        list(_steps(chance, topics if merge == "task" else (), partitions, places)),
    )


def _timestamps(chance: Random, kind: str, index: int, places: int) -> Iterator[int]:
    """The timestamps of one partition. `in order` gives no two equal ones in all partitions."""
    at = 0
    for _ in range(chance.randint(0, 12)):
        at += chance.randint(0, 5)
        match kind:
            case "in order":
                at += 1
                yield at * places + index
            case "ties":
                yield at // 4
            case "disorder":
                yield max(0, at - chance.choice((0, 0, 0, 3, 9)))
            case _:
                yield 1_000 if chance.random() < 0.15 else at


def _steps(
    chance: Random, together: tuple[str, ...], partitions: int, places: Sequence[TopicPartition]
) -> Iterator[Step]:
    """Topics that are `together` lose and get partitions together, so that a whole task goes and comes back."""
    counts = {place.topic: partitions for place in places}
    has_absurd_lags, grows = chance.random() < 0.2, partitions > 1 and chance.random() < 0.4
    lags = (None, 0, 0, 0, 0, 2) if not has_absurd_lags else (None, 0, 0, -1, -2, 1)
    now_ms = 0
    for place in places:
        yield Answer(place, chance.choice(lags))
    for _ in range(chance.randint(8, 40)):
        place = chance.choice(places)
        is_there = place.partition < counts[place.topic]
        match chance.choice(("fetch", "fetch", "answer", "run", "run", "count" if grows else "fetch")):
            case "fetch" if is_there:
                yield Fetch(place, chance.randint(1, 4))
            case "answer" if is_there:
                yield Answer(place, chance.choice(lags))
            case "run":
                now_ms += chance.choice((0, 1, 5, 10, 19, 20, 21, 40))
                yield Run(now_ms)
            case "count":
                changed = together or (place.topic,)
                counts.update(dict.fromkeys(changed, 1 if is_there else partitions))
                yield Count(changed, counts[place.topic])
                if not is_there:
                    yield Answer(place, 0)
                    now_ms += chance.choice((1, 20))
                    yield Run(now_ms)
    # All that is left arrives and is known to be all, and nobody is waited for any longer.
    yield Count(tuple(counts), partitions)
    for place in places:
        yield Fetch(place, 100)
    for _ in range(4):
        yield from (Answer(place, 0) for place in places)
        now_ms += 30
        yield Run(now_ms)


def modelled(commands: Iterable[str], deviations: Set[Deviation]) -> list[Turn]:
    """What comes of commands where these deviations hold."""
    group = PartitionGroups(TOPICS, deviations, lag_max_age_ms=LAG_MAX_AGE_MS)
    return [turn for turn in map(group.apply, commands) if turn is not None]


def explanation(commands: Iterable[str]) -> Set[Deviation]:
    """Deviations without any of which something else would come of these commands. Empty: Kafka gives the same."""
    lines, needed = list(commands), set(Deviation)
    expected = modelled(lines, needed)
    for each in Deviation:
        if modelled(lines, needed - {each}) == expected:
            needed.remove(each)
    return needed


def play(story: History) -> Played:
    """Play a history to a planner whose inputs are this function."""
    return _Play(story).played()


class _Play:
    def __init__(self, story: History) -> None:
        self._story = story
        self._clock = ManualClock()
        options = AlignedOptions(
            inputs=(),
            topics=story.topics,
            merge=story.merge,
            max_task_idle_ms=story.idle_ms,
            topic_idle_ms=story.topic_idle_ms,
            max_drift_ms=story.max_drift_ms,
            max_poll_records=story.max_poll_records,
            lag_max_age_ms=story.lag_max_age_ms,
            undecodable="skip",
            fail_on_data_loss=False,
        )
        self._planner = Planner(options, self._clock)
        self._ahead = self._planner._shared.ahead
        self._offset = self._planner.initial(timeout_ms=0)
        self._played = Played()

    def played(self) -> Played:
        story, played = self._story, self._played
        played.commands.append("begin")
        played.commands += [f"idle {topic} {idle_ms}" for topic, idle_ms in story.topic_idle_ms.items()]
        if story.max_drift_ms is not None:
            played.commands.append(f"drift {story.max_drift_ms}")
        for place, log in story.logs.items():
            played.commands.append(" ".join(["log", str(place), *(str(-1 if at is None else at) for at in log)]))
        assert self._planner.plan(self._offset, wait_ms=0) is None, "it only takes its position"
        self._count(dict.fromkeys(story.topics, story.partitions))
        for step in story.steps:
            match step:
                case Fetch():
                    self._fetch(step)
                case Answer():
                    self._answer(step)
                case Count():
                    self._count(dict.fromkeys(step.topics, step.partitions))
                case Run():
                    self._run(step.now_ms)
        metrics = self._planner.snapshot()
        records = sum(len(taken) for run in played.runs for taken in run.taken.values())
        played.late = (records, round(metrics.lateness.total_ms), metrics.lateness.max_ms)
        return played

    def _count(self, counts: Mapping[str, int]) -> None:
        before = {task: list(places) for task, places in self._ahead.tasks.items()}
        self._ahead.set_partition_counts(counts)
        after = {task: list(places) for task, places in self._ahead.tasks.items()}
        for task in before.keys() - after.keys():
            self._played.commands.append(f"close {task}")
        for task, places in after.items():
            names = " ".join(map(str, places))
            if task not in before:
                self._played.commands.append(f"open {task} {self._story.idle_ms} {names}")
            elif places != before[task]:
                self._played.commands.append(f"assign {task} {names}")

    def _fetch(self, step: Fetch) -> None:
        held = self._ahead.retained.get(step.partition)
        if held is None:
            return
        first = held.cursor.ordinal + len(held)
        records = [ScriptedRecord(at) for at in self._story.logs[step.partition][first : first + step.records]]
        if records:
            self._add(Fetched([chunk_of(step.partition, records, first=first)], {}))
        task = 0 if self._story.merge == "global" else step.partition.partition
        self._played.commands.append(f"fetch {task} {step.partition} {step.records}")

    def _answer(self, step: Answer) -> None:
        if step.partition not in self._ahead.retained:
            return
        if step.lag is None:
            self._ahead.lags.forget([step.partition])
        else:
            self._add(Fetched([], {step.partition: step.lag}))
        self._played.commands.append(f"lag {step.partition} {'?' if step.lag is None else step.lag}")

    def _add(self, fetched: Fetched) -> None:
        now_ms = self._clock.monotonic_ms()
        self._ahead.add_fetched(fetched, generation=self._ahead.generation, asked_ms=now_ms, now_ms=now_ms)

    def _run(self, now_ms: int) -> None:
        self._clock.advance(now_ms - self._clock.monotonic_ms())
        batch = self._planner.plan(self._offset, wait_ms=0)
        self._offset = self._offset if batch is None else batch.end
        counts = dict.fromkeys(self._ahead.tasks, 0)
        for span, _ in () if batch is None else batch.ranges:
            counts[self._task(span.partition)] += span.end.ordinal - span.start.ordinal
        # Statement 49: how a bound is shared among tasks is this project's own. Each task is held to its share.
        is_cut = sum(counts.values()) == self._story.max_poll_records
        for task, count in counts.items():
            self._played.commands.append(f"run {task} {now_ms} {count if is_cut else -1}")
        self._played.runs.append(Delivered(self._in_order(batch), self._offset.enforced))

    def _task(self, place: TopicPartition) -> int:
        return 0 if self._story.merge == "global" else place.partition

    def _in_order(self, batch: PlannedBatch | None) -> Mapping[int, list[tuple[str, int]]]:
        """The rows that Spark gets, sorted by their key."""
        delivered: dict[int, list[tuple[str, int]]] = {task: [] for task in self._ahead.tasks}
        for row in sorted(_rows(self._story.topics, batch), key=lambda row: tuple(row["merge_order"].values())):
            place = TopicPartition(row["topic"], row["partition"])
            delivered[self._task(place)].append((str(place), int(row["offset"])))
        return delivered


def _rows(topics: Sequence[str], batch: PlannedBatch | None) -> Iterator[Mapping[str, Any]]:
    """As an executor makes them."""
    for span, parts in () if batch is None else batch.ranges:
        (records,) = pa.Table.from_batches(list(parts)).combine_chunks().to_batches()
        rows, effective_ms, _, _ = with_effective_times(records, Times(span.start.time_ms), max_jump_ms=None)
        rank = topics.index(span.partition.topic)
        number = batch.end.batches if batch is not None else 0
        made = output_rows(
            [TimedRecords([RecordSource(span.partition, rank, rows.num_rows)], rows, effective_ms)],
            RowOptions(),
            batch=number,
        )
        yield from made.to_pylist()
