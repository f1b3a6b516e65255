"""The HTTP application of a node: FastAPI for what is asked rarely, plain ASGI in front of it for lookups.

`create_app` is given a node that exists; starting and stopping it is the lifespan's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from understudy_node.admin import lag_report
from understudy_node.metrics import CONTENT_TYPE_LATEST, NodeMetrics
from understudy_node.node import Node
from understudy_node.serving.asgi import LookupsFirst
from understudy_node.serving.reads import Reads, unknown_path
from understudy_node.serving.visibility import Visibility
from understudy_shared.errors import UnderstudyError
from understudy_shared.problems import CONTENT_TYPE, Problem, ProblemType, problem_of


def create_app(node: Node) -> LookupsFirst:
    """The application that serves `node`."""
    reads = Reads(node)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        app.visibility = Visibility()
        node.on_published = app.visibility.changed
        node.start()
        try:
            yield
        finally:
            await asyncio.to_thread(node.stop)

    http = FastAPI(title="Understudy node", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    app = LookupsFirst(http, reads, max_in_flight=node.settings.max_in_flight)
    metrics = NodeMetrics(node, app)

    @http.get("/v1/stores")
    async def stores() -> Response:
        """Every store served here, with its schema."""
        generation = reads.generation()
        described = [describe_store(node, name) for name in generation.holdings]
        refused = [
            {
                "operator_id": operator.operator_id,
                "operator": operator.operator_name,
                "reason": str(operator.unsupported),
            }
            for operator in generation.description.operators
            if operator.unsupported is not None
        ]
        return _json({"stores": described, "not_served": refused})

    @http.get("/v1/stores/{store}")
    async def store_schema(store: str) -> Response:
        """One store's schema."""
        return _json(describe_store(node, reads.holding(store).store.name))

    def describe_store(node: Node, name: str) -> dict[str, object]:
        holding = reads.holding(name)
        return {
            **holding.store.described(),
            "partitions": holding.partitions,
            "end_offset_position": node.end.version,
            "lineage": holding.lineage,
            "application_id": holding.application_id,
        }

    @http.get("/admin/v1/lag")
    async def lag(store: str | None = None) -> Response:
        """Lag of every store partition, and what is known of the query."""
        return _json(lag_report(node, None if store is None else reads.holding(store).store.name))

    @http.get("/livez")
    async def livez() -> Response:
        """The event loop turns and no background task died."""
        dead = node.failure
        return _json({"alive": dead is None, "reason": repr(dead) if dead else None}, 200 if dead is None else 503)

    @http.get("/readyz")
    async def readyz() -> Response:
        """Every task can be answered from; lag does not matter here."""
        reasons = node.not_ready()
        return _json({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    @http.get("/metrics")
    async def prometheus() -> Response:
        """Prometheus exposition."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @http.exception_handler(UnderstudyError)
    async def ours(_: Request, error: UnderstudyError) -> Response:
        return _problem(problem_of(error))

    @http.exception_handler(HTTPException)
    async def theirs(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            return _problem(Problem(ProblemType.METHOD_NOT_ALLOWED, f"{request.method} is not taken at this path"))
        return _problem(unknown_path(request.scope["raw_path"]))

    return app


def _json(content: object, status: int = 200) -> Response:
    body = orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
    return Response(body, status, media_type="application/json")


def _problem(problem: Problem) -> Response:
    return Response(problem.body(), problem.status, media_type=CONTENT_TYPE.decode())
