"""The end is confirmed by evidence only, and lag is never smaller than it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_node.checkpoint.files import FileStat
from understudy_node.follow.end import (
    COARSE_MS,
    End,
    Next,
    Probe,
    Verdict,
    advance,
    against_known_end,
    holds_until_ms,
    lag_of,
    next_poll_ms,
    observe,
    settle,
    since_commit_ms,
)
from understudy_shared.base.words import LagInfo


def file(serial: int) -> FileStat:
    return FileStat(mtime_ns=serial, size=30, inode=serial)


QUERY, LAST, NEXT, OTHER = file(1), file(2), file(3), file(4)
NEW_END = End(0, None, QUERY)
END = End(5, LAST, QUERY, confirmed_ms=10.0, moved_ms=4.0)


FILES = st.none() | st.sampled_from([QUERY, LAST, NEXT, OTHER])
ENDS = st.builds(
    lambda version, last, confirmed_ms: End(version, last if version else None, QUERY, confirmed_ms),
    st.integers(0, 3),
    FILES,
    st.none() | st.just(10.0),
)


@given(ENDS, st.builds(Probe, st.just(70.0), FILES, FILES, FILES, st.booleans()))
def test_an_end_is_confirmed_only_by_the_three_things_that_prove_it(end: End, probe: Probe) -> None:
    """`commits/0` may have come and gone before the first commit was seen: a listing without it proves nothing."""
    confirmed_ms: float | None
    is_same = (probe.query_id, probe.last_commit) == (end.query_id, end.last_commit)
    if not is_same or (probe.commits_without_first if end.version == 0 else probe.last_commit is None):
        what, confirmed_ms = Next.LIST, None
    elif probe.next_commit is not None:
        what, confirmed_ms = Next.READ, end.confirmed_ms
    else:
        what, confirmed_ms = Next.WAIT, probe.started_ms
    assert observe(end, probe) == (replace(end, confirmed_ms=confirmed_ms), what)


@pytest.mark.parametrize(
    ("end", "same_query", "batch_ids", "last_commit", "expected"),
    [
        pytest.param(END, True, [2, 3, 4], LAST, Verdict.SAME, id="nothing happened"),
        pytest.param(END, True, [2, 3, 4], None, Verdict.SAME, id="last is listed but cannot be seen"),
        pytest.param(END, True, [3, 4, 5, 6], LAST, Verdict.AHEAD, id="the history went on"),
        pytest.param(END, True, [90, 91], None, Verdict.AHEAD, id="a long pause: last and next are purged"),
        pytest.param(END, True, [2, 3], None, Verdict.REWOUND, id="the newest commit is older"),
        pytest.param(END, True, [], None, Verdict.REWOUND, id="all commits are gone"),
        pytest.param(END, True, [2, 3, 4], OTHER, Verdict.REWOUND, id="same end, last committed anew"),
        pytest.param(END, True, [2, 3, 4, 5, 6], OTHER, Verdict.REWOUND, id="cut back and gone past it"),
        pytest.param(END, True, None, None, Verdict.GONE, id="no commit log"),
        pytest.param(END, False, [2, 3, 4], LAST, Verdict.RECREATED, id="another query"),
        pytest.param(END, None, [2, 3, 4], LAST, Verdict.GONE, id="no metadata"),
        pytest.param(NEW_END, True, None, None, Verdict.SAME, id="no commit log before the first commit"),
        pytest.param(NEW_END, True, [], None, Verdict.SAME, id="no commit yet"),
        pytest.param(NEW_END, True, [0], None, Verdict.AHEAD, id="the first commit"),
        pytest.param(NEW_END, True, [90, 91], None, Verdict.AHEAD, id="the first commits are purged"),
    ],
)
def test_what_a_listing_says(
    end: End, same_query: bool | None, batch_ids: list[int] | None, last_commit: FileStat | None, expected: Verdict
) -> None:
    assert settle(end, same_query=same_query, batch_ids=batch_ids, last_commit=last_commit) is expected


@pytest.mark.parametrize(
    ("quiet_ms", "expected"),
    [(0, 5), (500, 5), (501, 5.01), (2_000, 20), (99_999, 999.99), (100_000, 1000), (10**9, 1000)],
)
def test_polls_are_a_hundredth_of_the_time_since_a_commit_between_floor_and_refresh(
    quiet_ms: float, expected: float
) -> None:
    assert next_poll_ms(quiet_ms=quiet_ms, lag_refresh_ms=1000, floor_ms=5) == pytest.approx(expected)


@given(st.floats(0, 1e12), st.integers(1, 5000), st.integers(1, 5000))
def test_no_poll_comes_later_than_the_refresh_interval(quiet_ms: float, lag_refresh_ms: int, floor_ms: int) -> None:
    wait_ms = next_poll_ms(quiet_ms=quiet_ms, lag_refresh_ms=lag_refresh_ms, floor_ms=floor_ms)
    assert min(floor_ms, lag_refresh_ms) <= wait_ms <= lag_refresh_ms


FILE = FileStat(1, 30, 1)
EXPIRY_MS = 3_000.0
MS = 1_000_000
COMMITTED_NS: Mapping[int, int] = {4: 1_000 * MS, 5: 2_500 * MS, 6: 2_200 * MS, 7: 6_000 * MS, 8: 6_000 * MS + 400_000}
"""Versions 1 to 3 are purged; version 6 was stamped before version 5 (storage clocks are set back now and then)."""


UNSEEN_MS = 80.0


def end_at(version: int, confirmed_ms: float | None = 100.0, unseen_ms: float | None = UNSEEN_MS) -> End:
    return End(version, FILE, FILE, confirmed_ms=confirmed_ms, unseen_ms=unseen_ms)


def lag_at(version: int, end: End, *, now_ms: float = 100.0, committed_ns: Mapping[int, int] = COMMITTED_NS) -> LagInfo:
    """Only the commit file says when the end was committed."""
    newest_ns = committed_ns.get(end.version)
    seen = replace(end, last_commit=None if newest_ns is None else FileStat(newest_ns, 30, 1))
    earlier_ns = {at: ns for at, ns in committed_ns.items() if at != end.version}
    return lag_of(version, seen, earlier_ns.get, now_ms=now_ms, expiry_ms=EXPIRY_MS)


UNKNOWN = (None, None, None)


@pytest.mark.parametrize(
    ("version", "end", "now_ms", "expected"),
    [
        pytest.param(8, end_at(8), 100, (8, 0, 0), id="at the end, just confirmed"),
        pytest.param(8, end_at(8), 340, (8, 0, 240), id="at the end, confirmed 240 ms ago"),
        pytest.param(8, end_at(8), 3_100, (8, 0, 3_000), id="at the end, the confirmation is about to expire"),
        pytest.param(8, end_at(8), 3_100.5, UNKNOWN, id="at the end, the confirmation has expired"),
        pytest.param(8, end_at(8, None), 100, UNKNOWN, id="at an end in doubt"),
        pytest.param(6, end_at(7), 100, (7, 1, 20), id="one behind: c(7) - c(7), and 20 ms since the end was unseen"),
        pytest.param(6, end_at(7), 350, (7, 1, 270), id="one behind, and 270 ms"),
        pytest.param(4, end_at(7), 100, (7, 3, 3_520), id="three behind: c(7) - c(5)"),
        pytest.param(3, end_at(7), 110, (7, 4, 5_030), id="four behind: c(7) - c(4)"),
        pytest.param(
            4, end_at(6), 107, (6, 2, 27), id="c(6) - c(5) is negative: not below the time since it was unseen"
        ),
        pytest.param(6, end_at(8), 100, (8, 2, 21), id="c(8) - c(7) is 0.4 ms: never rounded down"),
        pytest.param(6, end_at(7, 100, None), 100, (7, 1, None), id="no poll saw an earlier end: time unknown"),
        pytest.param(2, end_at(7), 100, (7, 5, None), id="c(3) is purged: time unknown, versions known"),
        pytest.param(0, end_at(7), 100, (7, 7, None), id="nothing restored, c(1) is purged"),
        pytest.param(7, end_at(9), 100, (9, 2, None), id="c(end) is purged"),
        pytest.param(0, end_at(0), 150, (0, 0, 50), id="no commit yet"),
        pytest.param(9, end_at(8), 100, UNKNOWN, id="above the end: of another history"),
        pytest.param(4, end_at(7, None), 100, UNKNOWN, id="behind an end in doubt"),
        pytest.param(4, end_at(7), 9_999, UNKNOWN, id="behind an expired confirmation"),
        pytest.param(8, end_at(8, 120.0), 100, (8, 0, 0), id="confirmed after `now` was taken"),
    ],
)
def test_lag_is_as_defined(
    version: int, end: End, now_ms: float, expected: tuple[int | None, int | None, int | None]
) -> None:
    assert lag_at(version, end, now_ms=now_ms) == LagInfo(version, *expected)


GAPS = st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 3_000)), min_size=1, max_size=12)
"""For each version: the time from the close of its commit's temporary file before to that of its own, and the time that
the rename takes."""


@given(GAPS, st.integers(1, 2_000), st.integers(0, 11))
def test_a_slow_rename_that_keeps_a_file_s_time_never_makes_lag_smaller(
    gaps: list[tuple[int, int]], poll_every_ms: int, behind: int
) -> None:
    """HDFS dates a commit by the close of its temporary file; readers see it when it is renamed."""
    closed_ms, visible_ms = 10_000, 10_000
    closed, visible = {}, {}
    for version, (gap_ms, rename_ms) in enumerate(gaps, start=1):
        closed_ms = visible_ms + gap_ms  # Spark begins the next batch after the rename
        visible_ms = closed_ms + rename_ms
        closed[version], visible[version] = closed_ms, visible_ms
    end, now_ms = End(0, None, FILE, confirmed_ms=0.0), 0
    while end.version < len(gaps):
        now_ms += poll_every_ms
        while visible.get(end.version + 1, math.inf) <= now_ms:
            end = advance(end, FileStat(closed[end.version + 1] * MS, 30, 1), now_ms=now_ms)
        end = replace(end, confirmed_ms=float(now_ms))
        version = max(0, end.version - 1 - behind)
        if version < end.version:
            stamps = {each: at_ms * MS for each, at_ms in closed.items()}
            lag = lag_of(version, end, stamps.get, now_ms=now_ms, expiry_ms=math.inf)
            assert lag.time_lag_ms is not None
            assert lag.time_lag_ms >= now_ms - visible[version + 1]


VERSIONS = st.integers(0, 9)
NEWEST_ENDS = st.builds(end_at, VERSIONS, st.none() | st.floats(0, 1e5), st.none() | st.floats(0, 1e5))
HISTORIES = st.dictionaries(VERSIONS, st.integers(0, 10**13))
NOW = st.floats(0, 1e5)


@given(VERSIONS, NEWEST_ENDS, HISTORIES, NOW)
def test_unknown_lag_is_never_a_number_and_known_lag_never_negative(
    version: int, end: End, committed_ns: dict[int, int], now_ms: float
) -> None:
    lag = lag_at(version, end, now_ms=now_ms, committed_ns=committed_ns)
    assert lag.current_offset_position == version
    if end.confirmed_ms is None or now_ms - end.confirmed_ms > EXPIRY_MS or version > end.version:
        assert (lag.end_offset_position, lag.offset_lag, lag.time_lag_ms) == UNKNOWN
        return
    assert (lag.end_offset_position, lag.offset_lag) == (end.version, end.version - version)
    is_time_known = version == end.version or (
        {version + 1, end.version} <= committed_ns.keys() and end.unseen_ms is not None
    )
    assert (lag.time_lag_ms is not None) == is_time_known
    assert lag.time_lag_ms is None or lag.time_lag_ms >= 0


@given(VERSIONS, NEWEST_ENDS, HISTORIES, NOW, st.floats(0, 1e4))
def test_time_lag_grows_with_time_until_it_is_unknown_and_stays_so(
    version: int, end: End, committed_ns: dict[int, int], now_ms: float, later_ms: float
) -> None:
    now = lag_at(version, end, now_ms=now_ms, committed_ns=committed_ns)
    later = lag_at(version, end, now_ms=now_ms + later_ms, committed_ns=committed_ns)
    if now.time_lag_ms is None:
        assert later.time_lag_ms is None
    elif later.time_lag_ms is not None:
        assert later.time_lag_ms >= now.time_lag_ms
    else:
        assert later.offset_lag is None


@given(VERSIONS, NEWEST_ENDS, HISTORIES, NOW, st.floats(0, 1))
def test_a_lag_is_exactly_the_same_for_as_long_as_it_is_said_to_hold(
    version: int, end: End, committed_ns: dict[int, int], now_ms: float, share: float
) -> None:
    now = lag_at(version, end, now_ms=now_ms, committed_ns=committed_ns)
    until_ms = holds_until_ms(now, end, expiry_ms=EXPIRY_MS)
    later_ms = now_ms + share * max(0.0, until_ms - now_ms) * (1 - 1e-9)
    if later_ms <= until_ms:
        assert lag_at(version, end, now_ms=later_ms, committed_ns=committed_ns) == now


def test_only_a_replica_at_a_confirmed_end_keeps_its_lag_for_a_moment() -> None:
    lag = lag_at(8, end_at(8), now_ms=100.25)
    assert (lag.time_lag_ms, holds_until_ms(lag, end_at(8), expiry_ms=EXPIRY_MS)) == (1, 101.0)
    for version, end in ((7, end_at(8)), (8, end_at(8, None))):
        assert holds_until_ms(lag_at(version, end), end, expiry_ms=EXPIRY_MS) == -math.inf


@given(VERSIONS, st.integers(0, 9), st.lists(st.integers(0, 10**13), min_size=11, max_size=11), NOW)
def test_a_replica_further_behind_never_has_less_time_lag(
    version: int, end_version: int, steps_ns: list[int], now_ms: float
) -> None:
    """As long as the storage's clock is not set back."""
    committed_ns = {index: sum(steps_ns[: index + 1]) for index in range(11)}
    end = end_at(end_version, now_ms, now_ms)
    nearer, further = (
        lag_at(at, end, now_ms=now_ms, committed_ns=committed_ns).time_lag_ms for at in (version, max(0, version - 1))
    )
    assert nearer is None or (further is not None and further >= nearer)


@given(st.lists(st.floats(1, 1e4), min_size=2, max_size=8), st.data())
def test_time_lag_is_never_less_than_the_time_since_the_first_version_that_is_missed(
    gaps_ms: list[float], data: st.DataObject
) -> None:
    """Against the truth: commits at known times, and polls as the poller makes them."""
    commits_ms = [sum(gaps_ms[: index + 1]) for index in range(len(gaps_ms))]
    polls_ms = sorted(data.draw(st.lists(st.floats(0, commits_ms[-1] + 1e4), min_size=1, max_size=12)))
    end = End(0, None, FILE)
    for poll_ms in polls_ms:
        while end.version < len(commits_ms) and commits_ms[end.version] < poll_ms:
            end = advance(end, FILE, now_ms=poll_ms)
        end = replace(end, confirmed_ms=poll_ms)
    now_ms = polls_ms[-1] + data.draw(st.floats(0, 500))
    version = data.draw(st.integers(0, end.version))
    committed_ns = {index + 1: round(at_ms * MS) for index, at_ms in enumerate(commits_ms)}
    time_lag_ms = lag_at(version, end, now_ms=now_ms, committed_ns=committed_ns).time_lag_ms
    if version < len(commits_ms) and time_lag_ms is not None:
        assert time_lag_ms >= now_ms - commits_ms[version] - 0.01


@given(VERSIONS, NEWEST_ENDS, HISTORIES, NOW, st.integers(0, 20))
def test_a_newer_end_that_somebody_else_saw_only_adds_versions(
    version: int, end: End, committed_ns: dict[int, int], now_ms: float, known_end: int
) -> None:
    own = lag_at(version, end, now_ms=now_ms, committed_ns=committed_ns)
    lag = against_known_end(own, known_end)
    if own.offset_lag is None:
        assert lag == own, "unknown lag stays unknown"
    else:
        newest = max(end.version, known_end)
        assert lag == LagInfo(version, newest, newest - version, own.time_lag_ms)


END_NS = 5_000_000 * MS
END_FILE = FileStat(END_NS, 30, 1)
NEWEST = End(8, END_FILE, END_FILE, confirmed_ms=1_000.0, unseen_ms=900.0, moved_ms=990.0)
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
    assert since_commit_ms(END_NS, NEWEST, now_ms=1_000.0, wall_ns=wall_ns) == expected


def test_an_earlier_version_is_older_by_the_storages_clock() -> None:
    wall_ns = END_NS + 40 * MS
    assert since_commit_ms(END_NS - 2_000 * MS, NEWEST, now_ms=1_000.0, wall_ns=wall_ns) == 2_040
    assert since_commit_ms(END_NS + 7 * MS, NEWEST, now_ms=1_000.0, wall_ns=wall_ns) == 40, "stamped later: not younger"


@pytest.mark.parametrize(
    ("committed_ns", "end"),
    [
        (None, NEWEST),
        (END_NS, replace(NEWEST, last_commit=None)),
        (END_NS, replace(NEWEST, moved_ms=None)),
        (END_NS, replace(NEWEST, unseen_ms=None)),
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
    found = since_commit_ms(END_NS, NEWEST, now_ms=now_ms, wall_ns=wall_ns)
    assert found is not None
    assert now_ms - 990.0 - 1e-3 <= found <= now_ms - 900.0 + 1e-3
    if abs(skew_ms) < COARSE_MS:
        assert abs(found - (now_ms - true_ms)) <= abs(skew_ms) + 1e-3
