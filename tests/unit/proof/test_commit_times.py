"""What a watcher's looks allow to say about an answer's age, in numbers."""

from __future__ import annotations

import pytest
from tests.system.proof.commit_times import CommitTimes
from tests.system.proof.history import Commit

TIMES = CommitTimes(
    [
        Commit(1, seen_ms=1_010, not_before_ms=1_000, mtime_us=501_005_000),
        Commit(2, seen_ms=2_010, not_before_ms=2_000, mtime_us=502_005_000),
        Commit(3, seen_ms=3_010, not_before_ms=3_000, mtime_us=503_005_000),
    ],
    watched_until_ms=9_000,
)


def test_a_version_is_uncommitted_for_sure_until_the_last_look_that_missed_it() -> None:
    assert [TIMES.surely_uncommitted(2, at_ms) for at_ms in (2_000, 2_001, 2_011)] == [True, False, False]


def test_a_version_that_was_never_seen_is_uncommitted_for_as_long_as_somebody_looked() -> None:
    assert [TIMES.surely_uncommitted(4, at_ms) for at_ms in (9_000, 9_001)] == [True, False]
    assert not CommitTimes([], None).surely_uncommitted(1, 0)


@pytest.mark.parametrize(
    ("version", "offset_lag", "at_ms", "least_ms"),
    [
        (3, 0, 9_000, None),  # nothing is missing
        (2, 0, 3_010, None),  # version 3 may not have been there yet
        (2, 0, 3_510, 499),  # the node has not seen version 3, which was there for 500 ms
        (2, 1, 3_510, 499),
        (1, 2, 3_510, 1_499),  # 1,000 ms between the commits that it misses, and 500 ms since the newer one
        (1, 0, 3_510, 1_499),
        (0, 3, 3_510, 2_499),
    ],
)
def test_the_least_time_lag_is_the_age_of_the_first_missing_commit(
    version: int, offset_lag: int, at_ms: float, least_ms: float | None
) -> None:
    assert TIMES.least_time_lag_ms(version, offset_lag, at_ms) == least_ms


def test_lag_is_owned_up_to_as_of_the_time_that_the_answer_admits() -> None:
    assert [TIMES.lag_owned_up_to(1, 3_100, time_lag_ms) for time_lag_ms in (0, 89, 90, 1_100)] == [2, 2, 1, 0]
