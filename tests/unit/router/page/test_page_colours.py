"""Nobody needs colours to read the page: texts and shapes say every state, and the colours differ for every sight."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.page.colours import SIGHTS, contrast, distance, linear, palette, seen
from tests.support.page.overviews import SHOWN, cell, indicator, node, store

import understudy_router.page
from understudy_router.page.cells import STATES, cell_text, kind_of
from understudy_router.page.views import (
    MARKS,
    Slots,
    figure_slots,
    indicator_slots,
    node_slots,
    safe_words,
    store_slots,
)
from understudy_shared.http.health import State

CSS = (Path(understudy_router.page.__file__).parent / "static" / "page.css").read_text()
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


def test_two_colours_that_only_most_people_tell_apart_are_noticed() -> None:
    green, red = linear("#4c7a00"), linear("#a85a00")
    assert distance(green, red) > APART
    assert distance(seen(green, "deuteranopia"), seen(red, "deuteranopia")) < APART


@given(st.tuples(*[st.floats(0, 1)] * 3), st.sampled_from(sorted(SIGHTS)))
def test_grey_is_grey_for_every_sight_and_no_colour_leaves_the_screen(colour: Any, sight: str) -> None:
    grey = (colour[0],) * 3
    assert distance(seen(grey, sight), grey) < 0.01
    assert all(0 <= value <= 1 for value in seen(colour, sight))
    assert distance(seen(colour, "usual"), colour) == pytest.approx(0, abs=1e-9)


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


def test_every_kind_of_cell_has_a_state_and_every_state_a_rule_of_its_own() -> None:
    for state in {*STATES.values()} - {"well"}:
        assert f'.cell[data-state="{state}"]' in CSS, state


def test_every_state_of_health_has_a_shape_of_its_own() -> None:
    assert {state.word for state in State} <= MARKS.keys()
    assert len(set(MARKS.values())) == len(MARKS)
    marks = {state: indicator_slots(indicator("nodes", state))["mark"].text for state in MARKS}
    assert marks == dict(MARKS)
    assert len({safe_words(safe, is_live=True)[0] for safe in (True, False, None)}) == 3


def words_and_states(slots: Slots) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(each.text for each in slots.values()), tuple(each.state for each in slots.values())


STORES = st.fixed_dictionaries(
    {
        "partitions": st.integers(1, 4), "active": st.integers(0, 4), "restoring": st.integers(0, 2),
        "unserved": st.integers(0, 2), "unknown": st.integers(0, 2), "worst_lag": st.none() | st.integers(0, 3),
        "trend": st.sampled_from(["steady", "growing", "shrinking", "unknown"]),
    }
)  # fmt: skip
NODES = st.fixed_dictionaries(
    {
        "state": st.sampled_from(["serving", "starting", "draining", "failed", "leaving"]),
        "health": st.sampled_from(["ok", "suspect", "quarantined", None]),
        "degraded": st.sampled_from([[], ["memory"]]),
        "restoring": st.integers(0, 1),
    }
)
GONE = st.fixed_dictionaries({"state": st.sampled_from(["dead", "unheard"]), "live": st.just(False)})


@given(st.lists(STORES, max_size=20), st.lists(NODES | GONE, max_size=20))
def test_a_row_without_its_colours_says_the_same(
    stores: list[Mapping[str, Any]], nodes: list[Mapping[str, Any]]
) -> None:
    said: dict[tuple[str, ...], tuple[str, ...]] = {}
    rows = [store_slots(store("aircraft", 0, **each)) for each in stores]
    rows += [node_slots(node(1, **each)) for each in nodes]
    for row in rows:
        words, states = words_and_states(row)
        assert said.setdefault(words, states) == states


@pytest.mark.parametrize("name", SHOWN)
def test_a_figure_that_is_coloured_has_words_for_why(name: str) -> None:
    well, now = figure_slots(SHOWN["healthy"]()), figure_slots(SHOWN[name]())
    for key in (each for each in now if not each.endswith("_more")):
        figure, usual = ([slots[key], slots[f"{key}_more"]] for slots in (now, well))
        assert not any(each.state for each in figure) or [each.text for each in figure] != [each.text for each in usual]
