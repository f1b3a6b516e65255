"""The problems that a client reads when the protocol refuses its request or its connection."""

from __future__ import annotations

from understudy_shared.http.edge import App, Receive, Scope, Send, send_problem
from understudy_shared.http.problems import CONTENT_TYPE, Problem, ProblemType
from understudy_shared.server.connection_limits import MAX_HEADER_BYTES, MAX_REQUEST_TARGET_BYTES, ConnectionRefusal
from understudy_shared.server.direct import response

_PROBLEMS = {
    ConnectionRefusal.MALFORMED: Problem(
        ProblemType.BAD_REQUEST, "this is not HTTP/1.1", fix="Send an HTTP/1.1 request"
    ),
    ConnectionRefusal.HOST: Problem(
        ProblemType.BAD_REQUEST, "the request does not name one host", fix="Send one Host header"
    ),
    ConnectionRefusal.HEADER_SIZE: Problem(
        ProblemType.HEADERS_TOO_LARGE,
        f"the headers are above {MAX_HEADER_BYTES} bytes",
        fix="Send fewer or shorter headers",
    ),
    ConnectionRefusal.TARGET_SIZE: Problem(
        ProblemType.TARGET_TOO_LONG,
        f"the request target is above {MAX_REQUEST_TARGET_BYTES} bytes",
        fix="Send keys in the body of a batch lookup",
    ),
    ConnectionRefusal.HEADER_TIME: Problem(
        ProblemType.REQUEST_TIMEOUT, "the headers did not come in time", fix="Send them at once"
    ),
    ConnectionRefusal.BODY_TIME: Problem(
        ProblemType.REQUEST_TIMEOUT, "the body did not come in time", fix="Send it at once"
    ),
    ConnectionRefusal.CONNECTIONS: Problem(
        ProblemType.OVERLOADED, "there are too many connections", fix="Retry after a second"
    ),
    ConnectionRefusal.MEMORY: Problem(ProblemType.OVERLOADED, "memory is short", fix="Retry after a second"),
}


def says_why(refusal: ConnectionRefusal) -> Problem | None:
    """Return the problem of a refusal; None if the connection is closed without one."""
    return _PROBLEMS.get(refusal)


def problem_response(problem: Problem) -> bytes:
    """Return the last response of a connection."""
    return response(problem.status, CONTENT_TYPE, problem.body(), problem.headers, close=True)


def refusing(refusal: ConnectionRefusal) -> App:
    """Return the application that answers with the problem of a refusal."""
    problem = _PROBLEMS[refusal]

    async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_problem(send, problem)

    return refuse
