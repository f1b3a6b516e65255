"""What a node in a cluster answers besides lookups: how it is, what it serves, which assignment it follows."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from understudy_node.cluster.member import ClusterMember
from understudy_shared.http.app import json_response
from understudy_shared.http.edge import read_flag
from understudy_shared.http.problems import Problem, ProblemError, ProblemType


def cluster_routes(member: ClusterMember) -> APIRouter:
    """`/internal/v1/{lags,catalogue,assignment}` and `POST /admin/v1/drain`."""
    router = APIRouter()

    @router.get("/internal/v1/lags")
    async def lags() -> Response:
        """The heartbeat that this node would send now: what routers ask for while the bus is away."""
        return Response(member.heartbeat().encode(), media_type="application/json")

    @router.get("/internal/v1/catalogue")
    async def catalogue() -> Response:
        """What can be asked, with all that is needed to encode and place keys."""
        found = member.catalogue()
        if found is None:
            raise _not_yet("no batch has been committed yet")
        return Response(found[1].encode(), media_type="application/json", headers={"etag": f'"{found[0]}"'})

    @router.get("/internal/v1/assignment")
    async def assignment() -> Response:
        """The assignment that this node follows."""
        if member.assignment is None:
            raise _not_yet("no assignment is known yet")
        document = await asyncio.to_thread(member.assignment.encode)  # it may have four megabytes
        return Response(document, media_type="application/json")

    @router.post("/admin/v1/drain")
    async def drain(request: Request) -> Response:
        """Ask the cluster to move this node's tasks to others; `{"drain": false}` takes that back."""
        member.drain(await read_flag(request.receive, "drain", default=True))
        return json_response({"node_id": member.node_id, "draining": member.draining}, 202)

    return router


def _not_yet(what: str) -> ProblemError:
    return ProblemError(Problem(ProblemType.NOT_INITIALISED, what, fix="Retry when /readyz says so"))
