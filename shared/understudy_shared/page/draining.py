"""The form at `/admin/nodes/{id}/drain`, which asks whether to drain a node, for browsers without scripts. With scripts
a dialog asks it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request, Response

from understudy_shared.auth.audit import note
from understudy_shared.http.edge import read_body
from understudy_shared.http.html_pages import HEADERS, small_page
from understudy_shared.http.problems import Problem, ProblemError, ProblemType

Cost = Callable[[str], Awaitable[Mapping[str, Any]]]
"""The function that returns the cost of a stop of a node: the document of `GET /admin/v1/nodes/{id}/safe-to-stop`."""

MAX_FORM_BYTES = 64
_WANTED = {b"drain=true": True, b"drain=false": False}


def drain_routes(cost: Cost, drain: Callable[[str, bool], Awaitable[object]]) -> APIRouter:
    """Make the routes of the form: one shows it, one takes its answer."""
    routes = APIRouter()

    @routes.get("/admin/nodes/{node_id}/drain")
    async def ask(node_id: str) -> Response:
        """Show what the action would cost, and its buttons."""
        return Response(drain_page(await cost(node_id)), media_type="text/html", headers=_headers())

    @routes.post("/admin/nodes/{node_id}/drain")
    async def take(node_id: str, request: Request) -> Response:
        """Drain the node, or undo that, and show the page."""
        wanted = _WANTED.get(await read_body(request.receive, max_bytes=MAX_FORM_BYTES))
        if wanted is None:
            problem = Problem(
                ProblemType.BAD_REQUEST, "the form does not say whether to drain", "body", "Use its buttons"
            )
            raise ProblemError(problem)
        note(request.scope, drain=wanted)
        await drain(node_id, wanted)
        return Response(status_code=303, headers={**_headers(), "location": "../../#nodes-title"})

    return routes


def drain_page(document: Mapping[str, Any]) -> bytes:
    """Return the form of one node."""
    safe = "It is safe to stop" if document["safe"] else "It is not safe to stop now"
    body = (
        f"<p>{safe}: {escape(str(document['why']))}.</p>"
        "<p>Draining moves its replicas to other nodes, then it can be stopped. It answers meanwhile.</p>"
        '<form method="post"><button name="drain" value="true">Drain</button> '
        '<button name="drain" value="false">Undo drain</button></form><p><a href="../../">Back to the page</a></p>'
    )
    return small_page(f"Drain {document['node_id']}?", body)


def _headers() -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in HEADERS}
