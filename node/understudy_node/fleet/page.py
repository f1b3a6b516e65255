"""`/admin/` of a process with several applications: which there are, the worst first, as a page without scripts.

It shows those that the caller may monitor. Each application has its own page below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from urllib.parse import quote

from fastapi import Request

from understudy_shared.auth.access import authorization_of
from understudy_shared.fleet.reporting import ApplicationReport, Reported, State
from understudy_shared.http.people import small_page
from understudy_shared.server.live_pages import REFRESH_S, known, table

_WORST_FIRST = (State.FAILED, State.WAITING, State.OPENING, State.RESTORING, State.IDLE, State.SERVING)
_MARKS = {State.FAILED: "✕", State.SERVING: "●"}
_HEADS = ("application", "state", "stores", "last version", "worst lag")


def page_for(request: Request, applications: Mapping[str, Reported]) -> bytes:
    """Render the page with what the caller may monitor."""
    principal = authorization_of(request.scope).principal
    return fleet_page([each.report() for name, each in applications.items() if principal.monitors(name)])


def fleet_page(reports: Iterable[ApplicationReport]) -> bytes:
    """Render the page: applications in need of help first, then by name."""
    found = sorted(reports, key=lambda each: (_WORST_FIRST.index(each.state), each.application_id))
    serving = sum(each.state is State.SERVING for each in found)
    title = f"{'●' if serving == len(found) else '▲'} {serving} of {len(found)} applications are served"
    return small_page(title, "".join(_body(found)))


def _body(reports: list[ApplicationReport]) -> Iterator[str]:
    yield table(_HEADS, map(_row, reports))
    yield f"<p>This page is loaded again every {REFRESH_S} s.</p>"
    yield '<p><a href="/v1/applications">Applications as JSON</a> · <a href="/metrics">Metrics</a></p>'


def _row(report: ApplicationReport) -> tuple[object, ...]:
    name = escape(report.application_id)
    link = f'<a href="/admin/applications/{quote(report.application_id, safe="")}/">{name}</a>'
    state = escape(f"{_MARKS.get(report.state, '▲')} {report.state}")
    reason = f"<br>{escape(report.reason)}" if report.reason else ""
    numbers = (len(report.stores), known(report.end_offset_position), known(report.max_offset_lag))
    return link, f"{state}{reason}", *numbers
