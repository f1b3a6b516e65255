"""Several nodes may answer for one key: a read keeps the first answer. Its results are in the order of its keys."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from understudy_router.forwarding.fallback import Result, Results
from understudy_shared.http.problems import Problem, ProblemType
from understudy_shared.questions.lookup.hop import ABSENT, FOUND, HopOutcome, HopOutcomes

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
