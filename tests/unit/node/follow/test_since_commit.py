"""How long ago a version was committed, without comparing clocks of two machines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_node.checkpoint.files import FileStat
from understudy_node.follow.end import COARSE_MS, End, since_commit_ms

MS = 1_000_000
END_NS = 5_000_000 * MS
FILE = FileStat(END_NS, 30, 1)
END = End(8, FILE, FILE, confirmed_ms=1_000.0, unseen_ms=900.0, moved_ms=990.0)
"""It was committed between 900 and 990 of this machine's clock."""


@pytest.mark.parametrize(
    ("wall_ms", "expected"),
    [
        pytest.param(40, 40, id="the file's time lies between the two polls"),
        pytest.param(9, 10, id="a clock that ticks says a little less than the time since it was found"),
        pytest.param(105, 100, id="a clock that ticks says a little more than the time since it was unseen"),
        pytest.param(-3_600_000, 10, id="the storage's clock is ahead: the time since it was found"),
        pytest.param(3_600_000, 10, id="the storage's clock is behind: the same"),
    ],
)
def test_the_files_time_counts_where_it_can_be_true(wall_ms: float, expected: float) -> None:
    wall_ns = END_NS + int(wall_ms * MS)
    assert since_commit_ms(END_NS, END, now_ms=1_000.0, wall_ns=wall_ns) == expected


def test_an_earlier_version_is_older_by_the_storages_clock() -> None:
    wall_ns = END_NS + 40 * MS
    assert since_commit_ms(END_NS - 2_000 * MS, END, now_ms=1_000.0, wall_ns=wall_ns) == 2_040
    assert since_commit_ms(END_NS + 7 * MS, END, now_ms=1_000.0, wall_ns=wall_ns) == 40, "stamped later: not younger"


@pytest.mark.parametrize(
    ("committed_ns", "end"),
    [
        (None, END),
        (END_NS, replace(END, last_commit=None)),
        (END_NS, replace(END, moved_ms=None)),
        (END_NS, replace(END, unseen_ms=None)),
    ],
)
def test_what_was_not_seen_to_come_has_no_age(committed_ns: int | None, end: End) -> None:
    assert since_commit_ms(committed_ns, end, now_ms=1_000.0, wall_ns=END_NS) is None


@given(
    true_ms=st.floats(901, 989),
    now_ms=st.floats(990, 5_000),
    skew_ms=st.sampled_from([0.0, 3.0, -3.0, 1e7, -1e7]),
)
def test_it_is_right_on_one_clock_and_never_below_the_time_since_it_was_found(
    true_ms: float, now_ms: float, skew_ms: float
) -> None:
    wall_ns = END_NS + int((now_ms - true_ms + skew_ms) * MS)
    found = since_commit_ms(END_NS, END, now_ms=now_ms, wall_ns=wall_ns)
    assert found is not None
    assert now_ms - 990.0 - 1e-3 <= found <= now_ms - 900.0 + 1e-3
    if abs(skew_ms) < COARSE_MS:
        assert abs(found - (now_ms - true_ms)) <= abs(skew_ms) + 1e-3
