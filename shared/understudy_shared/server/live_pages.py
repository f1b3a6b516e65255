"""Pages without scripts that a browser loads again by itself, at `/admin/` of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fastapi import APIRouter, Request, Response

from understudy_shared.http.people import HEADERS
from understudy_shared.http.root_path import address_of

UNKNOWN = "?"
REFRESH_S = 5
"""Time after which a browser asks for the page again."""


def page_routes(render: Callable[[Request], bytes]) -> APIRouter:
    """Make the routes of a page, and of the redirects to it. They are for browsers, so no document describes them."""
    routes = APIRouter(include_in_schema=False)
    headers = {**{name.decode(): value.decode() for name, value in HEADERS}, "refresh": str(REFRESH_S)}

    @routes.get("/")
    @routes.get("/admin")
    async def to_page(request: Request) -> Response:
        """Show the page to a person who typed the host only."""
        return Response(status_code=307, headers={"location": address_of(request.scope, "/admin/")})

    @routes.get("/admin/")
    async def page(request: Request) -> Response:
        """Render the current page; the browser asks again by itself."""
        return Response(render(request), media_type="text/html", headers=headers)

    return routes


def table(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Render a table whose cells are HTML; without heads it has no heading."""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def known(number: int | None) -> str:
    """Write a number for a person."""
    return UNKNOWN if number is None else f"{number:,}"
