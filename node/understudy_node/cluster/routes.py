"""The routes of a node in a cluster besides lookups: its heartbeat, its catalogue, its assignment, and draining."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from understudy_shared.auth.audit import note
from understudy_shared.http.edge import read_flag
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.server.app import json_response

if TYPE_CHECKING:
    from understudy_node.cluster.member import ClusterMember


def cluster_routes(member: ClusterMember) -> APIRouter:
    """Create the routes `/internal/v1/{lags,catalogue,assignment}` and `POST /admin/v1/drain`."""
    router = APIRouter()

    @router.get("/internal/v1/lags")
    async def lags() -> Response:
        """Return the heartbeat that this node would send now; routers ask for it while Redis is away."""
        return _json(member.heartbeat().encode())

    @router.get("/internal/v1/catalogue")
    async def catalogue() -> Response:
        """Return the catalogue: the stores, with all that is needed to encode and place keys."""
        found = member.catalogue()
        if found is None:
            raise _not_yet("no batch has been committed yet")
        return _json(found[1].encode(), etag=f'"{found[0]}"')

    @router.get("/internal/v1/assignment")
    async def assignment() -> Response:
        """Return the assignment that this node follows."""
        if member.assignment is None:
            raise _not_yet("no assignment is known yet")
        return _json(await asyncio.to_thread(member.assignment.encode))  # it may have four megabytes

    @router.post("/admin/v1/drain")
    async def drain(request: Request) -> Response:
        """Ask the cluster to move this node's tasks to others; `{"drain": false}` cancels that."""
        wanted = await read_flag(request.receive, "drain", default=True)
        note(request.scope, drain=wanted)
        member.drain(wanted)
        return json_response({"node_id": member.node_id, "draining": member.draining}, 202)

    return router


def _json(document: bytes, **headers: str) -> Response:
    return Response(document, media_type="application/json", headers=headers)


def _not_yet(what: str) -> ProblemError:
    return ProblemError(Problem(ProblemType.NOT_INITIALISED, what, fix="Retry when /readyz says so"))
