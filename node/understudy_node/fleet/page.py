"""`/admin/` of a process with several applications: which there are, the worst first, as a page without scripts.

It shows those that the caller may monitor. Each application has its own page below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from understudy_shared.auth.access import authorization_of
from understudy_shared.fleet.reporting import ApplicationReport, Reported, State
from understudy_shared.http.people import HEADERS, small_page

UNKNOWN = "?"
REFRESH_S = 5
"""Time after which a browser asks for the page again."""

_WORST_FIRST = (State.FAILED, State.WAITING, State.OPENING, State.RESTORING, State.IDLE, State.SERVING)
_MARKS = {State.FAILED: "✕", State.SERVING: "●"}
_HEADS = ("application", "state", "stores", "last version", "worst lag")


def page_routes(applications: Mapping[str, Reported]) -> APIRouter:
    """Make the routes of the page, and of the redirects to it. They are for browsers, so no document describes them."""
    routes = APIRouter(include_in_schema=False)
    headers = {**{name.decode(): value.decode() for name, value in HEADERS}, "refresh": str(REFRESH_S)}

    @routes.get("/")
    @routes.get("/admin")
    async def to_page() -> Response:
        """Show the page to a person who typed the host only."""
        return Response(status_code=307, headers={"location": "/admin/"})

    @routes.get("/admin/")
    async def page(request: Request) -> Response:
        """Render the current page, with what the caller may monitor; the browser asks again by itself."""
        principal = authorization_of(request.scope).principal
        shown = fleet_page([each.report() for name, each in applications.items() if principal.monitors(name)])
        return Response(shown, media_type="text/html", headers=headers)

    return routes


def fleet_page(reports: Iterable[ApplicationReport]) -> bytes:
    """Render the page: applications in need of help first, then by name."""
    found = sorted(reports, key=lambda each: (_WORST_FIRST.index(each.state), each.application_id))
    serving = sum(each.state is State.SERVING for each in found)
    title = f"{'●' if serving == len(found) else '▲'} {serving} of {len(found)} applications are served"
    return small_page(title, "".join(_body(found)))


def _body(reports: list[ApplicationReport]) -> Iterator[str]:
    head = "".join(f'<th scope="col">{name}</th>' for name in _HEADS)
    yield f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, reports))}</tbody></table>"
    yield f"<p>This page is loaded again every {REFRESH_S} s.</p>"
    yield '<p><a href="/v1/applications">Applications as JSON</a> · <a href="/metrics">Metrics</a></p>'


def _row(report: ApplicationReport) -> str:
    name = escape(report.application_id)
    link = f'<a href="/admin/applications/{quote(report.application_id, safe="")}/">{name}</a>'
    state = escape(f"{_MARKS.get(report.state, '▲')} {report.state}")
    reason = f"<br>{escape(report.reason)}" if report.reason else ""
    numbers = (len(report.stores), _known(report.end_offset_position), _known(report.max_offset_lag))
    cells = "".join(f"<td>{number}</td>" for number in numbers)
    return f"<tr><td>{link}</td><td>{state}{reason}</td>{cells}</tr>"


def _known(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"
