"""An application that announced itself goes, as an operator asks: one of its nodes is asked, and tells the others."""

from __future__ import annotations

from understudy_router.fleet.held import HeldApplication
from understudy_shared.base.printable import clipped
from understudy_shared.cluster.node_calls import NodeCallError
from understudy_shared.http.problems import Problem, ProblemError, ProblemType

MAX_ASKED = 3
"""Nodes that are asked, one after the other, until one answers."""

_OF_A_NODE = (ProblemType.LISTED_APPLICATION, ProblemType.UNKNOWN_APPLICATION, ProblemType.NOT_INITIALISED)
"""Problems of a node that are passed on as they are."""


async def let_go(application_id: str, held: HeldApplication) -> dict[str, object]:
    """Return what a node says to it. Raises ProblemError when it refuses, and when no node answers."""
    why = "none is heard"
    for node_id, node in sorted(held.router.tables.nodes.items())[:MAX_ASKED]:
        try:
            status, document = await held.router.nodes.let_go(node.heartbeat.endpoint.host_info())
        except NodeCallError as error:
            why = str(error)
            continue
        if status < 400:
            return document
        raise ProblemError(_refusal(node_id, status, document))
    what = f"no node of {clipped(application_id)} answers: {why}"
    raise ProblemError(Problem(ProblemType.NODE_UNREACHABLE, what, "path", "Retry, or ask a node of the fleet"))


def _refusal(node_id: str, status: int, document: dict[str, object]) -> Problem:
    detail, fix = (f"{document.get(name, '')!s:.500}" for name in ("detail", "fix"))
    for kind in _OF_A_NODE:
        if (kind.slug, kind.status) == (document.get("type"), status):
            return Problem(kind, f"node {clipped(node_id)}: {detail}", "path", fix)
    what = f"the node refuses with {status}: {detail or 'no reason'}"
    return Problem(ProblemType.BAD_REPLY, what, node_id, "Look at that node and its log")
