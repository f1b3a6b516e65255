"""The page of one node: what is wrong and what to do in one line, and nothing unknown shown as a number."""

from __future__ import annotations

from typing import Any

import pytest

from understudy_node.http.health import indicators
from understudy_node.http.page import MARKS, node_page
from understudy_shared.http.health import HealthReport
from understudy_shared.http.status import Status


def report(state: str = "committing", **fields: Any) -> dict[str, Any]:
    partition = {"state": "RUNNING", "offset_lag": 0, "keys": 1200}
    known: dict[str, Any] = {
        "generated_at": "2026-11-22T12:04:31.000000Z",
        "checkpoint": "/data/<b>flights</b>",
        "end_offset_position": 418,
        "query": {"state": state, "last_commit_at": "2026-11-22T12:04:30.000000Z"},
        "hints": [],
        "stores": [{"store": "aircraft", "partitions": [partition, {**partition, **fields}]}],
        "events": [{"at": "2026-11-22T12:04:30.000000Z", "event": "ready", "detail": "2 tasks"}],
    }
    return known


WELL = Status()


def health_of(state: str = "committing", status: Status = WELL) -> HealthReport:
    return HealthReport.after(None, indicators(status, {"state": state}), 0)


@pytest.mark.parametrize(
    ("state", "status", "line"),
    [
        ("committing", Status(), "● all well"),
        ("waiting", Status(), "● all well"),
        ("idle", Status(), "▲ The query has not committed"),
        ("unknown", Status(), "▲ The end of the query is not confirmed"),
        ("idle", Status((), {"disk": "the disk is full"}), "▲ the disk is full"),
        ("idle", Status(("waits for the checkpoint",), {"disk": "the disk is full"}), "✕ Not ready: waits for"),
    ],
)
def test_what_is_worst_stands_at_the_top(state: str, status: Status, line: str) -> None:
    health = health_of(state, status)
    assert f"{MARKS[health.worst.state]} {health.headline}".startswith(line)
    page = node_page(report(state), health, is_member=False).decode()
    assert all(each in page for each in (*status.reasons, *status.causes.values()))
    assert page.index(line.partition(": ")[0]) < page.index("aircraft")


def test_what_is_unknown_is_a_question_mark_and_no_name_becomes_markup() -> None:
    known = node_page(report(), health_of(), is_member=False).decode()
    assert "<td>2,400</td>" in known
    assert "/data/&lt;b&gt;flights" in known
    unknown = node_page(report(offset_lag=None, keys=None), health_of(), is_member=True).decode()
    assert "<td>?</td><td>?</td>" in unknown
    assert "one node of a cluster" in unknown
