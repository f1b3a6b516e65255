"""Bounds for readers that give none: what the operator's file says, and what a reader's own words change of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.errors import SettingsError
from understudy_shared.reads.bound_parsing import parse_bound
from understudy_shared.reads.bounds import NO_BOUND, Bound
from understudy_shared.reads.store_bounds import StoreBounds, read_store_bounds

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


@pytest.mark.parametrize("nothing", ["none", None])
def test_a_reader_takes_a_bound_back_with_none(tmp_path: Path, nothing: object) -> None:
    assert read(tmp_path, FILE).bound("airports", {"max_lag": nothing}) == NO_BOUND


def test_a_reader_without_parameters_where_nothing_holds_has_the_one_empty_bound() -> None:
    assert StoreBounds().bound("airports", {}) is NO_BOUND
    assert read_store_bounds(None).bound("airports", {}) is NO_BOUND


def test_readers_without_parameters_share_one_bound(tmp_path: Path) -> None:
    bounds = read(tmp_path, FILE)
    assert bounds.bound("airports", {}) is bounds.bound("airports", {})


_LAGS = st.none() | st.integers(0, 99)


@given(_LAGS, _LAGS, _LAGS)
def test_the_nearest_word_counts(every: int | None, store: int | None, reader: int | None) -> None:
    limits = {"*": every, "s": store}
    bounds = StoreBounds({name: {"max_lag": lag} for name, lag in limits.items() if lag is not None})
    expected = next((lag for lag in (reader, store, every) if lag is not None), None)
    assert bounds.bound("s", {} if reader is None else {"max_lag": reader}).max_lag == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_lag = ", "not TOML"),
        ("max_lag = 3", "'max_lag' is not a table"),
        ("[a]\nmax_lags = 3", "unknown bound 'max_lags'"),
        ("[a]\nmax_lag = -1", "max_lag=-1 is not a whole number"),
        ('[a]\nmin_position = "us1.x"', "min_position is a reader's own"),
        ('[a]\ncursor = "uc1.x"', "cursor is a reader's own"),
        ("[a]\nlimit = 0", "limit=0 is not a whole number"),
        ("[a]\ninclude_expired = 7", "include_expired=7 is not a boolean"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as refused:
        read(tmp_path, text)
    assert "bounds.toml" in refused.value.where


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        read_store_bounds(tmp_path / "none.toml")


def test_a_table_of_a_store_that_is_not_there_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read(tmp_path, FILE).warn_of_unknown(["airports"])
    assert "aircraft" in caplog.text
    caplog.clear()
    read(tmp_path, FILE).warn_of_unknown(["aircraft"])
    assert caplog.text == ""
