"""Whether a query still commits, judged by the moves of the end alone."""

from __future__ import annotations

from understudy_node.checkpoint.files import FileStat
from understudy_node.follow.end import End
from understudy_node.follow.poll_loop import IDLE_AFTER_MS, Cadence
from understudy_shared.bus.messages import QueryProgress

FILE = FileStat(1, 1, 1)


def end(moved_ms: float | None) -> End:
    return End(5, FILE, FILE, confirmed_ms=0.0, moved_ms=moved_ms)


def test_nothing_is_said_of_a_query_before_one_of_its_commits_was_seen() -> None:
    cadence = Cadence()
    cadence.saw(end(None), now_ms=1_000)
    assert cadence.state(1_001, confirmed=True) == "waiting"
    assert cadence.since_commit_ms(1_001) is None
    assert cadence.quiet_ms(1_500) == 500


def test_a_query_is_idle_after_a_minute_without_a_commit_and_this_is_reported_once() -> None:
    cadence = Cadence()
    cadence.saw(end(1_000), now_ms=1_000)
    assert cadence.state(1_000 + IDLE_AFTER_MS, confirmed=True) == "committing"
    later_ms = 1_001 + IDLE_AFTER_MS
    assert cadence.turned_idle(later_ms)
    assert cadence.state(later_ms, confirmed=True) == "idle"
    assert not cadence.turned_idle(later_ms + 1)


def test_a_batch_is_as_old_as_its_first_sight_until_it_is_committed_or_another_begins() -> None:
    cadence = Cadence()
    assert cadence.progress(0) == QueryProgress()
    cadence.saw_batch(5, has_begun=True, now_ms=1_000)
    cadence.saw_batch(5, has_begun=True, now_ms=4_000)
    assert cadence.progress(6_000).batch_ms == 5_000
    cadence.saw_batch(6, has_begun=True, now_ms=7_000)
    assert cadence.progress(7_500).batch_ms == 500
    cadence.saw_batch(7, has_begun=False, now_ms=8_000)
    assert cadence.progress(8_000).batch_ms is None
