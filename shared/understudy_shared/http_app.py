"""What the FastAPI side of every service has in common: JSON, errors as problems, and no calls for other sites."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import orjson
from fastapi import Depends, FastAPI, Request, Response
from starlette.exceptions import HTTPException

from understudy_shared.cross_site import why_refused
from understudy_shared.errors import UnderstudyError
from understudy_shared.lookup_requests import unknown_path
from understudy_shared.problems import CONTENT_TYPE, Problem, ProblemError, ProblemType, problem_of


def service_app(title: str, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> FastAPI:
    """The application of a service; each of its routes, now and later, refuses changes from pages of other sites."""
    return FastAPI(
        title=title,
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # its redirect is no JSON, and goes to whatever host the request names
        dependencies=[Depends(_refuse_cross_site)],
    )


def json_response(content: object, status: int = 200) -> Response:
    """One line of JSON, ended."""
    body = orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
    return Response(body, status, media_type="application/json")


def answer_with_problems(http: FastAPI) -> None:
    """Whatever fails is `application/problem+json`: our own errors, and the framework's."""
    http.add_exception_handler(UnderstudyError, _ours)
    http.add_exception_handler(HTTPException, _theirs)


async def _refuse_cross_site(request: Request) -> None:
    refused = why_refused(request.method, request.headers)
    if refused is not None:
        raise ProblemError(refused)


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
