"""The end is confirmed by evidence only: one table for probes, one for listings, and a property for each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_node.checkpoint.files import FileStat
from understudy_node.follow.end import End, Next, Probe, Verdict, next_poll_ms, observe, settle


def file(serial: int) -> FileStat:
    return FileStat(mtime_ns=serial, size=30, inode=serial)


QUERY, LAST, NEXT, OTHER = file(1), file(2), file(3), file(4)
NEW_END = End(0, None, QUERY)
END = End(5, LAST, QUERY, confirmed_ms=10.0, moved_ms=4.0)


@pytest.mark.parametrize(
    ("end", "probe", "expected"),
    [
        pytest.param(END, Probe(70, None, LAST, QUERY), Next.WAIT, id="next absent, last there, same checkpoint"),
        pytest.param(END, Probe(70, NEXT, LAST, QUERY), Next.READ, id="the next commit is there"),
        pytest.param(END, Probe(70, None, None, QUERY), Next.LIST, id="next absent, but last is gone too"),
        pytest.param(END, Probe(70, None, OTHER, QUERY), Next.LIST, id="last was committed anew"),
        pytest.param(END, Probe(70, None, LAST, OTHER), Next.LIST, id="metadata changed"),
        pytest.param(END, Probe(70, None, LAST, None), Next.LIST, id="metadata is gone"),
        pytest.param(END, Probe(70, NEXT, None, QUERY), Next.LIST, id="next is there, last is gone: of which history?"),
        pytest.param(END, Probe(70, NEXT, OTHER, QUERY), Next.LIST, id="next is there, last committed anew"),
        pytest.param(END, Probe(70, NEXT, LAST, OTHER), Next.LIST, id="next is there, metadata changed"),
        pytest.param(END, Probe(70, None, None, None), Next.LIST, id="nothing is there"),
        pytest.param(replace(END, last_commit=None), Probe(70, None, None, QUERY), Next.LIST, id="last was never seen"),
        pytest.param(NEW_END, Probe(70, None, None, QUERY), Next.WAIT, id="no commit yet"),
        pytest.param(NEW_END, Probe(70, NEXT, None, QUERY), Next.READ, id="the first commit"),
        pytest.param(NEW_END, Probe(70, None, None, OTHER), Next.LIST, id="no commit yet, metadata changed"),
        pytest.param(
            NEW_END,
            Probe(70, None, None, QUERY, commits_without_first=True),
            Next.LIST,
            id="the first commit came and was purged",
        ),
    ],
)
def test_what_a_probe_says(end: End, probe: Probe, expected: Next) -> None:
    seen, what = observe(end, probe)
    assert what is expected
    confirmed_ms = {Next.WAIT: 70, Next.READ: end.confirmed_ms, Next.LIST: None}[expected]
    assert seen == replace(end, confirmed_ms=confirmed_ms)


FILES = st.none() | st.sampled_from([QUERY, LAST, NEXT, OTHER])
ENDS = st.builds(
    lambda version, last, confirmed_ms: End(version, last if version else None, QUERY, confirmed_ms),
    st.integers(0, 3),
    FILES,
    st.none() | st.just(10.0),
)


@given(ENDS, st.builds(Probe, st.just(70.0), FILES, FILES, FILES, st.booleans()))
def test_an_end_is_confirmed_only_by_the_three_things_that_prove_it(end: End, probe: Probe) -> None:
    seen, what = observe(end, probe)
    if what is Next.WAIT:
        assert probe.next_commit is None
        assert probe.query_id == end.query_id
        assert probe.last_commit == end.last_commit
        assert end.version == 0 or probe.last_commit is not None
        assert seen.confirmed_ms == probe.started_ms
    else:
        assert seen.confirmed_ms in (None, end.confirmed_ms)
    if what is Next.LIST:
        assert seen.confirmed_ms is None


@pytest.mark.parametrize(
    ("same_query", "batch_ids", "last_commit", "expected"),
    [
        pytest.param(True, [2, 3, 4], LAST, Verdict.SAME, id="nothing happened"),
        pytest.param(True, [2, 3, 4], None, Verdict.SAME, id="last is listed but cannot be seen"),
        pytest.param(True, [3, 4, 5, 6], LAST, Verdict.AHEAD, id="the history went on"),
        pytest.param(True, [90, 91], None, Verdict.AHEAD, id="a long pause: last and next are purged"),
        pytest.param(True, [2, 3], None, Verdict.REWOUND, id="the newest commit is older"),
        pytest.param(True, [], None, Verdict.REWOUND, id="all commits are gone"),
        pytest.param(True, [2, 3, 4], OTHER, Verdict.REWOUND, id="same end, last committed anew"),
        pytest.param(True, [2, 3, 4, 5, 6], OTHER, Verdict.REWOUND, id="cut back and gone past it"),
        pytest.param(True, None, None, Verdict.GONE, id="no commit log"),
        pytest.param(False, [2, 3, 4], LAST, Verdict.RECREATED, id="another query"),
        pytest.param(False, [0], None, Verdict.RECREATED, id="another query, younger"),
        pytest.param(False, None, None, Verdict.RECREATED, id="another query without a commit log yet"),
        pytest.param(None, [2, 3, 4], LAST, Verdict.GONE, id="no metadata"),
        pytest.param(None, None, None, Verdict.GONE, id="nothing at all"),
    ],
)
def test_what_a_listing_says(
    same_query: bool | None, batch_ids: list[int] | None, last_commit: FileStat | None, expected: Verdict
) -> None:
    assert settle(END, same_query=same_query, batch_ids=batch_ids, last_commit=last_commit) is expected


@pytest.mark.parametrize(
    ("batch_ids", "expected"),
    [(None, Verdict.SAME), ([], Verdict.SAME), ([0], Verdict.AHEAD), ([90, 91], Verdict.AHEAD)],
)
def test_before_the_first_commit_an_absent_commit_log_is_no_loss(
    batch_ids: list[int] | None, expected: Verdict
) -> None:
    assert settle(NEW_END, same_query=True, batch_ids=batch_ids, last_commit=None) is expected


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
