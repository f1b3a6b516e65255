"""What the slots of the page show of an overview document."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.page.overviews import SHOWN, degraded, empty, healthy, indicator, lease, node, restoring, store

from understudy_router.page.views import (
    figure_slots,
    health_slots,
    indicator_slots,
    node_slots,
    restore_slots,
    snapshot_slots,
    staleness_bars,
    store_slots,
    unwell,
)


@pytest.mark.parametrize(
    ("name", "mark", "state"),
    [("healthy", "●", "ok"), ("degraded", "✕", "hurt"), ("restoring", "▲", "attention"), ("empty", "?", "unknown")],
)
def test_the_health_line_has_a_shape_of_its_own_for_each_state(name: str, mark: str, state: str) -> None:
    overview = SHOWN[name]()
    slots = health_slots(overview)
    assert (slots["mark"].text, slots["mark"].state) == (mark, state)
    assert slots["headline"].text == overview["health"]["headline"]


def test_indicators_that_are_well_are_silent_and_the_worst_comes_first() -> None:
    assert unwell(healthy()) == []
    assert [each["name"] for each in unwell(degraded())] == ["nodes", "agreement", "checkpoint", "redundancy", "bus"]


def test_a_long_list_of_what_is_affected_is_cut_and_says_so() -> None:
    shown = indicator_slots(indicator("nodes", "hurt", affected=[f"node-{n}" for n in range(15)]))
    assert shown["affected"].text.endswith("node-11 and 3 more")


def test_unknown_figures_are_question_marks_and_never_zero() -> None:
    slots = figure_slots(empty())
    assert {name: slots[name].text for name in ("freshness", "bound", "lag", "end")} == {
        "freshness": "?",
        "bound": "?",
        "lag": "? batches",
        "end": "?",
    }
    assert slots["lag"].state == "unknown"


def test_the_worst_lag_says_where_it_is_and_how_many_are_unknown() -> None:
    assert figure_slots(healthy())["lag_more"].text == "15 ms · aircraft 0 on node-2"
    assert figure_slots(degraded())["lag_more"].text.endswith("1 replica unknown")


@pytest.mark.parametrize(
    ("fields", "slot", "text", "state"),
    [
        ({}, "wellness", "all served", ""),
        ({"unserved": 1, "restoring": 2}, "wellness", "1 unserved · 2 restoring", "hurt"),
        ({"restoring": 2, "unknown": 3}, "wellness", "2 restoring · 3 unknown", "moving"),
        ({"active": 3}, "active", "3", "hurt"),
        ({"worst_lag": None}, "lag", "?", "unknown"),
        ({"worst_lag": 3, "trend": "growing"}, "trend", "↑ growing", "attention"),
        ({"worst_lag": 1, "trend": "growing"}, "trend", "↑ growing", ""),
        ({"worst_lag": 40, "trend": "shrinking", "eta_s": 41.5}, "trend", "↓ shrinking, ETA 42 s", ""),
        ({"within_bound_percent": 99.999}, "bound", "99.99 %", ""),
        ({"within_bound_percent": None}, "bound", "-", ""),
        ({"staleness_p99_ms": 2500}, "served", "p99 ≤ 2.5 s", ""),
        ({"staleness_p99_ms": 300_000, "staleness_is_more": True}, "served", "p99 > 5 min", ""),
        ({"staleness_p99_ms": None}, "served", "", ""),
        ({"trend": "unknown"}, "trend", "?", ""),
    ],
)
def test_a_store_says_what_is_not_well_and_where_it_goes(
    fields: dict[str, Any], slot: str, text: str, state: str
) -> None:
    shown = store_slots(store("aircraft", 0, **fields))[slot]
    assert (shown.text, shown.state) == (text, state)


@pytest.mark.parametrize(
    ("fields", "state", "colour"),
    [
        ({}, "serving", ""),
        ({"health": "suspect"}, "serving, suspect", "attention"),
        ({"state": "draining"}, "draining", "moving"),
        ({"degraded": ["bus-away: refused"]}, "serving", "attention"),
        ({"state": "dead", "live": False, "health": None}, "dead", "hurt"),
        ({"state": "unheard", "live": False, "health": None}, "unheard", "unknown"),
    ],
    ids=["well", "suspect", "draining", "degraded", "dead", "unheard"],
)
def test_a_node_says_how_it_is(fields: dict[str, Any], state: str, colour: str) -> None:
    shown = node_slots(node(1, **fields))["state"]
    assert (shown.text, shown.state) == (state, colour)


@pytest.mark.parametrize(
    ("safe", "live", "text"),
    [(True, True, "✓ safe"), (False, True, "✕ not safe"), (None, True, "? unknown"), (True, False, "-")],
)
def test_whether_a_node_may_be_stopped_is_unknown_until_it_is_known(safe: bool | None, live: bool, text: str) -> None:
    shown = node_slots(node(1, live=live, safe_to_stop={"safe": safe, "why": "so"}))
    assert shown["safe"].text == text
    assert shown["safe_why"].text == ("so" if live else ""), "nobody asks whether a dead node may be stopped"


def test_a_restore_says_its_bytes_its_rate_and_its_end() -> None:
    unknown, first, second = restoring()["restores"]
    assert restore_slots(first)["bytes"].text == "1.2 GB of 2.0 GB · 80.0 MB/s · 9.5 s left"
    assert restore_slots(first)["share"].text == "62 %"
    assert restore_slots(second)["bytes"].text == "5.0 MB of ?"
    assert restore_slots(second)["share"].text == "?"
    assert restore_slots(unknown)["bytes"].text == "? of ?"


def test_the_histogram_shows_the_bars_around_what_was_answered() -> None:
    bars = staleness_bars(healthy()["reads"])
    assert [(bar.label, bar.answers) for bar in bars][:3] == [("≤ 1 ms", "0"), ("≤ 5 ms", "120"), ("≤ 10 ms", "9,000")]
    assert bars[-1].label == "≤ 1.0 s", "the bars above the highest that is not nothing are left out, but for one"
    assert staleness_bars(empty()["reads"]) == []


def test_the_last_bar_of_the_histogram_has_no_upper_bound() -> None:
    reads = {"staleness": {"le_ms": [1, None], "counts": [0, 3]}}
    assert [bar.label for bar in staleness_bars(reads)] == ["≤ 1 ms", "> 1 ms"]


def test_a_lease_says_whose_it_is_and_what_its_version_holds() -> None:
    slots = snapshot_slots(lease())
    shown = {name: slots[name].text for name in ("holder", "version", "renewals", "tasks", "bytes")}
    assert shown == {"holder": "nightly report", "version": "410", "renewals": "3", "tasks": "24", "bytes": "1.5 MB"}
    forgotten = snapshot_slots(lease(holder=None, stores=[], disk_bytes=2_000_000))
    assert (forgotten["holder"].text, forgotten["holder"].title) == ("-", "for all stores")
    assert forgotten["bytes"].text == "1.5 MB · 2.0 MB of files"
