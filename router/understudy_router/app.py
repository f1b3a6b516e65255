"""The HTTP application of a router: FastAPI for what is asked rarely, plain ASGI in front of it for lookups.

`create_app` is given a router that exists; starting and stopping it is the lifespan's business.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from understudy_router.metrics import RouterMetrics
from understudy_router.router import Router
from understudy_router.routes import admin_routes, read_routes
from understudy_router.serving.asgi import LookupsFirst
from understudy_router.serving.reads import Reads
from understudy_shared.errors import UnderstudyError
from understudy_shared.lookup_requests import unknown_path
from understudy_shared.openapi import add_lookups
from understudy_shared.problems import CONTENT_TYPE, Problem, ProblemType, problem_of


def create_app(router: Router) -> LookupsFirst:
    """The application that serves by `router`."""
    reads = Reads(router.stores)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        router.start()
        try:
            yield
        finally:
            await router.stop()

    http = FastAPI(title="Understudy router", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    app = LookupsFirst(http, reads, router.forwarder, max_in_flight=router.settings.max_in_flight)
    http.include_router(read_routes(router, reads))
    http.include_router(admin_routes(router, RouterMetrics(router, app)))
    add_lookups(http)
    http.add_exception_handler(UnderstudyError, _ours)
    http.add_exception_handler(HTTPException, _theirs)
    return app


async def _ours(_: Request, error: Exception) -> Response:
    assert isinstance(error, UnderstudyError), "registered for these only"
    return _response(problem_of(error))


async def _theirs(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        return _response(Problem(ProblemType.METHOD_NOT_ALLOWED, f"{request.method} is not taken at this path"))
    return _response(unknown_path(request.scope["raw_path"]))


def _response(problem: Problem) -> Response:
    headers = {"retry-after": "1"} if problem.status in (429, 503) else None
    return Response(problem.body(), problem.status, media_type=CONTENT_TYPE.decode(), headers=headers)
