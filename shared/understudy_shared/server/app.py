"""The common part of every service's FastAPI application: JSON, errors as problems, refusal of changes by other sites,
and the routes with which machines monitor a service.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

import orjson
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.authentication import CREDENTIALS, ISSUERS
from understudy_shared.auth.permissions import shown_problem, shown_status
from understudy_shared.base.background import sliced
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.edge import NOSNIFF, App, Receive, Scope, Send, bug, not_allowed, send_problem, without_body
from understudy_shared.http.health import Status
from understudy_shared.http.html_pages import HEADERS, is_for_people, problem_page
from understudy_shared.http.lookup_requests import unknown_path
from understudy_shared.http.origins import why_refused
from understudy_shared.http.problems import CONTENT_TYPE, Problem, ProblemError, ProblemType, problem_of
from understudy_shared.http.target import refuse_unroutable
from understudy_shared.server.connection_guard import MEMORY
from understudy_shared.tls.service_tls import TLS


class _KeyConvertor(PathConvertor):
    regex = "(?s:.*)"  # `path` ends at a line break, which a key may contain


register_url_convertor("key", _KeyConvertor())

KEY_PATH: Final = "{key:key}"
"""The end of the path of a question about a key, of which each column is a segment."""


def service_app(title: str, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> FastAPI:
    """Create the FastAPI application of a service.

    Each of its routes refuses changes that pages of other sites request.
    """
    return FastAPI(
        title=title,
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # the redirect would not be JSON, and would lead to the host that the request names
        dependencies=[Depends(_refuse_cross_site)],
    )


def json_response(content: object, status: int = 200) -> Response:
    """Return a response of one line of JSON."""
    body = orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
    return Response(body, status, media_type="application/json")


def is_head(request: Request) -> bool:
    """Whether a request that is routed as GET was a HEAD request. An endless stream must not begin for it."""
    return request.scope.get(_ASKED) == "HEAD"


LONG_BYTES = 1 << 20
"""Size from which an answer is sent while it is made: joining 24 MB blocks the loop for 20 ms or more."""


async def streamed_json_response(pieces: Iterable[bytes]) -> Response:
    """Return a response of one line of JSON whose pieces are made no faster than the client reads them.

    The pieces must come from data that does not change. A response above `LONG_BYTES` is sent slice by slice, without
    its length; an error after its beginning ends the connection.
    """
    made, slices = bytearray(), sliced(pieces)
    async for few in slices:
        made += b"".join(few)
        if len(made) > LONG_BYTES:
            return StreamingResponse(_sent(bytes(made), slices), media_type="application/json")
    return Response(bytes(made) + b"\n", media_type="application/json")


async def _sent(made: bytes, rest: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
    yield made
    async for few in rest:
        if piece := b"".join(few):
            yield piece
    yield b"\n"


async def sliced_json_response(pieces: Iterable[bytes]) -> Response:
    """Return a response of one line of JSON that is made piece by piece; other requests are answered in between."""
    made = [piece async for few in sliced(pieces) for piece in few]
    return Response(b"".join([*made, b"\n"]), media_type="application/json")


Afterwards = Callable[[Receive, Send], Awaitable[None]]
AFTERWARDS: Final = "understudy.afterwards"
"""The key in the scope of a request for a function that sends the answer after the framework has returned. Otherwise an
answer of several hours would keep the framework's frames, about 9 kB, in memory.
"""


class Framework:
    """An ASGI application in front of `http`: every request of a service that FastAPI answers passes here.

    It refuses a path that the framework might take for another, answers HEAD wherever GET is answered, and turns any
    exception that escapes the framework into an internal problem.
    """

    def __init__(self, http: FastAPI) -> None:
        self._http = http
        self.in_front: Callable[[Scope], App | None] = lambda _: None
        """A function that returns the application that answers a request before FastAPI; for most requests None."""

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
            await send(_with_nosniff(message))

        try:
            refuse_unroutable(scope["raw_path"])
            await (self.in_front(scope) or self._http)(scope, receive, send_and_note)
            afterwards: Afterwards | None = scope.pop(AFTERWARDS, None)
            if afterwards is not None:
                await afterwards(receive, send_and_note)
        except UnderstudyError as error:
            await send_problem(send, problem_of(error))
        except Exception as error:
            if not has_begun:  # otherwise `_bug` has answered, or a part of the answer was sent
                await send_problem(send, shown_problem(authorization_of(scope).principal, bug(error)))


def _with_nosniff(message: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return the message with the `nosniff` header, if it starts a response and the route did not set the header."""
    if message["type"] != "http.response.start" or NOSNIFF[0] in dict(message["headers"]):
        return message
    return {**message, "headers": [*message["headers"], NOSNIFF]}


_ASKED = "understudy.method"
"""The key in the scope of a HEAD request, which is routed as GET, that holds the original method."""


Answer = Callable[[Request], Awaitable[Response]]
"""A function that answers a request like a route."""


def without_framework(answer: Answer) -> App:
    """Return an application that answers like a route of FastAPI, with the same errors and the same refusal of other
    sites, but without the cost of routing.
    """

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            await _refuse_cross_site(request)
            response = await answer(request)
        except UnderstudyError as error:
            response = await _ours(request, error)
        except Exception as error:
            response = await _bug(request, error)
        await response(scope, receive, send)

    return answered


def _nothing_there(scope: Scope) -> Problem:
    return unknown_path(scope["raw_path"])


def answer_with_problems(http: FastAPI, unknown: Callable[[Scope], Problem] = _nothing_there) -> None:
    """Answer every error with `application/problem+json`: errors of Understudy, errors of the framework, and bugs.
    `unknown` makes the problem of a path that no route has.
    """

    async def theirs(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            allow = (error.headers or {}).get("Allow", "").replace("GET", "GET, HEAD")
            return _response(request, not_allowed(request.scope.get(_ASKED, request.method), allow))
        return _response(request, unknown(request.scope))

    http.add_exception_handler(UnderstudyError, _ours)
    http.add_exception_handler(HTTPException, theirs)
    http.add_exception_handler(RequestValidationError, _parameters)
    http.add_exception_handler(Exception, _bug)


async def _refuse_cross_site(request: Request) -> None:
    refused = why_refused(request.method, request.headers)
    if refused is not None:
        raise ProblemError(refused)


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, UnderstudyError), "registered for these only"
    return _response(request, shown_problem(authorization_of(request.scope).principal, problem_of(error)))


async def _parameters(request: Request, error: Exception) -> Response:
    return _response(
        request, Problem(ProblemType.BAD_REQUEST, f"a parameter is malformed: {error}", fix="See /openapi.json")
    )


async def _bug(request: Request, error: Exception) -> Response:
    return _response(request, shown_problem(authorization_of(request.scope).principal, bug(error)))


def _response(request: Request, problem: Problem) -> Response:
    headers = {name.decode(): value.decode() for name, value in problem.headers}
    if is_for_people(request.scope):
        headers |= {name.decode(): value.decode() for name, value in HEADERS}
        return Response(problem_page(request.scope, problem), problem.status, media_type="text/html", headers=headers)
    return Response(problem.body(), problem.status, media_type=CONTENT_TYPE.decode(), headers=headers)


def exposition(families: Iterable[Metric]) -> bytes:
    """Print families for Prometheus. A thousand series take some 10 ms: no event loop should wait for that."""
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


CAUSES_OF_PROCESS = (MEMORY, CREDENTIALS, ISSUERS, TLS)
"""The causes that degrade a whole process, whatever it serves."""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """The functions that ask this process for its state."""

    status: Callable[[], Status]
    dead: Callable[[], str | None]
    """Returns the reason why the process must end; None while it works."""
    metrics: Callable[[], Iterable[Metric]]
    """Returns all families of the process."""
    of_application: Callable[[], Iterable[Metric]] = tuple
    """Returns the families of the application alone: in a fleet, the process has the others once."""

    def status_of_application(self) -> Status:
        """Return the status without the causes of the process: in a fleet, the process reports them once."""
        found = self.status()
        causes = {cause: why for cause, why in found.causes.items() if cause not in CAUSES_OF_PROCESS}
        return Status(found.reasons, causes)


def degraded_metric(name: str, known: Iterable[str], causes: Collection[str]) -> Metric:
    """Return the family with 1 or 0 for each `known` cause: whether it is present."""
    family = GaugeMetricFamily(name, "1: this does not work although lookups do", labels=("cause",))
    for cause in known:
        family.add_metric((cause,), cause in causes)
    return family


def probe_routes(report: ProcessReport) -> APIRouter:
    """Make /livez, /readyz and /metrics."""
    routes = APIRouter()

    @routes.get("/healthz")
    @routes.get("/livez")
    async def livez(request: Request) -> Response:
        """Report that the event loop turns and no background task died."""
        dead = report.dead()
        shown = shown_status(authorization_of(request.scope).principal, {"alive": dead is None, "reason": dead})
        return json_response(shown, 200 if dead is None else 503)

    @routes.get("/readyz")
    async def readyz(request: Request) -> Response:
        """Report whether this process can answer lookups; lag does not matter here."""
        status = report.status()
        shown = shown_status(authorization_of(request.scope).principal, status.document())
        return json_response(shown, status.http_status)

    @routes.get("/metrics")
    async def prometheus(request: Request) -> Response:
        """Return the exposition for Prometheus."""
        text = await asyncio.to_thread(exposition, list(report.metrics()))
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return routes
