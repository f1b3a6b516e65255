"""Nobody needs colours to read the page: texts and shapes say every state, and the colours differ for every sight."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.page.colours import SIGHTS, contrast, distance, linear, palette, seen
from tests.support.page.overviews import cell

import understudy_shared.page
from understudy_shared.page.cells import cell_text, kind_of

CSS = (Path(understudy_shared.page.__file__).parent / "static" / "page.css").read_text()
THEMES = ("light", "dark")

APART = 0.06
"""Least distance between two states: three times what can just be seen."""

READABLE = 4.5
"""The contrast that WCAG asks of text (AA)."""

INK = {"well": "ink", "attention": "attention", "hurt": "hurt", "moving": "moving"}
"""The colour of a state's text. Unknown is grey, and off is quiet: their shapes say them, and the hatching."""

GROUND = {"attention": "attention-paper", "hurt": "hurt-paper", "moving": "moving-paper", "unknown": "unknown-paper"}

every_sight = pytest.mark.parametrize("sight", SIGHTS)
every_theme = pytest.mark.parametrize("theme", THEMES)


@every_theme
@every_sight
def test_the_colours_of_two_states_are_apart_for_every_sight(theme: str, sight: str) -> None:
    colours = palette(CSS, theme)
    found = {state: seen(linear(colours[name]), sight) for state, name in INK.items()}
    close = {
        f"{one} and {other}": round(distance(found[one], found[other]), 3)
        for one, other in combinations(found, 2)
        if distance(found[one], found[other]) < APART
    }
    assert close == {}


@every_theme
@every_sight
def test_the_text_of_every_state_is_readable_on_its_ground_for_every_sight(theme: str, sight: str) -> None:
    colours = {name: seen(linear(colour), sight) for name, colour in palette(CSS, theme).items()}
    grounds = dict.fromkeys(INK, (colours["paper"], colours["hover"])) | {
        state: (colours["paper"], colours["hover"], colours[ground]) for state, ground in GROUND.items()
    }
    inks = {**INK, "unknown": "unknown", "off": "quiet"}
    worst = {
        state: min(contrast(colours[inks[state]], ground) for ground in grounds.get(state, (colours["paper"],)))
        for state in inks
    }
    assert {state: round(ratio, 2) for state, ratio in worst.items() if ratio < READABLE} == {}


CELLS = st.builds(
    cell,
    st.sampled_from("ASW"),
    state=st.sampled_from(["RUNNING", "RESTORING", "CREATED", "CLOSED", "DEAD", None]),
    lag=st.none() | st.integers(0, 5),
    percent=st.none() | st.integers(0, 100),
    error=st.none() | st.just("damaged"),
)


@given(st.lists(CELLS, max_size=30))
def test_the_text_of_a_cell_says_its_state(cells: list[dict[str, Any]]) -> None:
    said: dict[str, str] = {}
    for each in cells:
        kind = kind_of(each)
        assert said.setdefault(cell_text(each, kind), kind) == kind
