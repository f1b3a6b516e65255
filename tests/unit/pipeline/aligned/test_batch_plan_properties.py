"""All batches, one after another, are the merge sequence of the logs, however they came to be planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.spark.record_at_a_time_merge import TOPICS, counted, effective, pop_all, queue, tp

from understudy_aligned.batch_plan import BatchTake, Queue, plan_batch
from understudy_aligned.inputs.records import NO_TIME_MS, TopicPartition
from understudy_aligned.options import AlignedOptions

FEWER = settings(max_examples=50)
"""A run is some 40 plans already."""

PATIENT = 10**9
TASKS = {task: [tp(topic, task) for topic in TOPICS[:2]] for task in range(2)}
PARTITIONS = [each for partitions in TASKS.values() for each in partitions]

Record = tuple[TopicPartition, int]
Logs = Mapping[TopicPartition, Sequence[int]]

LOGS = st.fixed_dictionaries({each: st.lists(st.integers(0, 9), max_size=10) for each in PARTITIONS})
SMALL = st.integers(0, 4)


class Run:
    """A query over logs that are written, fetched and planned piece by piece.

    Lags are true: what is written and not fetched. After the last step everything is there and finished.
    """

    def __init__(
        self, logs: Logs, *, idle_ms: int, records: int, written: bool = False, drift_ms: int | None = None
    ) -> None:
        self.logs = logs
        self.idle_ms, self.drift_ms, self.records = idle_ms, drift_ms, records
        self.written = {each: len(log) if written else 0 for each, log in logs.items()}
        self.fetched = dict.fromkeys(logs, 0)
        self.planned = dict.fromkeys(logs, 0)
        self.unknown: set[TopicPartition] = set()
        self.deadlines: Mapping[TopicPartition, float] = {}
        self.ring, self.now_ms, self.finished = 0, 0.0, False
        self.taken: dict[int, list[Record]] = {task: [] for task in TASKS}
        self.enforced = 0

    def write(self, each: TopicPartition, records: int) -> None:
        self.written[each] = min(len(self.logs[each]), self.written[each] + records)

    def fetch(self, each: TopicPartition, records: int) -> None:
        self.fetched[each] = min(self.written[each], self.fetched[each] + records)

    def restart(self) -> None:
        """What was fetched, and every clock, is forgotten; what was planned is in the offset."""
        self.fetched, self.deadlines = dict(self.planned), {}

    def queues(self, task: int) -> list[Queue]:
        return [
            queue(each, effective(self.logs[each][self.planned[each] : self.fetched[each]]))._replace(
                reached_ms=self.reached_ms(each)
            )
            for each in TASKS[task]
        ]

    def reached_ms(self, each: TopicPartition) -> int:
        """The partition time in the offset."""
        return max(self.logs[each][: self.planned[each]], default=NO_TIME_MS)

    def plan(self) -> BatchTake:
        tasks = {task: self.queues(task) for task in TASKS}
        batch = plan_batch(
            tasks,
            {each: self.written[each] - self.fetched[each] for each in PARTITIONS if each not in self.unknown},
            self.deadlines,
            AlignedOptions(
                (), (), max_task_idle_ms=self.idle_ms, max_drift_ms=self.drift_ms, max_poll_records=self.records
            ),
            finished=frozenset(PARTITIONS) if self.finished else frozenset(),
            ring=self.ring,
            now_ms=self.now_ms,
        )
        for task, queues in tasks.items():
            limit = sum(batch.taken.get(each.partition, 0) for each in queues)
            heads = [each._replace(times_ms=each.times_ms[: batch.taken.get(each.partition, 0)]) for each in queues]
            order = pop_all(heads, may_pass={each.partition for each in heads}, limit=limit).taken
            self.taken[task] += [(each, self.planned[each] + index) for each, index in order]
        for each, count in batch.taken.items():
            self.planned[each] += count
        self.deadlines, self.ring = batch.deadlines, batch.ring
        self.enforced += sum(batch.enforced.values())
        return batch

    def finish(self) -> None:
        for each, log in self.logs.items():
            self.written[each] = self.fetched[each] = len(log)
        self.finished = True
        while self.plan().taken:
            pass


def merged(logs: Logs) -> dict[int, list[Record]]:
    """What every run has to come to, said by sorting."""
    sequence = {}
    for task, partitions in TASKS.items():
        times = {each: effective(logs[each]) for each in partitions}
        keys = sorted(
            (time_ms, TOPICS.index(each.topic), each.partition, ordinal, each)
            for each in partitions
            for ordinal, time_ms in enumerate(times[each])
        )
        sequence[task] = [(each, ordinal) for *_, ordinal, each in keys]
    return sequence


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "fetch", "fetch", "lose sight"]), st.sampled_from(PARTITIONS), SMALL),
        st.tuples(st.sampled_from(["plan", "plan", "restart"]), st.just(PARTITIONS[0]), st.just(0)),
    ),
    max_size=40,
)
Steps = Sequence[tuple[str, TopicPartition, int]]
RECORDS = st.sampled_from([-1, 1, 2, 3, 7])
WAITS = st.sampled_from([(-1, None), (0, None), (20, None), (PATIENT, None), (0, 0), (0, 3), (20, 3)])
"""An idle time and a drift."""


def played(run: Run, steps: Steps) -> Iterator[BatchTake]:
    """The batches of a run, not finished yet. Time passes with each step."""
    for verb, each, records in steps:
        run.now_ms += records * 10
        match verb:
            case "write":
                run.write(each, records)
            case "fetch":
                run.fetch(each, records)
            case "lose sight":
                run.unknown ^= {each}
            case "restart":
                run.restart()
            case _:
                yield run.plan()


@given(LOGS, STEPS, RECORDS)
def test_a_patient_query_has_one_order_however_records_arrive_and_wherever_batches_end(
    logs: Logs, steps: Steps, records: int
) -> None:
    """Through restarts and lost sight too; and it is never ahead of itself: what is taken is always a prefix."""
    run, expected = Run(logs, idle_ms=PATIENT, records=records), merged(logs)
    for _ in played(run, steps):
        assert all(run.taken[task] == expected[task][: len(run.taken[task])] for task in TASKS)
    assert run.enforced == 0
    run.finish()
    assert run.taken == expected


@FEWER
@given(LOGS, STEPS, RECORDS)
def test_statement_27_a_backlog_has_one_order_even_without_idle_time(logs: Logs, steps: Steps, records: int) -> None:
    """What is known to exist is awaited at 0 too, so what was there at the start of a query comes in order."""
    run = Run(logs, idle_ms=0, records=records, written=True)
    for _ in played(run, steps):
        pass
    run.finish()
    assert run.taken == merged(logs)


@pytest.mark.parametrize("idle_ms", [-1, 0])
def test_without_waiting_the_order_is_that_of_delivery(idle_ms: int) -> None:
    """At -1 even for records that are known to exist; at 0 for those that are not written yet."""
    flights, weather = TASKS[0]
    logs: Logs = {each: [] for each in PARTITIONS} | {flights: [5], weather: [3]}
    orders = []
    for first, second in ((flights, weather), (weather, flights)):
        run = Run(logs, idle_ms=idle_ms, records=-1, written=idle_ms == -1)
        for each in (first, second):
            run.write(each, 1)
            run.fetch(each, 1)
            run.plan()
        orders.append([each for each, _ in run.taken[0]])
    assert orders == [[flights, weather], [weather, flights]]


@FEWER
@given(LOGS, STEPS, RECORDS, WAITS.filter(lambda waits: waits[0] != -1))
def test_statement_32_while_nothing_was_enforced_the_order_is_the_logs_own(
    logs: Logs, steps: Steps, records: int, waits: tuple[int, int | None]
) -> None:
    """So the metric counts every order that another run may not repeat."""
    run, expected = Run(logs, idle_ms=waits[0], drift_ms=waits[1], records=records), merged(logs)
    for _ in played(run, steps):
        if not run.enforced:
            assert all(run.taken[task] == expected[task][: len(run.taken[task])] for task in TASKS)


@FEWER
@given(LOGS, STEPS, RECORDS, WAITS)
def test_no_record_is_lost_or_taken_twice_or_out_of_its_partitions_order(
    logs: Logs, steps: Steps, records: int, waits: tuple[int, int | None]
) -> None:
    """Whatever the policy."""
    run = Run(logs, idle_ms=waits[0], drift_ms=waits[1], records=records)
    for batch in played(run, steps):
        assert records == -1 or sum(batch.taken.values()) <= records
        assert all(batch.taken.values())
    run.finish()
    for task, partitions in TASKS.items():
        for each in partitions:
            assert [index for partition, index in run.taken[task] if partition == each] == list(range(len(logs[each])))


@FEWER
@given(LOGS, STEPS, st.sampled_from([-1, 0, 20]))
def test_a_batch_is_what_kafkas_loop_takes_and_counts(logs: Logs, steps: Steps, idle_ms: int) -> None:
    """Record by record, by whom may be passed over once they are empty; nobody counts at -1."""
    run = Run(logs, idle_ms=idle_ms, records=-1)
    for verb, each, records in steps:
        for _ in played(run, [(verb, each, records)] if verb != "plan" else []):
            pass
        if verb != "plan":
            continue
        known, lags = run.deadlines, {each: run.written[each] - run.fetched[each] for each in PARTITIONS}
        queues = {task: run.queues(task) for task in TASKS}
        caught_up = {each for each in PARTITIONS if each not in run.unknown and not lags[each]}
        empty = {each.partition for task in queues.values() for each in task if not len(each.times_ms)}
        expired = {each for each in caught_up & empty if known.get(each, run.now_ms + idle_ms) <= run.now_ms}
        may_pass = set(PARTITIONS) if idle_ms == -1 else expired | (caught_up if idle_ms == 0 else set())
        batch = run.plan()
        for task in TASKS:
            popped = pop_all(queues[task], may_pass=may_pass, given_up=may_pass if idle_ms != -1 else set())
            expected = counted(queues[task], popped.taken)
            assert {each: batch.taken.get(each, 0) for each in expected} == expected
            assert batch.enforced[task] == popped.enforced


@FEWER
@given(LOGS, STEPS, RECORDS, st.sampled_from([0, 3]), st.sampled_from([0, 20]))
def test_no_record_is_further_ahead_of_an_input_that_has_more_than_the_drift(
    logs: Logs, steps: Steps, records: int, drift_ms: int, idle_ms: int
) -> None:
    """Through restarts: how far inputs are is in the offset. An input that was given up on is passed by then."""
    run = Run(logs, idle_ms=idle_ms, drift_ms=drift_ms, records=records)
    for batch in played(run, steps):
        newest_ms = max(
            (max(logs[each][run.planned[each] - count : run.planned[each]]) for each, count in batch.taken.items()),
            default=NO_TIME_MS,
        )
        for each in PARTITIONS:
            if each in run.unknown or run.written[each] > run.planned[each]:
                next_ms = logs[each][run.planned[each]] if run.fetched[each] > run.planned[each] else NO_TIME_MS
                assert newest_ms <= max(run.reached_ms(each), next_ms) + drift_ms
