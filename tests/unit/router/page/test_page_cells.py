"""One replica in the grid: its kind, its letters and shapes, its words; and which replicas a filter shows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.page.overviews import cell, row

from understudy_router.page.cells import STATES, cell_text, cell_view, kind_of, wanted_replicas, wanted_rows
from understudy_router.page.page_query import KINDS

WELL, ATTENTION, HURT, MOVING, UNKNOWN, OFF = "well", "attention", "hurt", "moving", "unknown", "off"


@pytest.mark.parametrize(
    ("shown", "text", "state", "words"),
    [
        (cell(), "A 0", WELL, "active, running, 0 batches behind, < 2 s, reported < 2 s ago"),
        (cell("S", lag=1), "S 1", WELL, "standby, running, 1 batch behind"),
        (cell("S", lag=1234), "S 1,234 ▲", ATTENTION, "running, lagging, 1,234 batches behind"),
        (cell(lag=None, lag_ms=None), "A ?", UNKNOWN, "running, lag unknown, ? batches behind, ?"),
        (cell("W", state="RESTORING", percent=62.9), "R 62 %", MOVING, "warm-up, restoring, 62 % done"),
        (cell("W", state="RESTORING", lag=None), "R ?", MOVING, "warm-up, restoring, ? batches behind"),
        (cell(state="CREATED", lag=None), "A …", MOVING, "active, opening, reported"),
        (cell(state="CLOSED", lag=None), "A ∅", OFF, "active, closed"),
        (cell(state="DEAD", lag=None, age_ms=None), "✕ A", HURT, "aircraft 0 on node-1: active, dead"),
        (cell(state=None, lag=None, age_ms=None), "A ?", UNKNOWN, "not heard of"),
        (cell(error="damaged"), "A 0 !", ATTENTION, "running, with an error: damaged"),
    ],
    ids=["running", "one-behind", "lagging", "unknown", "restoring", "restoring-unknown", "opening", "closed", "dead",
         "unheard", "error"],
)  # fmt: skip
def test_a_replica_has_a_letter_or_shape_a_colour_and_words(
    shown: dict[str, Any], text: str, state: str, words: str
) -> None:
    view = cell_view("aircraft", 0, "node-1", shown)
    assert (view.text, view.state) == (text, state)
    assert words in view.name
    assert view.name.startswith(view.text), "what is seen is part of what is said (WCAG 2.5.3)"


CELLS = st.fixed_dictionaries(
    {
        "role": st.sampled_from("ASW"),
        "state": st.sampled_from([None, "RUNNING", "RESTORING", "CREATED", "CLOSED", "DEAD"]),
        "lag": st.none() | st.integers(0, 10**9),
        "lag_ms": st.none() | st.integers(0, 10**9),
        "age_ms": st.none() | st.integers(0, 10**9),
        "percent": st.none() | st.floats(0, 100),
        "error": st.none() | st.text(max_size=5),
    }
)


@given(CELLS)
def test_no_replica_of_unknown_lag_shows_a_number_of_batches(shown: dict[str, Any]) -> None:
    kind = kind_of(shown)
    if shown["lag"] is None and kind != "restoring":
        assert not any(character.isdigit() for character in cell_text(shown, kind))
    assert kind == "running" or kind in KINDS
    assert kind in STATES


@given(CELLS)
def test_states_of_different_colours_differ_without_colour(shown: dict[str, Any]) -> None:
    view = cell_view("s", 0, "n", shown)
    plain = view.text.removeprefix(shown["role"]).strip().replace(",", "")
    assert (view.state == WELL) is plain.isdigit()


def test_a_filter_shows_what_it_names_and_unwell_is_all_but_running() -> None:
    rows = [
        row("aircraft", 0, {"node-1": cell(), "node-2": cell("S", lag=9)}),
        row("aircraft", 1, {"node-1": cell(), "node-2": cell("S")}),
        row("routes", 0, {"node-1": cell(state="DEAD")}),
    ]
    assert wanted_rows(rows, store="", state="") == rows
    assert wanted_rows(rows, store="aircraft", state="") == rows[:2]
    assert wanted_rows(rows, store="", state="unwell") == [rows[0], rows[2]]
    assert wanted_rows(rows, store="aircraft", state="dead") == []
    assert [each.id for each in wanted_replicas(rows, store="", state="unwell")] == [
        "aircraft/0/node-2",
        "routes/0/node-1",
    ]
    assert len(list(wanted_replicas(rows, store="aircraft", state=""))) == 4
