"""Which replicas the page shows, on which page, and how the state of the page stands in its URL."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.page.overviews import cell, degraded, empty, healthy, large, row

from understudy_router.page.folding import folded
from understudy_router.page.page_query import KINDS, VIEWS, PageQuery, read_query
from understudy_router.page.replicas import (
    GRID_ROWS,
    MAX_COLUMNS,
    TABLE_ROWS,
    facts_of,
    find_replica,
    grid_view,
    page_bounds,
)


def test_every_replica_of_a_small_cluster_has_its_cell() -> None:
    grid = healthy()["grid"]
    view = grid_view(grid, PageQuery())
    assert view["columns"] == ["node-1", "node-2", "node-3"]
    assert [cell and cell.place for cell in next(view["rows"])["cells"]] == [
        "aircraft/0/node-1",
        "aircraft/0/node-2",
        None,
    ]
    assert (view["shown"], view["pager"]) == ("12 partitions", [])


def test_the_table_has_a_row_for_each_replica_that_is_not_well() -> None:
    view = grid_view(degraded()["grid"], PageQuery(view="table", state="unwell"))
    assert view["shown"] == "11 replicas"
    assert {row["words"] for row in view["replicas"]} == {
        "dead",
        "running, lagging",
        "running, lag unknown",
        "running, with an error: 1234.changelog: damaged at byte 512",
    }


def lagging(grid: dict[str, Any]) -> dict[str, Any]:
    """The same grid, of replicas that all lag: none shares a row."""
    rows = [{**row, "cells": {n: {**cell, "lag": 9} for n, cell in row["cells"].items()}} for row in grid["rows"]]
    return {**grid, "rows": rows}


def test_partitions_that_are_well_and_lie_alike_share_a_row_and_what_is_not_well_has_its_own() -> None:
    rows = large(1000, nodes=3)["grid"]["rows"]
    shown = folded(rows)
    assert len(shown) < 30
    assert sum(int(row["label"].rpartition(" and ")[2].split()[0]) + 3 if "more" in row["label"] else
               len(row["label"].split(", ")) for row in shown) == len(rows)  # fmt: skip
    alone = {row["partition"] for row in shown if row["label"] == str(row["partition"])}
    assert {row["partition"] for row in rows if any(cell["lag"] >= 2 for cell in row["cells"].values())} <= alone
    assert max(cell["lag"] for row in shown for cell in row["cells"].values()) == 5


def test_the_row_of_several_partitions_says_what_is_worst_among_them() -> None:
    cells = [{"n": cell(lag=place % 2, lag_ms=place, age_ms=None if place == 7 else 1)} for place in range(60)]
    (shown,) = folded([row("s", place, each) for place, each in enumerate(cells)])
    assert (shown["label"], shown["cells"]["n"]["lag"], shown["cells"]["n"]["lag_ms"]) == ("0, 1, 2 and 57 more", 1, 59)
    assert shown["cells"]["n"]["age_ms"] is None


def test_a_large_grid_has_pages_and_too_many_nodes_have_no_column_each() -> None:
    grid = lagging(large(10_000, nodes=MAX_COLUMNS + 1)["grid"])
    view = grid_view(grid, PageQuery(page=10))
    assert view["columns"] == ["replica 1", "replica 2"]
    assert view["shown"] == "4,501 to 5,000 of 5,000 partitions"
    assert list(view["rows"])[-1]["cells"][0].view.text.startswith("node-")
    assert [link["page"] for link in view["pager"]] == [1, 5, 6, 7, 8, 9, 10]
    assert [link["page"] for link in view["pager"] if link["is_here"]] == [10]


def test_the_worst_of_a_cluster_that_is_too_large_are_called_so() -> None:
    grid = {**healthy()["grid"], "order": "worst", "total": 60_000}
    assert "these are the worst of 60,000 partitions" in grid_view(grid, PageQuery())["shown"]


def test_a_grid_of_nothing_is_empty() -> None:
    view = grid_view(empty()["grid"], PageQuery())
    assert (list(view["rows"]), view["total"], view["shown"]) == ([], 0, "0 partitions")


@given(st.integers(0, 100_000), st.integers(1, 1000), st.integers(1, 100_000))
def test_pages_have_every_row_once_and_none_is_empty_while_there_are_rows(total: int, size: int, page: int) -> None:
    first, last, pages = page_bounds(total, size, page)
    assert 0 <= first <= last <= total
    assert last - first <= size
    assert (last > first) is (total > 0)
    if page <= pages:
        assert first == (page - 1) * size
        assert last == min(total, page * size)


def test_a_replica_is_found_by_its_place_and_its_facts_never_guess() -> None:
    overview = degraded()
    lagging = find_replica(overview["grid"]["rows"], "aircraft/0/node-1")
    assert lagging is not None
    assert dict(facts_of(lagging, overview["end"]))["version"] == "415 of 418"
    unknown = find_replica(overview["grid"]["rows"], "routes/0/node-2")
    assert unknown is not None
    assert dict(facts_of(unknown, overview["end"]))["version"] == "?"
    for place in ("", "aircraft", "aircraft/0", "aircraft/0/node-9", "nothing/0/node-1"):
        assert find_replica(overview["grid"]["rows"], place) is None


QUERIES = st.builds(
    PageQuery,
    store=st.text(max_size=20),
    state=st.sampled_from(("", *KINDS)),
    view=st.sampled_from(VIEWS),
    page=st.integers(1, 99_999),
    open=st.text(max_size=20),
    ask=st.text(max_size=20),
    key=st.text(max_size=20),
)


@given(QUERIES)
def test_the_page_of_a_link_is_the_page_that_was_linked(query: PageQuery) -> None:
    link = query.link()
    assert read_query(dict(parse_qsl(link.removeprefix("?"), keep_blank_values=True))) == query


@pytest.mark.parametrize(
    "parameters",
    [{"page": "0"}, {"page": "-1"}, {"page": "²"}, {"page": "9" * 30}, {"state": "<b>"}, {"view": "x"},
     {"store": "x" * 5000}, {"other": "1"}],
    ids=str,
)  # fmt: skip
def test_a_link_that_makes_no_sense_shows_the_page(parameters: dict[str, str]) -> None:
    assert read_query(parameters) == PageQuery()


def test_a_page_is_short_enough_to_be_drawn() -> None:
    grid = lagging(large(10_000, nodes=MAX_COLUMNS)["grid"])
    assert len(list(grid_view(grid, PageQuery())["rows"])) == GRID_ROWS
    assert len(list(grid_view(grid, PageQuery(view="table"))["replicas"])) == TABLE_ROWS
