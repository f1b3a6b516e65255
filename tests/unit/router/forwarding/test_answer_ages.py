"""What is counted of answers is what they say of themselves, and no answer beyond its bound stays unseen."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.results import results_of

from understudy_node.replica.read_views import _tail
from understudy_node.replica.task_view import task_view
from understudy_router.forwarding.answer_ages import ServedReads, is_beyond
from understudy_shared.base.words import ApplicationId, LagInfo, Lineage, TaskId
from understudy_shared.http.problems import Problem, ProblemType, refused
from understudy_shared.questions.lookup.hop import FOUND, HopOutcome
from understudy_shared.reads.bounds import NO_BOUND, Bound, Refusal, UnknownLag
from understudy_shared.reads.tokens import Position
from understudy_shared.telemetry.metrics import OFFSET_LAG_BOUNDS, Histogram

TASK = TaskId(ApplicationId("a"), 0, 3)
LINEAGE = Lineage("l")
ORIGIN = b'{"host":"h","port":1,"role":"active","state":"RUNNING"}'

lags = st.builds(
    LagInfo,
    st.integers(1, 9),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(0, 12),
    st.none() | st.integers(0, 5_000),
)
bounds = st.just(NO_BOUND) | st.builds(
    Bound,
    max_lag=st.none() | st.integers(0, 12),
    max_staleness_ms=st.none() | st.integers(0, 5_000),
    min_position=st.none()
    | st.builds(Position, st.just(ApplicationId("a")), st.just(LINEAGE), st.integers(1, 9), st.none()),
    unknown_lag=st.none() | st.sampled_from(UnknownLag),
)


def answer(lag: LagInfo, value: bytes = b'"value":{"lag":{"offset_lag":99}},') -> HopOutcome:
    """An answer as a node makes it."""
    view = task_view(TASK, LINEAGE, version=lag.current_offset_position, stores={}, record=None, marks=frozenset())
    return HopOutcome(FOUND, b'"found":true,' + value, _tail(view, lag, ORIGIN))


@given(found=st.lists(st.tuples(lags, bounds), max_size=30))
def test_every_answer_is_counted_once_by_what_it_says(found: list[tuple[LagInfo, Bound]]) -> None:
    served, expected = ServedReads(), Histogram(OFFSET_LAG_BOUNDS)
    for lag, bound in found:
        served.answered(answer(lag), bound)
        if lag.offset_lag is not None:
            expected.observe(lag.offset_lag)
    assert served.offset_lag.counts == expected.counts
    assert served.staleness_ms.total == sum(lag.time_lag_ms is not None for lag, _ in found)
    assert served.staleness_ms.sum == sum(lag.time_lag_ms or 0 for lag, _ in found)
    assert served.unknown == sum(lag.offset_lag is None for lag, _ in found)
    assert (served.answers, served.unreadable) == (len(found), 0)
    assert served.violations == sum(is_beyond(lag, bound) for lag, bound in found)


@given(found=st.lists(lags, max_size=20), bound=bounds)
def test_a_batch_counts_as_its_keys_one_by_one(found: list[LagInfo], bound: Bound) -> None:
    outcomes = [answer(lag) for lag in found]
    together, single = ServedReads(), ServedReads()
    together.answered_many(results_of(outcomes), bound)
    for outcome in outcomes:
        single.answered(outcome, bound)
    assert together.offset_lag.counts == single.offset_lag.counts
    assert (together.answers, together.violations) == (single.answers, single.violations)


POSITION = Position(ApplicationId("a"), LINEAGE, 5, None)


@pytest.mark.parametrize(
    ("lag", "bound", "beyond"),
    [
        (LagInfo(4, 7, 3, 10), NO_BOUND, False),
        (LagInfo(4, 7, 3, 10), Bound(max_lag=3), False),
        (LagInfo(4, 7, 3, 10), Bound(max_lag=2), True),
        (LagInfo(4, 7, 3, 10), Bound(max_staleness_ms=9), True),
        (LagInfo(4, 7, 3, 10), Bound(min_position=POSITION), True),
        (LagInfo(5, 7, 2, 10), Bound(min_position=POSITION), False),
        (LagInfo(4, None, None, None), Bound(max_lag=9), True),
        (LagInfo(4, None, None, None), Bound(max_lag=9, unknown_lag=UnknownLag.SERVE), False),
        (LagInfo(4, None, None, None), NO_BOUND, False),
    ],
)
def test_an_answer_beyond_its_bound_is_a_violation(lag: LagInfo, bound: Bound, beyond: bool) -> None:
    served = ServedReads()
    served.answered(answer(lag), bound)
    served.answered(answer(lag), NO_BOUND)  # the same text under another bound
    served.answered(answer(lag), bound)
    assert served.violations == 2 * beyond


@pytest.mark.parametrize("tail", [b"x", b'"lag":{', b'"lag":{"offset_lag":1}', b'"lag":' + b"x" * 9999, b"}"])
def test_an_answer_that_does_not_say_its_lag_as_ours_do_is_counted_and_harms_nothing(tail: bytes) -> None:
    served = ServedReads()
    served.answered(HopOutcome(FOUND, b"{}", tail), Bound(max_lag=0))
    assert (served.answers, served.unreadable, served.violations, served.offset_lag.total) == (1, 1, 0, 0)
    assert served._texts == 0


def test_a_read_without_an_answer_is_refused_by_its_bound_or_an_error_or_the_readers_mistake() -> None:
    served, counts = ServedReads(), Counter[str]()
    for problem, kind in (
        (refused(Refusal.LAG_EXCEEDED, candidates=[]), "bound"),
        (refused(Refusal.LINEAGE_CHANGED, candidates=[]), "reader"),
        (Problem(ProblemType.NO_ACCEPTABLE_REPLICA, "dead"), "error"),
        (Problem(ProblemType.DEADLINE, "late"), "error"),
        (Problem(ProblemType.OVERLOADED, "full"), "error"),
        (Problem(ProblemType.INTERNAL, "bug"), "error"),
        (Problem(ProblemType.BAD_KEY, "no key"), "reader"),
        (Problem(ProblemType.UNKNOWN_STORE, "none"), "reader"),
    ):
        served.answered_many(results_of([problem]), NO_BOUND)
        counts[kind] += 1
    assert (served.refused_by_bound, served.errors, served.answers) == (counts["bound"], counts["error"], 0)


REFUSED = refused(Refusal.LAG_EXCEEDED, candidates=[])


@given(
    reads=st.lists(
        st.tuples(st.sampled_from(["one", "two", None]), lags | st.just(None), bounds, st.booleans()), max_size=30
    )
)
def test_what_each_store_got_is_what_all_got_together(
    reads: list[tuple[str | None, LagInfo | None, Bound, bool]],
) -> None:
    served, answers, refusals = ServedReads(), Counter[str | None](), Counter[str | None]()
    for store, lag, bound, is_single in reads:
        of = None if store is None else served.of(store)
        if lag is None:
            served.answered_many(results_of([REFUSED]), bound, of)
            refusals[store] += 1
            continue
        answers[store] += 1
        if is_single:
            served.answered(answer(lag), bound, of)
        else:
            served.answered_many(results_of([answer(lag)]), bound, of)
    assert (served.answers, served.refused_by_bound) == (answers.total(), refusals.total())
    for store, found in served.stores.items():
        assert (found.answers, found.refused_by_bound) == (answers[store], refusals[store])
        ages = [lag.time_lag_ms for at, lag, _, _ in reads if at == store and lag is not None]
        assert found.staleness_ms.total == sum(age is not None for age in ages)
    assert served.stores.keys() == {store for store, *_ in reads if store is not None}
