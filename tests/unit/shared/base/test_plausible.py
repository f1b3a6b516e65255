"""Which numbers are believed: no sequence of them uses up the range, and what a cluster does is never refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.plausible import (
    CEILING,
    FIRST_SIGHT,
    MAX_JUMP,
    Succession,
    highest_plausible,
    is_plausible,
    is_plausible_order,
    succession,
)

NUMBERS = st.one_of(st.integers(0, 100), st.integers(0, 2**64), st.sampled_from([2**47, 2**48, 2**53, 2**53 + 1]))
ORDERS = st.tuples(NUMBERS, NUMBERS)


@given(st.lists(NUMBERS, max_size=500))
def test_whatever_arrives_the_number_that_is_believed_leaves_room_for_as_many_steps_again(numbers: list[int]) -> None:
    known = 0
    for number in numbers:
        if number > known and is_plausible(number, known):
            known = number
    assert known <= FIRST_SIGHT + len(numbers) * MAX_JUMP < CEILING


@given(st.integers(0, FIRST_SIGHT), st.integers(1, MAX_JUMP))
def test_the_next_numbers_are_always_believed(known: int, step: int) -> None:
    assert is_plausible(known + 1, known)
    if known:
        assert is_plausible(known + step, known)
        assert not is_plausible(known + MAX_JUMP + 1, known)


@given(NUMBERS, st.integers(0, CEILING))
def test_what_lies_below_what_is_known_is_believed_and_nothing_above_the_ceiling(number: int, known: int) -> None:
    assert is_plausible(number, known) or number > known
    assert not is_plausible(number, known) or number <= CEILING


@given(st.lists(ORDERS), ORDERS)
def test_the_highest_order_is_one_that_was_reported_and_can_exist(
    orders: list[tuple[int, int]], known: tuple[int, int]
) -> None:
    found = highest_plausible(orders, known)
    assert found == (0, 0) or (found in orders and is_plausible_order(found, known))


@given(NUMBERS, NUMBERS)
def test_of_two_sequences_said_together_one_at_most_is_newer_unless_one_is_absurd(one: int, other: int) -> None:
    found = succession(one, other, later_ms=0, heartbeat_ms=1000)
    if found is Succession.NEWER and one > other:
        assert succession(other, one, later_ms=0, heartbeat_ms=1000) is Succession.OLDER
    if one == other and one <= CEILING:
        assert found is Succession.OLDER


@given(st.integers(0, FIRST_SIGHT), NUMBERS, st.integers(1, 1000))
def test_whatever_was_forged_in_its_name_the_process_itself_is_believed_again_two_heartbeats_later(
    own: int, forged: int, heartbeat_ms: int
) -> None:
    known, said_ms = own, 0.0
    if succession(forged, known, later_ms=heartbeat_ms, heartbeat_ms=heartbeat_ms) is Succession.NEWER:
        known, said_ms = forged, heartbeat_ms
    for beat in (1, 2, 3):
        later_ms = (beat + 1) * heartbeat_ms - said_ms
        if succession(own + beat, known, later_ms=later_ms, heartbeat_ms=heartbeat_ms) is Succession.NEWER:
            known, said_ms = own + beat, (beat + 1) * heartbeat_ms
    assert known == own + 3
