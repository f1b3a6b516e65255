"""What the FastAPI side of every service has in common: JSON, errors as problems, and no calls for other sites."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from understudy_shared.errors import UnderstudyError
from understudy_shared.http.cross_site import why_refused
from understudy_shared.http.edge import Receive, Scope, Send, bug, not_allowed, send_problem, without_body
from understudy_shared.http.lookup_requests import unknown_path
from understudy_shared.http.problems import CONTENT_TYPE, Problem, ProblemError, ProblemType, problem_of
from understudy_shared.http.target import refuse_unroutable


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


class Framework:
    """ASGI application: `http` behind the one place that all its requests pass, in every service.

    A path that the framework might take for another is refused, HEAD is answered wherever GET is, and whatever escapes
    the framework is a problem: the internal one.
    """

    def __init__(self, http: FastAPI) -> None:
        self._http = http

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._http(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET", _ASKED: "HEAD"}, without_body(send)
        has_begun = False

        async def send_and_note(message: MutableMapping[str, Any]) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            refuse_unroutable(scope["raw_path"])
            await self._http(scope, receive, send_and_note)
        except UnderstudyError as error:
            await send_problem(send, problem_of(error))
        except Exception as error:
            if not has_begun:  # else it was told by `_bug`, below, or half of an answer is on its way
                await send_problem(send, bug(error))


_ASKED = "understudy.method"
"""In the scope of a HEAD, which is routed as a GET."""


def answer_with_problems(http: FastAPI) -> None:
    """Whatever fails is `application/problem+json`: our own errors, the framework's, and what is a bug."""
    http.add_exception_handler(UnderstudyError, _ours)
    http.add_exception_handler(HTTPException, _theirs)
    http.add_exception_handler(RequestValidationError, _parameters)
    http.add_exception_handler(Exception, _bug)


async def _refuse_cross_site(request: Request) -> None:
    refused = why_refused(request.method, request.headers)
    if refused is not None:
        raise ProblemError(refused)


async def _ours(_: Request, error: Exception) -> Response:
    assert isinstance(error, UnderstudyError), "registered for these only"
    return _response(problem_of(error))


async def _theirs(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "").replace("GET", "GET, HEAD")
        return _response(not_allowed(request.scope.get(_ASKED, request.method), allow))
    return _response(unknown_path(request.scope["raw_path"]))


async def _parameters(_: Request, error: Exception) -> Response:
    return _response(Problem(ProblemType.BAD_REQUEST, f"a parameter does not fit: {error}", fix="See /openapi.json"))


async def _bug(_: Request, error: Exception) -> Response:
    return _response(bug(error))


def _response(problem: Problem) -> Response:
    headers = {name.decode(): value.decode() for name, value in problem.headers}
    return Response(problem.body(), problem.status, media_type=CONTENT_TYPE.decode(), headers=headers)
