"""Replay protection: each number of a process counts once, and only within the window of time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.bus.replay import LATE_MS, MAX_SESSIONS, WIDTH, WINDOW_MS, ReplayGuard, Timeliness
from understudy_shared.bus.signing import Stamp

NOW_MS = 1_700_000_000_000


def stamp(number: int, *, session: str = "a", sent_ms: int = NOW_MS) -> Stamp:
    return Stamp("n1", session, number, sent_ms)


@given(st.lists(st.tuples(st.integers(1, 200), st.sampled_from("abc")), max_size=60))
def test_no_message_is_ever_taken_twice(heard: list[tuple[int, str]]) -> None:
    guard = ReplayGuard()
    fresh = [each for each in heard if guard.heard(stamp(each[0], session=each[1]), now_ms=NOW_MS) is Timeliness.FRESH]
    assert len(fresh) == len(set(fresh))


@given(st.lists(st.integers(1, WIDTH), unique=True, min_size=1))
def test_messages_that_overtake_each_other_are_all_taken(late: list[int]) -> None:
    guard = ReplayGuard()
    assert guard.heard(stamp(0), now_ms=NOW_MS) is Timeliness.FRESH
    for number in late:
        expected = Timeliness.FRESH if max(late) - number < WIDTH else Timeliness.REPLAYED
        assert guard.heard(stamp(number), now_ms=NOW_MS) is expected


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_process_that_is_new_here_is_believed_from_the_first_message_on_and_no_earlier_one(
    first: int, other: int
) -> None:
    guard = ReplayGuard()
    assert guard.heard(stamp(first), now_ms=NOW_MS) is Timeliness.FRESH
    expected = Timeliness.FRESH if other > first else Timeliness.REPLAYED
    assert guard.heard(stamp(other), now_ms=NOW_MS) is expected


@given(st.integers(-2 * WINDOW_MS, 2 * WINDOW_MS))
def test_the_window_of_time_has_both_ends(away_ms: int) -> None:
    found = ReplayGuard().heard(stamp(1, sent_ms=NOW_MS + away_ms), now_ms=NOW_MS)
    assert found is (Timeliness.FRESH if abs(away_ms) <= WINDOW_MS else Timeliness.OUTDATED)


def test_a_message_that_was_held_back_for_long_is_refused() -> None:
    guard = ReplayGuard()
    guard.heard(stamp(1), now_ms=NOW_MS)
    guard.heard(stamp(4), now_ms=NOW_MS)
    assert guard.heard(stamp(3, sent_ms=NOW_MS - LATE_MS), now_ms=NOW_MS) is Timeliness.FRESH
    assert guard.heard(stamp(2, sent_ms=NOW_MS - LATE_MS - 1), now_ms=NOW_MS) is Timeliness.REPLAYED


def test_what_was_read_from_a_key_may_be_heard_once_and_read_again() -> None:
    guard = ReplayGuard()
    for known in (5, 7):  # of a process that is new here, and of one that is known
        assert guard.read(stamp(known), now_ms=NOW_MS, kept_ms=0) is Timeliness.FRESH
        assert guard.heard(stamp(known), now_ms=NOW_MS) is Timeliness.FRESH
        assert guard.heard(stamp(known), now_ms=NOW_MS) is Timeliness.REPLAYED
        assert guard.read(stamp(known), now_ms=NOW_MS, kept_ms=0) is Timeliness.FRESH
    assert guard.heard(stamp(6), now_ms=NOW_MS) is Timeliness.FRESH, "it waited while the key was read"


def test_a_key_that_is_behind_is_overtaken_and_one_that_was_put_back_is_replayed() -> None:
    guard = ReplayGuard()
    guard.heard(stamp(100), now_ms=NOW_MS)
    assert guard.read(stamp(99), now_ms=NOW_MS, kept_ms=0) is Timeliness.OVERTAKEN
    assert guard.read(stamp(100 - WIDTH), now_ms=NOW_MS, kept_ms=0) is Timeliness.REPLAYED


def test_a_key_may_be_as_old_as_it_is_kept() -> None:
    kept_ms = 3 * 3_600_000
    oldest = NOW_MS - WINDOW_MS - kept_ms
    assert ReplayGuard().read(stamp(1, sent_ms=oldest), now_ms=NOW_MS, kept_ms=kept_ms) is Timeliness.FRESH
    for wrong in (oldest - 1, NOW_MS + WINDOW_MS + 1):
        found = ReplayGuard().read(stamp(1, sent_ms=wrong), now_ms=NOW_MS, kept_ms=kept_ms)
        assert found is Timeliness.OUTDATED


def test_what_is_forgotten_is_refused_by_its_time() -> None:
    guard = ReplayGuard()
    for number in range(WIDTH):
        guard.heard(stamp(1, session=f"old-{number}"), now_ms=NOW_MS)
    later_ms = NOW_MS + WINDOW_MS + 1
    guard.heard(stamp(1, session="new", sent_ms=later_ms), now_ms=later_ms)
    assert len(guard) == 1
    assert guard.heard(stamp(1, session="old-0"), now_ms=later_ms) is Timeliness.OUTDATED


def test_memory_is_bounded_and_the_longest_silent_process_leaves_first() -> None:
    guard = ReplayGuard()
    for number in range(MAX_SESSIONS + 3):
        guard.heard(stamp(1, session=str(number), sent_ms=NOW_MS + number), now_ms=NOW_MS)
    assert len(guard) == MAX_SESSIONS
    assert guard.heard(stamp(1, session="3", sent_ms=NOW_MS + 3), now_ms=NOW_MS) is Timeliness.REPLAYED
