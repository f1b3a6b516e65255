"""One replica in the grid: its kind, its letters and shapes, its words; and which replicas a filter shows."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.page.overviews import cell

from understudy_shared.page.replicas import cell_view

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
