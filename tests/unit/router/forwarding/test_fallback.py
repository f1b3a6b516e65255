"""The pure core of forwarding: which candidate is asked next, and how a read ends when none answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.crowds import BOUNDS, crowds

from understudy_router.cluster.candidates import Candidate
from understudy_router.forwarding.fallback import (
    Rejection,
    ReplicaPlan,
    Result,
    Results,
    Step,
    is_outdated,
    next_step,
    readers_mistake,
    rejection_by_problem,
)
from understudy_router.routing.choose import Choice, Exclusion, Reason, choose
from understudy_router.transport.client_context import OVERLOADED
from understudy_router.transport.node_requests import Delay
from understudy_shared.base.words import ApplicationId, HostInfo, Lineage
from understudy_shared.cluster.wire import WireError
from understudy_shared.http.problems import Problem, ProblemType, refused
from understudy_shared.questions.lookup.hop import ABSENT, FOUND, HopOutcome, HopOutcomes
from understudy_shared.reads.bounds import NO_BOUND, Bound, Refusal
from understudy_shared.reads.tokens import Position

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


def step(plan: ReplicaPlan, attempt: int) -> Candidate | None:
    """Begin an attempt at the next candidate, if there is one."""
    candidate = plan.next()
    if candidate is not None:
        plan.begin(attempt, candidate)
    return candidate


def plan_after(choice: Choice, *reasons: str) -> ReplicaPlan:
    """A plan whose attempts failed for these reasons, in order."""
    plan = ReplicaPlan(choice)
    for attempt, reason in enumerate(reasons):
        assert step(plan, attempt) is not None
        plan.ended(attempt, Rejection(reason, "as it is"))
    return plan


class Purse:
    """A budget for so many paid steps. It remembers the steps that it allowed."""

    def __init__(self, units: int) -> None:
        self.units = units
        self.steps: list[Step] = []

    def __call__(self, step: Step) -> bool:
        if step in {Step.HEDGE, Step.RETRY}:
            if self.units == 0:
                return False
            self.units -= 1
        self.steps.append(step)
        return True


@given(
    ordered=st.integers(0, 6),
    doubtful=st.integers(0, 6),
    excluded=st.integers(0, 3),
    reasons=st.lists(st.sampled_from(REASONS), min_size=12, max_size=12),
)
def test_each_candidate_is_asked_at_most_once_and_the_plan_ends_and_names_everybody(
    ordered: int, doubtful: int, excluded: int, reasons: list[str]
) -> None:
    chosen = choice(ordered, doubtful, excluded)
    plan = ReplicaPlan(chosen)
    asked = []
    for attempt, reason in enumerate(reasons):
        current = step(plan, attempt)
        if current is None:
            break
        asked.append(current.node_id)
        plan.ended(attempt, Rejection(reason, ""))
    assert plan.next() is None
    assert asked == [f"n{number}" for number in range(ordered + doubtful)]
    problem = plan.refused(NO_BOUND, late=False, after_ms=1)
    named = problem.extra["candidates"]
    assert isinstance(named, list)
    assert [each["node_id"] for each in named] == [f"n{number}" for number in range(ordered + doubtful + excluded)]
    assert all(each["reason"] for each in named)
    assert problem.status in {410, 429, 503, 504}


@pytest.mark.parametrize("reason", [*REASONS, "deadline", "slow", "silent"])
def test_what_is_definite_is_free_and_what_may_be_overload_is_not(reason: str) -> None:
    costs = {
        "too-large": Step.STOP,
        "timeout": Step.RETRY,
        "deadline": Step.RETRY,
        "overloaded": Step.RETRY,
        "slow": Step.HEDGE,
        "silent": Step.RESCUE,
        "version-opening": Step.WAIT,
    }
    assert next_step(reason) is costs.get(reason, Step.FREE)


@given(
    ordered=st.integers(0, 4),
    doubtful=st.integers(0, 3),
    units=st.integers(0, 4),
    events=st.lists(st.tuples(st.integers(0, 6), st.sampled_from([*REASONS, *Delay])), max_size=30),
)
def test_in_any_race_nobody_is_asked_twice_hedges_stay_in_the_bound_and_all_but_one_rescue_is_paid_for(
    ordered: int, doubtful: int, units: int, events: list[tuple[int, str]]
) -> None:
    plan, purse = ReplicaPlan(choice(ordered, doubtful)), Purse(units)
    asked: list[str] = []
    delays: dict[int, str | None] = {}

    def request(candidate: Candidate | None) -> None:
        if candidate is not None:
            plan.begin(len(asked), candidate)
            delays[len(asked)] = None
            asked.append(candidate.node_id)

    request(plan.next())
    for pick, reason in events:
        if not delays:
            break
        attempt = sorted(delays)[pick % len(delays)]
        if reason in set(Delay):
            plan.waits(attempt, Delay(reason))
            delays[attempt] = reason
        else:
            plan.ended(attempt, Rejection(reason, ""))
            del delays[attempt]
        before = len(asked)
        someone_is_merely_slow = any(delay != "silent" for delay in delays.values())
        request(plan.after(reason, purse))
        if len(asked) > before:
            assert not someone_is_merely_slow or before < ordered
            assert list(delays.values())[:-1].count(None) == 0
        assert plan.is_hopeful is (None in delays.values())
        assert plan.is_over is (not delays)
    assert asked == [f"n{number}" for number in range(len(asked))]
    assert purse.steps.count(Step.RESCUE) <= 1
    assert purse.steps.count(Step.RETRY) + purse.steps.count(Step.HEDGE) + purse.units == units
    assert len(asked) == len(purse.steps) + min(1, ordered + doubtful)


def test_an_attempt_begun_since_is_waited_for_before_another_node_is_asked() -> None:
    plan, purse = ReplicaPlan(choice(3)), Purse(9)
    step(plan, 0)
    plan.waits(0, Delay.SLOW)
    hedge = plan.after("slow", purse)
    assert hedge == candidate(1)
    plan.begin(1, candidate(1))
    plan.ended(0, Rejection("reset", ""))
    assert plan.after("reset", purse) is None
    plan.ended(1, Rejection("refused", ""))
    assert plan.after("refused", purse) == candidate(2)
    assert purse.steps == [Step.HEDGE, Step.FREE]


def test_a_rescue_may_leave_the_bound_by_the_tables_but_a_hedge_may_not() -> None:
    for delay, expected in ((Delay.SLOW, None), (Delay.SILENT, candidate(1))):
        plan = ReplicaPlan(choice(1, doubtful=1))
        step(plan, 0)
        plan.waits(0, delay)
        assert plan.after(delay, Purse(9)) == expected
        assert plan.rest == [candidate(1)]


def test_after_a_silence_the_plan_goes_on_with_the_candidate_that_is_first_now() -> None:
    first, purse = ReplicaPlan(choice(3)), Purse(0)
    step(first, 0)
    first.waits(0, Delay.SILENT)
    now = choice(3)
    first.reorder(now._replace(order=(now.order[2], now.order[0], now.order[1])))
    assert first.after("silent", purse) == candidate(2)
    assert purse.steps == [Step.RESCUE]


def test_a_replica_that_took_over_meanwhile_is_asked_after_all_others_failed_and_no_replica_twice() -> None:
    plan, purse, newer = ReplicaPlan(choice(2)), Purse(0), choice(3)
    step(plan, 0)
    plan.ended(0, Rejection("refused", ""))
    plan.renew(newer)
    assert plan.rest == [candidate(1)], "the candidates of the first choice come first"
    plan.begin(1, candidate(1))
    plan.ended(1, Rejection("reset", ""))
    plan.renew(newer)
    assert plan.after("reset", purse) == candidate(2)
    plan.begin(2, candidate(2))
    plan.ended(2, Rejection("refused", ""))
    plan.renew(newer)
    assert plan.after("refused", purse) is None


def test_a_new_plan_of_the_same_read_keeps_attempts_in_flight_and_is_not_rescued_for_free_again() -> None:
    first, purse = ReplicaPlan(choice(3)), Purse(0)
    step(first, 0)
    first.waits(0, Delay.SILENT)
    assert first.after("silent", purse) == candidate(1)
    first.begin(1, candidate(1))
    first.ended(1, Rejection("below-min-position", ""))
    plan = first.again(choice(3))
    assert (plan.next(), plan.is_over) == (candidate(1), False)
    plan.begin(2, candidate(1))
    plan.waits(2, Delay.SILENT)
    assert plan.after("silent", purse) is None
    plan.ended(0, Rejection("reset", ""))
    assert plan.after("reset", purse) == candidate(2)


@pytest.mark.parametrize("kind", [ProblemType.BAD_KEY, ProblemType.BAD_BOUND, ProblemType.TOO_LARGE])
def test_the_readers_own_mistake_is_returned_as_the_node_says_it(kind: ProblemType) -> None:
    rejection = rejection_by_problem(Problem(kind, "what", "where", "fix").body())
    assert next_step(rejection.reason) is Step.STOP
    assert readers_mistake(rejection) == Problem(kind, "what", "where", "fix")


@pytest.mark.parametrize("reason", list(Refusal))
def test_a_refusal_is_known_by_the_bound_that_it_could_not_keep(reason: Refusal) -> None:
    with_replica = refused(reason, candidates=[{"reason": str(reason), "version": 3}])
    rejection = rejection_by_problem(with_replica.body())
    assert (rejection.reason, rejection.replica["version"]) == (reason, 3)
    assert rejection_by_problem(refused(reason, candidates=[]).body()).reason == reason


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
        (NO_BOUND, ["version-gone", "version-gone"], ProblemType.VERSION_GONE),
        (NO_BOUND, ["version-gone", "refused"], ProblemType.NO_ACCEPTABLE_REPLICA),
    ],
)
def test_what_is_said_when_nobody_answered(bound: Bound, reasons: list[str], expected: ProblemType) -> None:
    assert plan_after(choice(2), *reasons).refused(bound, late=False, after_ms=5).type is expected


def test_what_a_node_says_of_itself_counts_more_than_what_was_heard_of_it() -> None:
    replica = {"role": "standby", "version": 3, "offset_lag": 4, "time_lag_ms": 40, "reason": "lag-exceeded"}
    plan = ReplicaPlan(choice(1))
    step(plan, 0)
    plan.ended(0, rejection_by_problem(refused(Refusal.LAG_EXCEEDED, candidates=[replica]).body()))
    named = plan.refused(NO_BOUND, late=False, after_ms=1).extra["candidates"]
    assert isinstance(named, list)
    assert named[0].items() >= {"node_id": "n0", "version": 3, "offset_lag": 4, "report_age_ms": 0}.items()


@pytest.mark.parametrize(
    ("plan", "may"),
    [
        (plan_after(choice(1), "below-min-position"), True),
        (plan_after(choice(0, excluded=1, reason=Reason.BELOW_MIN_POSITION)), True),
        (plan_after(choice(1, excluded=1), "lag-exceeded"), False),
        (plan_after(choice(0)), False),
    ],
)
def test_only_a_position_that_is_not_reached_yet_is_worth_waiting_for(plan: ReplicaPlan, may: bool) -> None:
    assert plan.may_pass is may


KEYS = 6
BAD_KEY = Problem(ProblemType.BAD_KEY, "no key")
NOBODY = Problem(ProblemType.NO_ACCEPTABLE_REPLICA, "nobody")

outcomes = st.builds(HopOutcome, st.sampled_from([FOUND, ABSENT]), st.binary(max_size=2), st.binary(max_size=2))
all_keys = st.just(range(KEYS))
some_keys = st.lists(st.integers(0, KEYS - 1), unique=True)


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[str, Sequence[int], list[HopOutcome]]:
    """What came, by which way, of which keys."""
    way = draw(st.sampled_from(["all", "one", "refuse"]))
    indexes = draw(all_keys | some_keys) if way == "all" else draw(some_keys)
    return way, indexes, draw(st.lists(outcomes, min_size=len(indexes), max_size=len(indexes)))


@given(st.sets(st.integers(0, KEYS - 1)), st.lists(arrivals(), max_size=6))
def test_the_first_result_of_each_key_counts(
    bad: set[int], came: list[tuple[str, Sequence[int], list[HopOutcome]]]
) -> None:
    results = Results(KEYS, dict.fromkeys(bad, BAD_KEY))
    first: dict[int, Result] = dict.fromkeys(bad, BAD_KEY)
    for way, indexes, found in came:
        assert results.is_untouched == (not first)
        if way == "all":
            results.keep_all(indexes, HopOutcomes.of(found))
        elif way == "refuse":
            results.refuse(indexes, NOBODY)
        else:
            for index, outcome in zip(indexes, found, strict=True):
                results.keep(index, outcome)
        for index, outcome in zip(indexes, found, strict=True):
            first.setdefault(index, NOBODY if way == "refuse" else outcome)
        assert results.is_open == (len(first) < KEYS)
        assert {index: results[index] for index in first} == first


def test_outcomes_of_all_keys_in_another_order_are_put_in_their_places() -> None:
    results = Results(2, {})
    results.keep_all([1, 0], HopOutcomes.of([HopOutcome(FOUND, b"second"), HopOutcome(ABSENT, b"first")]))
    assert [results[0], results[1]] == [HopOutcome(ABSENT, b"first"), HopOutcome(FOUND, b"second")]


EVERY_REASON = st.sampled_from(["refused", "timeout", "not-owner", "overloaded", "lag-exceeded", "store-error"])


def reasons_in(body: bytes) -> Mapping[str, Any]:
    return {each["node_id"]: each["reason"] for each in orjson.loads(body)["candidates"]}


@given(crowds(), BOUNDS, st.lists(EVERY_REASON, min_size=6, max_size=6), st.integers(0, 6))
def test_a_refusal_names_every_candidate_once_with_its_reason(
    crowd: list[Candidate], bound: Bound, reasons: list[str], asked: int
) -> None:
    """`asked` is how many candidates are asked before the deadline."""
    choice = choose(crowd, bound, key_hash=1, load={})
    plan, expected = ReplicaPlan(choice), {}
    for reason in reasons[:asked]:
        candidate = plan.next()
        if candidate is None:
            break
        plan.begin(candidate.node_id, candidate)
        plan.ended(candidate.node_id, Rejection(reason, "as the test wants it"))
        expected[candidate.node_id] = reason
    for candidate in choice.asked[len(expected) :]:
        expected[candidate.node_id] = "not-asked"
    expected |= {each.candidate.node_id: str(each.reason) for each in choice.exclusions}
    body = plan.refused(bound, late=len(choice.asked) > asked, after_ms=10).body()
    assert reasons_in(body) == expected
    assert len(orjson.loads(body)["candidates"]) == len(crowd)
