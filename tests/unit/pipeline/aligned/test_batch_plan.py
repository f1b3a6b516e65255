"""One plan: which inputs are waited for, and until when; what is taken, shared out over tasks; when to plan again; and
what is settled, that is known of the next batch before Spark asks for it. Numbers are those of docs/kips.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from tests.support.spark.record_at_a_time_merge import effective, queue, tp

from understudy_aligned.batch_plan import (
    NEVER_WAIT,
    UNBOUNDED,
    BatchTake,
    IdleDecision,
    InputState,
    Queue,
    decide_idle,
    plan_batch,
    share,
)
from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.options import AlignedOptions
from understudy_aligned.planner import settled_counts

Tasks = dict[int, Sequence[Queue]]

A, B, C = tp("flights"), tp("weather"), tp("alerts")
A1, B1 = tp("flights", 1), tp("weather", 1)
CAUGHT_UP = dict.fromkeys((A, B, C, A1, B1), 0)


def one(**times_ms: Iterable[int]) -> Tasks:
    """A single task, by topic."""
    return {0: [queue(tp(topic), times) for topic, times in times_ms.items()]}


def plan(
    tasks: Mapping[int, Sequence[Queue]],
    lags: Mapping[TopicPartition, int | None] = CAUGHT_UP,
    known: Mapping[TopicPartition, float] | None = None,
    *,
    finished: Set[TopicPartition] = frozenset(),
    idle_ms: int = 0,
    records: int = -1,
    ring: int = 0,
    now_ms: float = 1000,
) -> BatchTake:
    """Every input is caught up, and none is waited for."""
    return plan_batch(
        tasks,
        lags,
        known or {},
        AlignedOptions((), (), max_task_idle_ms=idle_ms, max_poll_records=records),
        finished=finished,
        ring=ring,
        now_ms=now_ms,
    )


def left(tasks: Mapping[int, Sequence[Queue]], batch: BatchTake) -> Tasks:
    """What the next plan begins with when nothing arrives."""
    return {
        task: [each._replace(times_ms=each.times_ms[batch.taken.get(each.partition, 0) :]) for each in queues]
        for task, queues in tasks.items()
    }


def test_statement_28_the_idle_time_counts_from_when_nothing_is_left_behind_a_batch() -> None:
    """Not from the next look, which may come any time later: the batch is being processed first."""
    tasks = one(flights=[1, 9], weather=[5])
    first = plan(tasks, idle_ms=50, now_ms=1000)
    assert (first.taken, first.deadlines) == ({A: 1, B: 1}, {B: 1050})
    rest = left(tasks, first)
    early = plan(rest, known=first.deadlines, idle_ms=50, now_ms=1049)
    assert early[:4] == ({}, {0: 0}, 0, {B: 1050})
    assert plan(rest, known=early.deadlines, idle_ms=50, now_ms=1050).taken == {A: 1}


def test_statement_30_the_idle_times_of_all_inputs_of_all_tasks_begin_together() -> None:
    """In Kafka those behind the first that blocks begin later, so that k of them cost up to k times as long."""
    tasks = {0: [queue(A, [1]), queue(B), queue(C)], 1: [queue(A1), queue(B1, [3])]}
    first = plan(tasks, idle_ms=50)
    assert first.deadlines == {B: 1050, C: 1050, A1: 1050}
    assert plan(tasks, known=first.deadlines, idle_ms=50, now_ms=1050).taken == {A: 1, B1: 1}


def test_statement_31_where_everything_is_empty_there_is_nothing_to_do_and_nothing_to_count() -> None:
    assert plan(one(flights=[], weather=[]))[:4] == ({}, {0: 0}, 0, {A: 1000, B: 1000})
    assert plan({0: []})[:4] == ({}, {0: 0}, 0, {})


def test_statement_32_records_that_are_left_for_another_batch_are_not_counted() -> None:
    tasks = one(flights=[1, 4, 9], weather=[3])
    assert [plan(tasks, records=records).enforced[0] for records in (1, 2, 3, 4)] == [0, 0, 1, 2]


def test_statement_32_nobody_is_given_up_on_at_minus_1_and_what_is_behind_the_end_of_a_query_is_enforced() -> None:
    tasks = one(flights=[1, 9], weather=[])
    assert plan(tasks, idle_ms=-1).enforced == {0: 0}
    finished = plan(tasks, {}, finished={B}, idle_ms=50)
    assert (finished.taken, finished.enforced) == ({A: 2}, {0: 2})


def test_statement_36_a_plan_that_nobody_uses_leaves_no_trace() -> None:
    """A Kafka task that has a commit pending processes nothing. Spark asks for a batch only when the one before is
    committed, and one that is planned again, from the same records at the same time, is the same.
    """
    tasks, known = {0: [queue(A, [1, 9]), queue(B, [5])], 1: [queue(A1, [2]), queue(B1)]}, {B1: 1020.0}
    first = plan(tasks, known=known, idle_ms=50, records=1)
    assert plan(tasks, known=known, idle_ms=50, records=1) == first
    assert known == {B1: 1020.0}
    assert [list(each.times_ms) for each in tasks[0]] == [[1, 9], [5]]


def test_statement_49_tasks_take_turns_from_one_batch_to_the_next() -> None:
    """Kafka drains what it fetched in the order in which it came, one partition after another."""
    tasks: Tasks = {0: [queue(A, range(9))], 1: [queue(A1, range(9))]}
    turns, ring = [], 0
    for _ in range(4):
        batch = plan(tasks, records=1, ring=ring)
        tasks, ring = left(tasks, batch), batch.ring
        turns.append(batch.taken)
    assert turns == [{A: 1}, {A1: 1}, {A: 1}, {A1: 1}]


def test_statement_50_the_records_of_a_task_that_waits_are_set_aside_and_lose_neither_place_nor_turn() -> None:
    """Kafka sets aside what was fetched of a paused partition. A pause here stops fetching, never planning, so what is
    set aside is a task that waits: its share goes to the others meanwhile.
    """
    tasks: Tasks = {0: [queue(A, [1, 2]), queue(B)], 1: [queue(A1, range(9)), queue(B1, range(9))]}
    waits = plan(tasks, {B: 3}, records=4)
    assert waits.taken == {A1: 2, B1: 2}
    tasks = left(tasks, waits) | {0: [queue(A, [1, 2]), queue(B, [1])]}
    assert plan(tasks, {B: 2}, records=2, ring=waits.ring).taken == {A: 1, A1: 1}


AVAILABLE = st.dictionaries(st.integers(0, 7), st.integers(0, 50), max_size=6)
BUDGET, FIRST = st.integers(1, 120), st.integers(0, 9)


def batches(available: Sequence[Mapping[int, int]], *, budget: int, first: int = 0) -> list[Mapping[int, int]]:
    shares = []
    for each in available:
        allowed, first = share(each, budget=budget, first=first)
        shares.append(allowed)
    return shares


@given(AVAILABLE, BUDGET, FIRST)
def test_statement_46_a_batch_has_no_more_records_than_allowed_and_no_fewer_than_it_can(
    available: Mapping[int, int], budget: int, first: int
) -> None:
    """Over all partitions together. It is no minimum: a batch of less is not held back."""
    allowed, next_first = share(available, budget=budget, first=first)
    assert allowed.keys() == available.keys()
    assert all(0 <= allowed[task] <= available[task] for task in available)
    assert sum(allowed.values()) == min(budget, sum(available.values()))
    assert next_first in available or next_first == first


@given(AVAILABLE, FIRST)
def test_statement_46_minus_1_is_no_bound(available: Mapping[int, int], first: int) -> None:
    """Our default, as Spark's; Kafka has no such value, its default is 500."""
    assert share(available, budget=UNBOUNDED, first=first) == (available, first)


@given(AVAILABLE, BUDGET, FIRST)
def test_statement_49_no_task_that_wants_more_has_less_than_another_by_over_1(
    available: Mapping[int, int], budget: int, first: int
) -> None:
    """Kafka promises nothing: one poll may hold one partition only."""
    allowed = share(available, budget=budget, first=first).allowed
    wanting = [allowed[task] for task in available if allowed[task] < available[task]]
    assert all(most - least <= 1 for least in wanting for most in allowed.values())


@given(st.integers(2, 6), st.integers(0, 5), BUDGET, FIRST, st.data())
def test_statement_49_a_task_waits_for_fewer_batches_than_there_are_tasks(
    tasks: int, patient: int, budget: int, first: int, data: st.DataObject
) -> None:
    """Whatever the others have, and however few records a batch may have."""
    patient %= tasks
    others = st.fixed_dictionaries(
        {task: st.just(9) if task == patient else st.integers(0, 200) for task in range(tasks)}
    )
    histories = data.draw(st.lists(others, min_size=tasks, max_size=tasks))
    assert any(allowed[patient] for allowed in batches(histories, budget=budget, first=first))


@given(st.integers(1, 6), BUDGET, FIRST)
def test_statement_49_backlogs_are_worked_off_evenly_however_unlike_they_are(
    tasks: int, budget: int, first: int
) -> None:
    plenty = {task: 2000 * (task + 1) for task in range(tasks)}
    totals: Counter[int] = Counter()
    for number, allowed in enumerate(batches([plenty] * 12, budget=budget, first=first), start=1):
        totals.update(allowed)
        expected = number * budget / tasks
        assert all(abs(totals[task] - expected) < 1 for task in plenty)


TASKS = {task: [tp("flights", task), tp("weather", task)] for task in range(2)}
PARTITIONS = [each for partitions in TASKS.values() for each in partitions]
SOME = st.sets(st.sampled_from(PARTITIONS))


def queues(logs: Mapping[TopicPartition, Sequence[int]]) -> dict[int, list[Queue]]:
    return {task: [queue(each, effective(logs[each])) for each in places] for task, places in TASKS.items()}


@given(
    fetched=st.fixed_dictionaries({each: st.lists(st.integers(0, 9), min_size=1, max_size=6) for each in PARTITIONS}),
    arrives=st.fixed_dictionaries({each: st.lists(st.integers(0, 9), max_size=6) for each in PARTITIONS}),
    lags=st.dictionaries(st.sampled_from(PARTITIONS), st.sampled_from([None, 0, 3])),
    deadlines=st.dictionaries(st.sampled_from(PARTITIONS), st.sampled_from([0.0, 50.0])),
    finished=SOME,
    records=st.integers(1, 6),
    ring=st.integers(0, 2),
    waits=st.sampled_from([(-1, None), (0, None), (20, None), (0, 0), (0, 4), (20, 4), (20, 100)]),
)
def test_a_settled_batch_is_the_one_that_is_planned_whatever_happens_until_then(
    *,
    fetched: Mapping[TopicPartition, list[int]],
    arrives: Mapping[TopicPartition, list[int]],
    lags: Mapping[TopicPartition, int | None],
    deadlines: Mapping[TopicPartition, float],
    finished: set[TopicPartition],
    records: int,
    ring: int,
    waits: tuple[int, int | None],
) -> None:
    """Records arrive in any partition and with any timestamp, inputs are given up on, end, or are unknown."""
    idle_ms, drift_ms = waits
    settled = settled_counts(queues(fetched), max_poll_records=records, ring=ring, max_drift_ms=drift_ms)
    event(f"settled: {settled is not None}")
    if settled is None:
        return

    def planned(logs: Mapping[TopicPartition, list[int]]) -> BatchTake:
        return plan_batch(
            queues(logs),
            lags,
            deadlines,
            AlignedOptions((), (), max_task_idle_ms=idle_ms, max_drift_ms=drift_ms, max_poll_records=records),
            finished=finished,
            ring=ring,
            now_ms=30.0,
        )

    later = planned({each: [*fetched[each], *arrives[each]] for each in PARTITIONS})
    assert list(later.taken.items()) == list(settled.items()), "in the same order, too"
    assert sum(settled.values()) == records
    assert later.ring == planned(fetched).ring
    assert not any(later.enforced.values())


@pytest.mark.parametrize(
    ("tasks", "records"),
    [
        pytest.param(one(flights=[1, 3, 5], weather=[2, 4]), -1, id="more records make a batch without a bound larger"),
        pytest.param(one(flights=[1, 3, 5], weather=[]), 2, id="an empty input may get a record that comes first"),
        pytest.param(one(flights=[1, 3, 9], weather=[2]), 3, id="behind the last record of an input nothing is known"),
        pytest.param(one(flights=[1, 2], weather=[3]), 4, id="a batch that is not full grows"),
        pytest.param(one(flights=[1, 2], weather=[3, 4]), 3, id="just a full batch would leave the ring where it is"),
        pytest.param(
            {0: [queue(tp("flights"), [1, 2, 3, 4, 5])], 1: [queue(tp("flights", 1), [1])]},
            4,
            id="a task that gives all it has may get more, and the other task then gives less",
        ),
        pytest.param({}, 1, id="no partitions are known yet"),
    ],
)
def test_what_may_still_change_is_not_settled(tasks: Mapping[int, Sequence[Queue]], records: int) -> None:
    assert settled_counts(tasks, max_poll_records=records, ring=0) is None


FULL, UNKNOWN, BEHIND = InputState(empty=False, lag=0), InputState(empty=True, lag=None), InputState(empty=True, lag=7)
IDLE_CAUGHT_UP = InputState(empty=True, lag=0)

SEEN = st.builds(InputState, st.booleans(), st.sampled_from([None, 0, 3]), st.booleans())
OBSERVED = st.dictionaries(st.sampled_from([A, B, C]), SEEN)
HISTORIES = st.lists(st.tuples(st.sampled_from([0, 1, 40, 100]), OBSERVED), min_size=1, max_size=12)


def decision(
    observed: Mapping[TopicPartition, InputState], *, idle_ms: int, now_ms: float = 1000, **known: float
) -> IdleDecision:
    """`known` deadlines by topic."""
    deadlines = {tp(topic): deadline for topic, deadline in known.items()}
    return decide_idle(deadlines, observed, max_task_idle_ms=idle_ms, now_ms=now_ms)


@pytest.mark.parametrize(("idle_ms", "passed"), [(-1, {A, B}), (0, {A}), (50, set())], ids=["never", "known", "idle"])
def test_statement_23_minus_1_0_and_more_are_three_policies_and_0_is_the_default(
    idle_ms: int, passed: set[TopicPartition]
) -> None:
    """Other negative values do not come here: they are refused with the options. Kafka takes them for 0."""
    assert AlignedOptions.__dataclass_fields__["max_task_idle_ms"].default == 0
    assert decision({A: IDLE_CAUGHT_UP, B: BEHIND}, idle_ms=idle_ms).may_pass == passed
    with pytest.raises(AssertionError):
        decision({A: IDLE_CAUGHT_UP}, idle_ms=-2)


@given(OBSERVED)
def test_statement_24_minus_1_passes_everybody_over_and_looks_at_no_lag(
    observed: Mapping[TopicPartition, InputState],
) -> None:
    assert decision(observed, idle_ms=NEVER_WAIT, flights=900) == IdleDecision({}, frozenset(observed))


@pytest.mark.parametrize("idle_ms", [0, 50])
def test_statement_25_an_input_that_has_records_has_no_deadline(idle_ms: int) -> None:
    assert decision({A: FULL}, idle_ms=idle_ms, flights=1001).deadlines == {}


@pytest.mark.parametrize("idle_ms", [0, 50])
@pytest.mark.parametrize("seen", [UNKNOWN, BEHIND], ids=["statement 26: unknown", "statement 27: above 0"])
def test_statement_26_27_an_empty_input_of_unknown_or_positive_lag_is_awaited_without_limit(
    idle_ms: int, seen: InputState
) -> None:
    assert decision({A: seen}, idle_ms=idle_ms, now_ms=1e12, flights=900) == IdleDecision({}, frozenset())


@pytest.mark.parametrize("news", [FULL, UNKNOWN, BEHIND], ids=["data", "unknown lag", "lag above 0"])
def test_statement_29_news_ends_a_deadline_and_the_next_one_is_whole(news: InputState) -> None:
    between = decision({A: news}, idle_ms=50, now_ms=1060, flights=1050)
    again = decide_idle(between.deadlines, {A: IDLE_CAUGHT_UP}, max_task_idle_ms=50, now_ms=1070)
    assert again == IdleDecision({A: 1120}, frozenset())


def test_statement_35_what_is_not_observed_any_more_is_forgotten() -> None:
    """Kafka leaves the deadlines of removed partitions behind, and a partition that comes back would inherit one."""
    gone = decision({B: IDLE_CAUGHT_UP}, idle_ms=50, now_ms=1040, flights=1045, weather=1045)
    assert gone.deadlines == {B: 1045}
    assert decide_idle(gone.deadlines, {A: IDLE_CAUGHT_UP}, max_task_idle_ms=50, now_ms=1050) == IdleDecision(
        {A: 1100}, frozenset()
    )


@pytest.mark.parametrize("lag", [-1, -2, -(2**62)])
def test_statement_38_no_number_means_unknown_and_one_below_0_is_0(lag: int) -> None:
    """In Kafka -1 is "unknown" and -2 is "caught up"."""
    assert decision({A: InputState(empty=True, lag=lag)}, idle_ms=0) == decision({A: IDLE_CAUGHT_UP}, idle_ms=0)
    assert decision({A: UNKNOWN}, idle_ms=0).may_pass == frozenset()


@pytest.mark.parametrize(
    ("seen", "idle_ms", "passes"),
    [
        (InputState(empty=False, lag=0), 0, True),
        (InputState(empty=False, lag=4), 0, False),
        (InputState(empty=False, lag=None), 0, False),
        (InputState(empty=False, lag=0), 1, False),
        (InputState(empty=False, lag=None), -1, True),
        (InputState(empty=False, lag=4, finished=True), 50, True),
    ],
    ids=["caught up", "behind", "unknown", "idle time first", "never waiting", "finished"],
)
def test_an_input_that_has_records_may_or_may_not_run_empty(seen: InputState, idle_ms: int, passes: bool) -> None:
    assert (A in decision({A: seen}, idle_ms=idle_ms).may_pass) == passes


@given(st.sampled_from([0, 1, 50]), HISTORIES)
def test_nobody_is_given_up_on_before_it_was_caught_up_for_the_idle_time(
    idle_ms: int, history: list[tuple[int, Mapping[TopicPartition, InputState]]]
) -> None:
    """For every history; and it is given up on as soon as the idle time is over."""
    now_ms, deadlines = 0.0, dict[TopicPartition, float]()
    since: dict[TopicPartition, float] = {}
    for passed_ms, observed in history:
        now_ms += passed_ms
        waiting = {partition for partition, seen in observed.items() if seen == IDLE_CAUGHT_UP}
        since = {partition: since.get(partition, now_ms) for partition in waiting}
        decision = decide_idle(deadlines, observed, max_task_idle_ms=idle_ms, now_ms=now_ms)
        deadlines = dict(decision.deadlines)
        assert deadlines.keys() == waiting
        assert waiting & decision.may_pass == {each for each in waiting if now_ms - since[each] >= idle_ms}


def test_a_topic_with_an_idle_time_of_its_own_is_waited_for_so_long_and_the_others_as_before() -> None:
    own = {A.topic: 50, C.topic: NEVER_WAIT}
    observed = {A: IDLE_CAUGHT_UP, B: IDLE_CAUGHT_UP, C: UNKNOWN}
    found = decide_idle({}, observed, max_task_idle_ms=0, topic_idle_ms=own, now_ms=1000)
    assert found == IdleDecision({A: 1050, B: 1000}, frozenset({B, C}))
    later = decide_idle(found.deadlines, observed, max_task_idle_ms=0, topic_idle_ms=own, now_ms=1050)
    assert later.may_pass == {A, B, C}
