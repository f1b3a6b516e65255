"""`/admin/` of a node: what it serves and whether it is well, as a page without scripts. A router's page shows more.

`understudy serve` is one process without a router, so this is the page of its user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from fastapi import APIRouter

from understudy_node.http.admin import lag_report
from understudy_node.http.health import NodeHealth
from understudy_node.node import Node
from understudy_shared.http.health import HealthReport, State
from understudy_shared.http.people import small_page
from understudy_shared.http.root_path import to_root
from understudy_shared.server import live_pages
from understudy_shared.server.live_pages import REFRESH_S, UNKNOWN, known

MAX_EVENTS = 20

MARKS = {State.OK: "●", State.ATTENTION: "▲", State.UNKNOWN: "?", State.HURT: "✕"}


def page_routes(node: Node, health: NodeHealth) -> APIRouter:
    """Make the routes of the page."""
    return live_pages.page_routes(
        lambda request: node_page(
            lag_report(node, None), health.look(), to_root(request.scope), is_member=node.node_id is not None
        )
    )


def node_page(report: Mapping[str, Any], health: HealthReport, root: str, *, is_member: bool) -> bytes:
    """Render the page, of the report of `GET /admin/v1/lag` and of the node's health. `root` is the relative reference
    from the page to the root of the service.
    """
    title = f"{MARKS[health.worst.state]} {health.headline}"
    return small_page(title, "".join(_body(report, health, root, is_member=is_member)))


def _body(report: Mapping[str, Any], health: HealthReport, root: str, *, is_member: bool) -> Iterator[str]:
    for each in health.indicators:
        if each.state is not State.OK:
            says = (("Hurts", each.impact), ("Because", each.cause), ("Do", each.action))
            yield f"<h2>{MARKS[each.state]} {escape(each.symptom)}</h2>"
            yield _table((), [(name, text) for name, text in says if text])
    query = report["query"]
    yield _table(
        (),
        [
            ("checkpoint", report["checkpoint"]),
            ("query", query["state"]),
            ("last version", _known(report["end_offset_position"])),
            ("committed", _known(query["last_commit_at"])),
            ("this page", f"true at {report['generated_at']}, loaded again every {REFRESH_S} s"),
        ],
    )
    yield "<h2>Stores</h2>"
    heads = ("store", "partitions", "answered from", "worst lag", "keys in snapshots")
    yield _table(heads, [_store(each) for each in report["stores"]]) if report["stores"] else "<p>None yet.</p>"
    yield "".join(f"<p>Hint: {escape(hint)}.</p>" for hint in report["hints"])
    events = report["events"][-MAX_EVENTS:][::-1]
    if events:
        yield "<h2>Events</h2>"
        yield _table(("at", "event", "detail"), [(each["at"][11:19], each["event"], each["detail"]) for each in events])
    if is_member:
        yield "<p>This is one node of a cluster: the page of a router shows all of them.</p>"
    links = (
        (f"{root}docs", "All calls"),
        ("v1/health", "Health as JSON"),
        ("v1/lag", "Lag as JSON"),
        (f"{root}metrics", "Metrics"),
    )
    yield f"<p>{' · '.join(f'<a href={path}>{text}</a>' for path, text in links)}</p>"


def _store(store: Mapping[str, Any]) -> tuple[object, ...]:
    """Return one row of the table of stores. Sums leave out unknown values."""
    partitions = store["partitions"]
    lags = [each["offset_lag"] for each in partitions]
    keys = [each["keys"] for each in partitions]
    running = sum(each["state"] == "RUNNING" for each in partitions)
    worst = known(None if None in lags or not lags else max(lags))
    return store["store"], len(partitions), running, worst, known(None if None in keys else sum(keys))


def _known(value: object) -> object:
    return UNKNOWN if value is None else value


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return live_pages.table(heads, [[escape(str(cell)) for cell in row] for row in rows])
