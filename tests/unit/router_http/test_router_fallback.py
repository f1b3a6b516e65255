"""The pure core of forwarding: who is asked next, and what is said when nobody answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_router.asks import HopFailure
from understudy_router.candidates import Candidate
from understudy_router.choose import Choice, Exclusion, Reason
from understudy_router.fallback import (
    Step,
    Told,
    Walk,
    is_outdated,
    next_step,
    readers_mistake,
    told_by_failure,
    told_by_problem,
)
from understudy_router.lane import OVERLOADED
from understudy_router.wire import WireError
from understudy_shared.bounds import NO_BOUND, Bound, Refusal
from understudy_shared.position import Position
from understudy_shared.problems import Problem, ProblemType, refused
from understudy_shared.words import ApplicationId, HostInfo, Lineage

REASONS = [
    *WireError,
    OVERLOADED,
    *Refusal,
    *(kind.slug for kind in (ProblemType.NOT_OWNER, ProblemType.STORE_ERROR, ProblemType.NOT_INITIALISED)),
]
WITH_POSITION = Bound(min_position=Position(ApplicationId("flights"), Lineage("l1"), 9, None))


def candidate(number: int) -> Candidate:
    return Candidate(
        node_id=f"n{number}",
        endpoint=HostInfo("127.0.0.1", 7000 + number),
        role="active" if number == 0 else "standby",
        state="RUNNING",
        version=7,
        offset_lag=0,
        time_lag_ms=0,
        report_age_ms=10,
        is_live=True,
        is_heard=True,
    )


def choice(ordered: int, doubtful: int = 0, excluded: int = 0, reason: Reason = Reason.DEAD) -> Choice:
    everybody = [candidate(number) for number in range(ordered + doubtful + excluded)]
    return Choice(
        tuple(everybody[:ordered]),
        tuple(Exclusion(each, Reason.LAG_EXCEEDED) for each in everybody[ordered : ordered + doubtful]),
        tuple(Exclusion(each, reason) for each in everybody[ordered + doubtful :]),
    )


def walked(choice: Choice, *reasons: str) -> Walk:
    """A walk whose candidates failed so, in order."""
    walk = Walk(choice)
    for reason in reasons:
        asked = walk.next()
        assert asked is not None
        walk.failed(asked, Told(reason, "as it is"))
    return walk


@given(
    ordered=st.integers(0, 6),
    doubtful=st.integers(0, 6),
    excluded=st.integers(0, 3),
    reasons=st.lists(st.sampled_from(REASONS), min_size=12, max_size=12),
)
def test_each_candidate_is_asked_at_most_once_and_the_walk_ends_and_names_everybody(
    ordered: int, doubtful: int, excluded: int, reasons: list[str]
) -> None:
    chosen = choice(ordered, doubtful, excluded)
    walk = Walk(chosen)
    asked = []
    for reason in reasons:
        current = walk.next()
        if current is None:
            break
        asked.append(current.node_id)
        walk.failed(current, Told(reason, ""))
    assert walk.next() is None
    assert asked == [f"n{number}" for number in range(ordered + doubtful)]
    problem = walk.refused(NO_BOUND, late=False, after_ms=1)
    named = problem.extra["candidates"]
    assert isinstance(named, list)
    assert [each["node_id"] for each in named] == [f"n{number}" for number in range(ordered + doubtful + excluded)]
    assert all(each["reason"] for each in named)
    assert problem.status in {429, 503, 504}


@given(asked=st.integers(0, 3), rest=st.integers(0, 3))
def test_who_was_not_asked_before_the_deadline_is_named_as_not_asked(asked: int, rest: int) -> None:
    problem = walked(choice(asked + rest), *[WireError.TIMEOUT] * asked).refused(NO_BOUND, late=True, after_ms=3000)
    named = problem.extra["candidates"]
    assert isinstance(named, list)
    assert [each["reason"] for each in named] == ["timeout"] * asked + ["not-asked"] * rest
    assert problem.type is ProblemType.DEADLINE


@pytest.mark.parametrize("reason", REASONS)
def test_what_another_replica_may_do_better_goes_to_the_next_candidate(reason: str) -> None:
    expected = Step.STOP if reason == WireError.TOO_LARGE else Step.NEXT
    assert next_step(reason) is expected


@pytest.mark.parametrize("kind", [ProblemType.BAD_KEY, ProblemType.BAD_BOUND, ProblemType.TOO_LARGE])
def test_the_readers_own_mistake_is_returned_as_the_node_says_it(kind: ProblemType) -> None:
    told = told_by_problem(Problem(kind, "what", "where", "fix").body())
    assert next_step(told.reason) is Step.STOP
    assert readers_mistake(told) == Problem(kind, "what", "where", "fix")


@pytest.mark.parametrize("reason", list(Refusal))
def test_a_refusal_is_known_by_the_bound_that_it_could_not_keep(reason: Refusal) -> None:
    with_replica = refused(reason, candidates=[{"reason": str(reason), "version": 3}])
    told = told_by_problem(with_replica.body())
    assert (told.reason, told.replica["version"]) == (reason, 3)
    assert told_by_problem(refused(reason, candidates=[]).body()).reason == reason


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b"7", b"{}", b'{"type":"a"}', b'{"type":"a","detail":1}'])
def test_a_problem_that_is_none_is_told_as_such_and_nothing_breaks(body: bytes) -> None:
    told = told_by_problem(body)
    assert next_step(told.reason) is Step.NEXT
    assert told.replica == {}


@pytest.mark.parametrize(
    ("reason", "outdated"),
    [("not-owner", True), ("unknown-store", True), ("lineage-changed", True), ("not-active", True), ("reset", False)],
)
def test_refusals_that_show_an_old_view_ask_for_a_new_one(reason: str, outdated: bool) -> None:
    assert is_outdated(reason) is outdated


@pytest.mark.parametrize(
    ("bound", "reasons", "expected"),
    [
        (NO_BOUND, ["refused", "reset"], ProblemType.NO_ACCEPTABLE_REPLICA),
        (NO_BOUND, ["timeout", "deadline"], ProblemType.DEADLINE),
        (NO_BOUND, ["timeout", "refused"], ProblemType.NO_ACCEPTABLE_REPLICA),
        (NO_BOUND, ["overloaded", "overloaded"], ProblemType.OVERLOADED),
        (NO_BOUND, ["overloaded", "refused"], ProblemType.NO_ACCEPTABLE_REPLICA),
        (NO_BOUND, ["unknown-store", "unknown-store"], ProblemType.UNKNOWN_STORE),
        (NO_BOUND, ["lineage-changed", "refused"], ProblemType.NO_ACCEPTABLE_REPLICA),
        (WITH_POSITION, ["lineage-changed", "refused"], ProblemType.LINEAGE_CHANGED),
        (WITH_POSITION, ["below-min-position", "refused"], ProblemType.NO_ACCEPTABLE_REPLICA),
    ],
)
def test_what_is_said_when_nobody_answered(bound: Bound, reasons: list[str], expected: ProblemType) -> None:
    assert walked(choice(2), *reasons).refused(bound, late=False, after_ms=5).type is expected


def test_the_bound_that_nobody_kept_says_what_to_do() -> None:
    problem = walked(choice(2), "refused", "lag-exceeded").refused(Bound(max_lag=1), late=False, after_ms=5)
    assert (problem.refusal, problem.fix) == (
        Refusal.LAG_EXCEEDED,
        "Retry, or accept a larger max_lag or max_staleness_ms",
    )


def test_what_a_node_says_of_itself_counts_more_than_what_was_heard_of_it() -> None:
    replica = {"role": "standby", "version": 3, "offset_lag": 4, "time_lag_ms": 40, "reason": "lag-exceeded"}
    walk = Walk(choice(1))
    asked = walk.next()
    assert asked is not None
    walk.failed(asked, told_by_problem(refused(Refusal.LAG_EXCEEDED, candidates=[replica]).body()))
    named = walk.refused(NO_BOUND, late=False, after_ms=1).extra["candidates"]
    assert isinstance(named, list)
    assert named[0].items() >= {"node_id": "n0", "version": 3, "offset_lag": 4, "report_age_ms": 0}.items()


@pytest.mark.parametrize(
    ("walk", "may"),
    [
        (walked(choice(1), "below-min-position"), True),
        (walked(choice(0, excluded=1, reason=Reason.BELOW_MIN_POSITION)), True),
        (walked(choice(1, excluded=1), "lag-exceeded"), False),
        (walked(choice(0)), False),
    ],
)
def test_only_a_position_that_is_not_reached_yet_is_worth_waiting_for(walk: Walk, may: bool) -> None:
    assert walk.may_pass is may


def test_a_hop_that_failed_tells_its_reason() -> None:
    assert told_by_failure(HopFailure("refused", "nobody listens")) == Told("refused", "nobody listens")
