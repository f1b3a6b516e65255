"""Bounds of readers, and defaults of them by store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.base.words import ApplicationId, LagInfo, Lineage, Role
from understudy_shared.reads.bound_parsing import StoreBounds, parse_bound, read_store_bounds
from understudy_shared.reads.bounds import NO_BOUND, Bound, ReadVersion, Refusal, UnknownLag, refusal
from understudy_shared.reads.tokens import PageCursor, Position

SEEN_AT_US = 1_000_000
SEEN = Position(ApplicationId("a"), Lineage("life-1"), 10, SEEN_AT_US)
TIMELESS = Position(ApplicationId("a"), Lineage("life-1"), 10, None)


def lag(offset_lag: int | None, time_lag_ms: int | None = None, *, version: int = 10) -> LagInfo:
    return LagInfo(version, None if offset_lag is None else version + offset_lag, offset_lag, time_lag_ms)


def verdict(
    bound: Bound, lag_info: LagInfo, *, role: Role = Role.STANDBY, committed_at_us: int | None = SEEN_AT_US
) -> Refusal | None:
    version = lag_info.current_offset_position
    return refusal(bound, lag=lag_info, role=role, version=version, position_committed_at_us=committed_at_us)


UNKNOWN = lag(None)
TIMELESS_LAG = lag(2)
"""Behind by a known number of versions, of which the first one's commit time was purged."""
SERVE, REFUSE = UnknownLag.SERVE, UnknownLag.REFUSE


@pytest.mark.parametrize(
    ("bound", "lag_info", "expected"),
    [
        pytest.param(NO_BOUND, lag(0, 0), None, id="no bound, at the end"),
        pytest.param(NO_BOUND, UNKNOWN, None, id="no bound, unknown"),
        pytest.param(Bound(max_lag=2), lag(2, 9), None, id="max_lag is inclusive"),
        pytest.param(Bound(max_lag=2), lag(3, 9), Refusal.LAG_EXCEEDED, id="max_lag exceeded by one"),
        pytest.param(Bound(max_lag=0), UNKNOWN, Refusal.LAG_UNKNOWN, id="unknown is not 0"),
        pytest.param(Bound(max_lag=2), TIMELESS_LAG, None, id="max_lag needs no time lag"),
        pytest.param(Bound(max_staleness_ms=50), lag(3, 50), None, id="max_staleness_ms is inclusive"),
        pytest.param(Bound(max_staleness_ms=50), lag(0, 51), Refusal.LAG_EXCEEDED, id="staleness exceeded at the end"),
        pytest.param(Bound(max_staleness_ms=50), UNKNOWN, Refusal.LAG_UNKNOWN, id="staleness, unknown"),
        pytest.param(Bound(max_staleness_ms=50), TIMELESS_LAG, Refusal.LAG_UNKNOWN, id="staleness, time unknown"),
        pytest.param(Bound(unknown_lag=REFUSE), UNKNOWN, Refusal.LAG_UNKNOWN, id="refuse unknown without a bound"),
        pytest.param(Bound(unknown_lag=REFUSE), TIMELESS_LAG, None, id="refuse unknown, lag known, time not asked for"),
        pytest.param(Bound(max_lag=0, unknown_lag=SERVE), UNKNOWN, None, id="serve unknown under max_lag"),
        pytest.param(Bound(max_staleness_ms=0, unknown_lag=SERVE), TIMELESS_LAG, None, id="serve unknown time"),
        pytest.param(
            Bound(max_lag=0, unknown_lag=SERVE), lag(1), Refusal.LAG_EXCEEDED, id="serve excuses nothing known"
        ),
        pytest.param(Bound(min_position=SEEN), UNKNOWN, None, id="unknown lag does not block a position"),
        pytest.param(Bound(min_position=SEEN), lag(5, version=9), Refusal.BELOW_MIN_POSITION, id="one version below"),
        pytest.param(
            Bound(min_position=SEEN, max_lag=0), lag(9, version=9), Refusal.BELOW_MIN_POSITION, id="position first"
        ),
    ],
)
def test_which_replica_may_answer(bound: Bound, lag_info: LagInfo, expected: Refusal | None) -> None:
    assert verdict(bound, lag_info) is expected


@pytest.mark.parametrize(
    ("position", "version", "committed_at_us", "expected"),
    [
        pytest.param(SEEN, 10, SEEN_AT_US, None, id="the very version"),
        pytest.param(SEEN, 10, SEEN_AT_US + 1, Refusal.LINEAGE_CHANGED, id="the same number, committed later: rewound"),
        pytest.param(SEEN, 10, SEEN_AT_US - 1, Refusal.LINEAGE_CHANGED, id="the same number, committed earlier"),
        pytest.param(SEEN, 10, None, None, id="the replica's commit file is purged"),
        pytest.param(TIMELESS, 10, SEEN_AT_US, None, id="the token's commit file was purged"),
        pytest.param(SEEN, 11, SEEN_AT_US, None, id="a later version"),
        pytest.param(SEEN, 11, SEEN_AT_US + 1, Refusal.LINEAGE_CHANGED, id="a later version of a rewound history"),
        pytest.param(SEEN, 9, SEEN_AT_US, Refusal.BELOW_MIN_POSITION, id="an earlier version"),
        pytest.param(SEEN, 9, SEEN_AT_US + 1, Refusal.LINEAGE_CHANGED, id="an earlier one: waiting would not help"),
        pytest.param(SEEN, 0, None, Refusal.BELOW_MIN_POSITION, id="no version yet"),
    ],
)
def test_a_position_is_never_undercut(
    position: Position, version: int, committed_at_us: int | None, expected: Refusal | None
) -> None:
    bound = Bound(min_position=position)
    assert verdict(bound, lag(0, 0, version=version), committed_at_us=committed_at_us) is expected


@pytest.mark.parametrize("lag_info", [lag(0, 0), UNKNOWN], ids=["at the end", "unknown"])
def test_only_the_active_answers_when_the_active_is_required(lag_info: LagInfo) -> None:
    bound = Bound(require_active=True)
    assert verdict(bound, lag_info, role=Role.STANDBY) is Refusal.NOT_ACTIVE
    assert verdict(bound, lag_info, role=Role.ACTIVE) is None


NUMBERS = st.integers(0, 12)
LAGS = st.builds(
    lambda offset_lag, time_lag_ms: lag(offset_lag, None if offset_lag is None else time_lag_ms),
    st.none() | NUMBERS,
    st.none() | NUMBERS,
)
BOUNDS = st.builds(
    Bound,
    max_lag=st.none() | NUMBERS,
    max_staleness_ms=st.none() | NUMBERS,
    min_position=st.none() | st.sampled_from([SEEN, TIMELESS]),
    require_active=st.booleans(),
    unknown_lag=st.none() | st.sampled_from(UnknownLag),
)


@given(BOUNDS, LAGS, st.sampled_from(Role), NUMBERS)
def test_a_replica_that_is_refused_is_refused_under_every_tighter_bound(
    bound: Bound, lag_info: LagInfo, role: Role, smaller: int
) -> None:
    assume(verdict(bound, lag_info, role=role) is not None)
    for tighter in (
        replace(bound, max_lag=_least(bound.max_lag, smaller)),
        replace(bound, max_staleness_ms=_least(bound.max_staleness_ms, smaller)),
    ):
        assert verdict(tighter, lag_info, role=role) is not None


def _least(limit: int | None, other: int) -> int:
    return other if limit is None else min(limit, other)


@given(BOUNDS, LAGS, st.sampled_from(Role))
def test_a_replica_that_may_answer_is_inside_every_bound_or_its_unknown_lag_was_accepted(
    bound: Bound, lag_info: LagInfo, role: Role
) -> None:
    assume(verdict(bound, lag_info, role=role) is None)
    for measured, limit in ((lag_info.offset_lag, bound.max_lag), (lag_info.time_lag_ms, bound.max_staleness_ms)):
        if limit is not None:
            assert measured is not None or bound.unknown_lag is UnknownLag.SERVE
            assert measured is None or measured <= limit
    assert role is Role.ACTIVE or not bound.require_active


def test_query_and_json_say_the_same() -> None:
    sent = {"max_lag": 3, "max_staleness_ms": 250, "require_active": True, "unknown_lag": "serve", "wait_ms": 40}
    bound = Bound(max_lag=3, max_staleness_ms=250, require_active=True, unknown_lag=SERVE, wait_ms=40)
    for parameters in (sent, {name: str(value).lower() for name, value in sent.items()}):
        found = parse_bound({**parameters, "min_position": SEEN.encode()})
        assert found == replace(bound, min_position=SEEN)


@pytest.mark.parametrize(
    ("bound", "lag_info", "known_end", "expected"),
    [
        pytest.param(Bound(max_lag=2), UNKNOWN, 13, Refusal.LAG_EXCEEDED, id="unknown, but at least three behind"),
        pytest.param(Bound(max_lag=2), UNKNOWN, 12, Refusal.LAG_UNKNOWN, id="unknown, at least two behind"),
        pytest.param(Bound(max_lag=2, unknown_lag=SERVE), UNKNOWN, 13, Refusal.LAG_EXCEEDED, id="serve excuses no gap"),
        pytest.param(Bound(max_lag=2, unknown_lag=SERVE), UNKNOWN, 12, None, id="serve unknown inside the gap"),
        pytest.param(Bound(max_lag=2), lag(0, 0), 13, Refusal.LAG_EXCEEDED, id="at an end that is not the newest"),
        pytest.param(Bound(max_lag=3), lag(0, 0), 13, None, id="the gap is inclusive"),
        pytest.param(Bound(max_lag=0), lag(0, 0), 9, None, id="somebody heard less"),
        pytest.param(Bound(max_staleness_ms=5), lag(0, 5), 99, None, id="time lag is the replica's own measure"),
        pytest.param(NO_BOUND, UNKNOWN, 99, None, id="no bound"),
    ],
)
def test_the_newest_end_that_anybody_heard_of_counts(
    bound: Bound, lag_info: LagInfo, known_end: int, expected: Refusal | None
) -> None:
    found = refusal(
        bound,
        lag=lag_info,
        role=Role.STANDBY,
        version=lag_info.current_offset_position,
        position_committed_at_us=None,
        known_end=known_end,
    )
    assert found is expected


POSITION = Position(ApplicationId("flights"), Lineage("l1"), 7, 5).encode()


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({"version": "7"}, ReadVersion(7, of_any_commit=True)),
        ({"version": 7}, ReadVersion(7, of_any_commit=True)),
        ({"snapshot": POSITION}, ReadVersion(7, 5)),
        ({}, None),
    ],
)
def test_a_reader_names_one_version(parameters: dict[str, object], wanted: ReadVersion | None) -> None:
    assert parse_bound(parameters).read_version == wanted


@pytest.mark.parametrize(
    ("parameters", "where"),
    [
        ({"version": "7", "at": "1500"}, "at"),
        ({"version": "7", "snapshot": POSITION}, "snapshot"),
        ({"version": "7", "max_lag": "1"}, "max_lag"),
        ({"at": "0", "unknown_lag": "serve"}, "unknown_lag"),
        ({"snapshot": POSITION, "min_position": POSITION}, "min_position"),
        ({"version": "few"}, "version"),
        ({"at": "yesterday"}, "at"),
        ({"at": "2026-11-25T12:00:00"}, "at"),
        ({"at": "9" * 18}, "at"),
        ({"snapshot": "us1."}, "snapshot"),
    ],
)
def test_what_names_no_version_or_two_is_refused_by_its_name(parameters: dict[str, object], where: str) -> None:
    with pytest.raises(UnderstudyError) as refused:
        parse_bound(parameters)
    assert refused.value.where == where
    assert refused.value.fix


FILE = """
["*"]
max_lag = 10

[aircraft]
max_staleness_ms = 2000
unknown_lag = "serve"
"""


def read(tmp_path: Path, text: str) -> StoreBounds:
    file = tmp_path / "bounds.toml"
    file.write_text(text)
    return read_store_bounds(file)


def test_a_reader_without_parameters_gets_what_holds_for_its_store_and_for_every_store(tmp_path: Path) -> None:
    bounds = read(tmp_path, FILE)
    assert bounds.bound("airports", {}) == Bound(max_lag=10)
    assert bounds.bound("aircraft", {}) == parse_bound(
        {"max_lag": 10, "max_staleness_ms": 2000, "unknown_lag": "serve"}
    )


def test_each_parameter_of_a_reader_counts_instead_of_the_files(tmp_path: Path) -> None:
    bounds = read(tmp_path, FILE)
    assert bounds.bound("airports", {"max_lag": "3"}) == Bound(max_lag=3)
    assert bounds.bound("airports", {"require_active": "true"}) == Bound(max_lag=10, require_active=True)


def test_what_a_file_says_of_lag_is_not_meant_for_a_version_that_was_named_also_by_a_cursor(tmp_path: Path) -> None:
    cursor = PageCursor("aircraft", "life-1", "digest", 7, 1_000, 20).encode()
    for named in ({"version": "7"}, {"cursor": cursor}):
        found = read(tmp_path, FILE).bound("aircraft", named)
        assert (found.max_lag, found.max_staleness_ms, found.unknown_lag) == (None, None, NO_BOUND.unknown_lag)


@pytest.mark.parametrize("nothing", ["none", None])
def test_a_reader_takes_a_bound_back_with_none(tmp_path: Path, nothing: object) -> None:
    assert read(tmp_path, FILE).bound("airports", {"max_lag": nothing}) == NO_BOUND


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_lag = ", "not TOML"),
        ("max_lag = 3", "'max_lag' is not a table"),
        ("[a]\nmax_lags = 3", "unknown bound 'max_lags'"),
        ("[a]\nmax_lag = -1", "max_lag=-1 is not a whole number"),
        ('[a]\nmin_position = "us1.x"', "min_position is a reader's own"),
        ("[a]\nlimit = 0", "limit=0 is not a whole number"),
        ("[a]\ninclude_expired = 7", "include_expired=7 is not a boolean"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as refused:
        read(tmp_path, text)
    assert "bounds.toml" in refused.value.where
