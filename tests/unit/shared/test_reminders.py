"""When a lasting fault is logged again."""

from __future__ import annotations

from itertools import pairwise

from understudy_shared.reminders import MAX_GAP_MS, Reminder


def test_a_lasting_fault_is_logged_at_once_and_then_with_gaps_that_double_up_to_ten_minutes() -> None:
    reminder = Reminder()
    logged_s = [now_s for now_s in range(3 * 3600) if reminder.is_due(now_s * 1000)]
    assert logged_s[:8] == [0, 10, 30, 70, 150, 310, 630, 1230]
    gaps = [later - earlier for earlier, later in pairwise(logged_s)]
    assert set(gaps[6:]) == {MAX_GAP_MS // 1000}


def test_a_fault_that_was_gone_is_logged_at_once_again() -> None:
    reminder = Reminder()
    assert reminder.is_due(5)
    assert not reminder.is_due(6)
    reminder.reset()
    assert reminder.is_due(7)
    assert not reminder.is_due(10_006)
    assert reminder.is_due(10_007)
