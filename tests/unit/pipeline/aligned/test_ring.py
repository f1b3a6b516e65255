"""How a batch is shared out over tasks. Numbers are those of docs/kips.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_aligned.batch_plan import UNBOUNDED, share

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


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (100, [[34, 33, 33], [33, 34, 33], [33, 33, 34], [34, 33, 33]]),
        (2, [[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 0]]),
        (1, [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]),
        (3, [[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]]),
    ],
)
def test_the_records_that_do_not_divide_rotate(budget: int, expected: list[list[int]]) -> None:
    backlog = {0: 30_000, 1: 300, 2: 300}
    assert [list(allowed.values()) for allowed in batches([backlog] * 4, budget=budget)] == expected
