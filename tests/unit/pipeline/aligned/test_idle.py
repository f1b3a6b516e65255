"""Who is waited for, and until when. Numbers are those of docs/kips.md."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.merging import tp

from understudy_pipeline.aligned.idle import NEVER_WAIT, Judgement, Seen, judge
from understudy_pipeline.aligned.options import AlignedOptions
from understudy_pipeline.aligned.records import TopicPartition

A, B, C = tp("flights"), tp("weather"), tp("alerts")
FULL, UNKNOWN, BEHIND = Seen(empty=False, lag=0), Seen(empty=True, lag=None), Seen(empty=True, lag=7)
CAUGHT_UP = Seen(empty=True, lag=0)

SEEN = st.builds(Seen, st.booleans(), st.sampled_from([None, 0, 3]), st.booleans())
OBSERVED = st.dictionaries(st.sampled_from([A, B, C]), SEEN)
HISTORIES = st.lists(st.tuples(st.sampled_from([0, 1, 40, 100]), OBSERVED), min_size=1, max_size=12)


def told(observed: Mapping[TopicPartition, Seen], *, idle_ms: int, now_ms: float = 1000, **known: float) -> Judgement:
    """`known` deadlines by topic."""
    deadlines = {tp(topic): deadline for topic, deadline in known.items()}
    return judge(deadlines, observed, max_task_idle_ms=idle_ms, now_ms=now_ms)


@pytest.mark.parametrize(("idle_ms", "passed"), [(-1, {A, B}), (0, {A}), (50, set())], ids=["never", "known", "idle"])
def test_statement_23_minus_1_0_and_more_are_three_policies_and_0_is_the_default(
    idle_ms: int, passed: set[TopicPartition]
) -> None:
    """Other negative values do not come here: they are refused with the options. Kafka takes them for 0."""
    assert AlignedOptions.__dataclass_fields__["max_task_idle_ms"].default == 0
    assert told({A: CAUGHT_UP, B: BEHIND}, idle_ms=idle_ms).may_pass == passed
    with pytest.raises(AssertionError):
        told({A: CAUGHT_UP}, idle_ms=-2)


@given(OBSERVED)
def test_statement_24_minus_1_passes_everybody_over_and_looks_at_no_lag(
    observed: Mapping[TopicPartition, Seen],
) -> None:
    assert told(observed, idle_ms=NEVER_WAIT, flights=900) == Judgement({}, frozenset(observed))


@pytest.mark.parametrize("idle_ms", [0, 50])
def test_statement_25_an_input_that_has_records_has_no_deadline(idle_ms: int) -> None:
    assert told({A: FULL}, idle_ms=idle_ms, flights=1001).deadlines == {}


def test_statement_25_a_task_without_inputs_waits_for_nobody() -> None:
    assert told({}, idle_ms=50) == Judgement({}, frozenset())


@pytest.mark.parametrize("idle_ms", [0, 50])
@pytest.mark.parametrize("seen", [UNKNOWN, BEHIND], ids=["statement 26: unknown", "statement 27: above 0"])
def test_statement_26_27_an_empty_input_of_unknown_or_positive_lag_is_awaited_without_limit(
    idle_ms: int, seen: Seen
) -> None:
    assert told({A: seen}, idle_ms=idle_ms, now_ms=1e12, flights=900) == Judgement({}, frozenset())


def test_statement_28_an_input_that_is_caught_up_is_given_up_on_after_the_idle_time() -> None:
    first = told({A: CAUGHT_UP}, idle_ms=50, now_ms=1000)
    assert first == Judgement({A: 1050}, frozenset())
    just_before = judge(first.deadlines, {A: CAUGHT_UP}, max_task_idle_ms=50, now_ms=1049.9)
    assert just_before == first
    assert judge(first.deadlines, {A: CAUGHT_UP}, max_task_idle_ms=50, now_ms=1050).may_pass == {A}


def test_statement_28_without_idle_time_it_is_given_up_on_at_once() -> None:
    assert told({A: CAUGHT_UP}, idle_ms=0).may_pass == {A}


def test_statement_29_a_deadline_that_passed_stays_passed_until_there_is_news() -> None:
    for now_ms in (1050, 1051, 5000):
        assert told({A: CAUGHT_UP}, idle_ms=50, now_ms=now_ms, flights=1050) == Judgement({A: 1050}, frozenset({A}))


@pytest.mark.parametrize("news", [FULL, UNKNOWN, BEHIND], ids=["data", "unknown lag", "lag above 0"])
def test_statement_29_news_ends_a_deadline_and_the_next_one_is_whole(news: Seen) -> None:
    between = told({A: news}, idle_ms=50, now_ms=1060, flights=1050)
    again = judge(between.deadlines, {A: CAUGHT_UP}, max_task_idle_ms=50, now_ms=1070)
    assert again == Judgement({A: 1120}, frozenset())


def test_statement_30_inputs_that_are_empty_together_are_waited_for_together() -> None:
    """Kafka stops at the first one that blocks, so k of them can cost k times the idle time."""
    first = told({A: UNKNOWN, B: CAUGHT_UP, C: CAUGHT_UP}, idle_ms=50, now_ms=1000)
    assert first.deadlines == {B: 1050, C: 1050}
    later = judge(first.deadlines, dict.fromkeys((A, B, C), CAUGHT_UP), max_task_idle_ms=50, now_ms=1050)
    assert later == Judgement({A: 1100, B: 1050, C: 1050}, frozenset({B, C}))


def test_statement_35_what_is_not_observed_any_more_is_forgotten() -> None:
    """Kafka leaves the deadlines of removed partitions behind, and a partition that comes back would inherit one."""
    gone = told({B: CAUGHT_UP}, idle_ms=50, now_ms=1040, flights=1045, weather=1045)
    assert gone.deadlines == {B: 1045}
    assert judge(gone.deadlines, {A: CAUGHT_UP}, max_task_idle_ms=50, now_ms=1050) == Judgement({A: 1100}, frozenset())


@pytest.mark.parametrize("lag", [-1, -2, -(2**62)])
def test_statement_38_no_number_means_unknown_and_one_below_0_is_0(lag: int) -> None:
    """In Kafka -1 is "unknown" and -2 is "caught up"."""
    assert told({A: Seen(empty=True, lag=lag)}, idle_ms=0) == told({A: CAUGHT_UP}, idle_ms=0)
    assert told({A: UNKNOWN}, idle_ms=0).may_pass == frozenset()


def test_an_input_that_finished_holds_nobody_up_whatever_its_lag() -> None:
    observed = {A: Seen(empty=True, lag=None, finished=True), B: Seen(empty=True, lag=9, finished=True)}
    assert told(observed, idle_ms=50, flights=1050) == Judgement({}, frozenset({A, B}))


@pytest.mark.parametrize(
    ("seen", "idle_ms", "passes"),
    [
        (Seen(empty=False, lag=0), 0, True),
        (Seen(empty=False, lag=4), 0, False),
        (Seen(empty=False, lag=None), 0, False),
        (Seen(empty=False, lag=0), 1, False),
        (Seen(empty=False, lag=None), -1, True),
        (Seen(empty=False, lag=4, finished=True), 50, True),
    ],
    ids=["caught up", "behind", "unknown", "idle time first", "never waiting", "finished"],
)
def test_of_an_input_that_has_records_it_is_told_whether_it_may_run_out(seen: Seen, idle_ms: int, passes: bool) -> None:
    assert (A in told({A: seen}, idle_ms=idle_ms).may_pass) == passes


@given(st.sampled_from([0, 1, 50]), HISTORIES)
def test_nobody_is_given_up_on_before_it_was_caught_up_for_the_idle_time(
    idle_ms: int, history: list[tuple[int, Mapping[TopicPartition, Seen]]]
) -> None:
    """For every history; and it is given up on as soon as it was."""
    now_ms, deadlines = 0.0, dict[TopicPartition, float]()
    since: dict[TopicPartition, float] = {}
    for passed_ms, observed in history:
        now_ms += passed_ms
        waiting = {partition for partition, seen in observed.items() if seen == CAUGHT_UP}
        since = {partition: since.get(partition, now_ms) for partition in waiting}
        told_now = judge(deadlines, observed, max_task_idle_ms=idle_ms, now_ms=now_ms)
        deadlines = dict(told_now.deadlines)
        assert deadlines.keys() == waiting
        assert waiting & told_now.may_pass == {each for each in waiting if now_ms - since[each] >= idle_ms}
