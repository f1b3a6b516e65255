"""Which inputs are waited for, and until when. Numbers are those of docs/kips.md."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark.record_at_a_time_merge import tp

from understudy_aligned.batch_plan import NEVER_WAIT, IdleDecision, InputState, decide_idle
from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.options import AlignedOptions

A, B, C = tp("flights"), tp("weather"), tp("alerts")
FULL, UNKNOWN, BEHIND = InputState(empty=False, lag=0), InputState(empty=True, lag=None), InputState(empty=True, lag=7)
CAUGHT_UP = InputState(empty=True, lag=0)

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
    assert decision({A: CAUGHT_UP, B: BEHIND}, idle_ms=idle_ms).may_pass == passed
    with pytest.raises(AssertionError):
        decision({A: CAUGHT_UP}, idle_ms=-2)


@given(OBSERVED)
def test_statement_24_minus_1_passes_everybody_over_and_looks_at_no_lag(
    observed: Mapping[TopicPartition, InputState],
) -> None:
    assert decision(observed, idle_ms=NEVER_WAIT, flights=900) == IdleDecision({}, frozenset(observed))


@pytest.mark.parametrize("idle_ms", [0, 50])
def test_statement_25_an_input_that_has_records_has_no_deadline(idle_ms: int) -> None:
    assert decision({A: FULL}, idle_ms=idle_ms, flights=1001).deadlines == {}


def test_statement_25_a_task_without_inputs_waits_for_nobody() -> None:
    assert decision({}, idle_ms=50) == IdleDecision({}, frozenset())


@pytest.mark.parametrize("idle_ms", [0, 50])
@pytest.mark.parametrize("seen", [UNKNOWN, BEHIND], ids=["statement 26: unknown", "statement 27: above 0"])
def test_statement_26_27_an_empty_input_of_unknown_or_positive_lag_is_awaited_without_limit(
    idle_ms: int, seen: InputState
) -> None:
    assert decision({A: seen}, idle_ms=idle_ms, now_ms=1e12, flights=900) == IdleDecision({}, frozenset())


def test_statement_28_an_input_that_is_caught_up_is_given_up_on_after_the_idle_time() -> None:
    first = decision({A: CAUGHT_UP}, idle_ms=50, now_ms=1000)
    assert first == IdleDecision({A: 1050}, frozenset())
    just_before = decide_idle(first.deadlines, {A: CAUGHT_UP}, max_task_idle_ms=50, now_ms=1049.9)
    assert just_before == first
    assert decide_idle(first.deadlines, {A: CAUGHT_UP}, max_task_idle_ms=50, now_ms=1050).may_pass == {A}


def test_statement_28_without_idle_time_it_is_given_up_on_at_once() -> None:
    assert decision({A: CAUGHT_UP}, idle_ms=0).may_pass == {A}


def test_statement_29_a_deadline_that_passed_stays_passed_until_there_is_news() -> None:
    for now_ms in (1050, 1051, 5000):
        assert decision({A: CAUGHT_UP}, idle_ms=50, now_ms=now_ms, flights=1050) == IdleDecision(
            {A: 1050}, frozenset({A})
        )


@pytest.mark.parametrize("news", [FULL, UNKNOWN, BEHIND], ids=["data", "unknown lag", "lag above 0"])
def test_statement_29_news_ends_a_deadline_and_the_next_one_is_whole(news: InputState) -> None:
    between = decision({A: news}, idle_ms=50, now_ms=1060, flights=1050)
    again = decide_idle(between.deadlines, {A: CAUGHT_UP}, max_task_idle_ms=50, now_ms=1070)
    assert again == IdleDecision({A: 1120}, frozenset())


def test_statement_30_inputs_that_are_empty_together_are_waited_for_together() -> None:
    """Kafka stops at the first one that blocks, so k of them can cost k times the idle time."""
    first = decision({A: UNKNOWN, B: CAUGHT_UP, C: CAUGHT_UP}, idle_ms=50, now_ms=1000)
    assert first.deadlines == {B: 1050, C: 1050}
    later = decide_idle(first.deadlines, dict.fromkeys((A, B, C), CAUGHT_UP), max_task_idle_ms=50, now_ms=1050)
    assert later == IdleDecision({A: 1100, B: 1050, C: 1050}, frozenset({B, C}))


def test_statement_35_what_is_not_observed_any_more_is_forgotten() -> None:
    """Kafka leaves the deadlines of removed partitions behind, and a partition that comes back would inherit one."""
    gone = decision({B: CAUGHT_UP}, idle_ms=50, now_ms=1040, flights=1045, weather=1045)
    assert gone.deadlines == {B: 1045}
    assert decide_idle(gone.deadlines, {A: CAUGHT_UP}, max_task_idle_ms=50, now_ms=1050) == IdleDecision(
        {A: 1100}, frozenset()
    )


@pytest.mark.parametrize("lag", [-1, -2, -(2**62)])
def test_statement_38_no_number_means_unknown_and_one_below_0_is_0(lag: int) -> None:
    """In Kafka -1 is "unknown" and -2 is "caught up"."""
    assert decision({A: InputState(empty=True, lag=lag)}, idle_ms=0) == decision({A: CAUGHT_UP}, idle_ms=0)
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
        waiting = {partition for partition, seen in observed.items() if seen == CAUGHT_UP}
        since = {partition: since.get(partition, now_ms) for partition in waiting}
        decision = decide_idle(deadlines, observed, max_task_idle_ms=idle_ms, now_ms=now_ms)
        deadlines = dict(decision.deadlines)
        assert deadlines.keys() == waiting
        assert waiting & decision.may_pass == {each for each in waiting if now_ms - since[each] >= idle_ms}


def test_a_topic_with_an_idle_time_of_its_own_is_waited_for_so_long_and_the_others_as_before() -> None:
    own = {A.topic: 50, C.topic: NEVER_WAIT}
    observed = {A: CAUGHT_UP, B: CAUGHT_UP, C: UNKNOWN}
    found = decide_idle({}, observed, max_task_idle_ms=0, topic_idle_ms=own, now_ms=1000)
    assert found == IdleDecision({A: 1050, B: 1000}, frozenset({B, C}))
    later = decide_idle(found.deadlines, observed, max_task_idle_ms=0, topic_idle_ms=own, now_ms=1050)
    assert later.may_pass == {A, B, C}
