"""Bounds for readers that give none: what the operator's file says, and what a reader's own words change of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy_shared.base.errors import SettingsError
from understudy_shared.reads.bound_parsing import StoreBounds, parse_bound, read_store_bounds
from understudy_shared.reads.bounds import NO_BOUND, Bound

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
