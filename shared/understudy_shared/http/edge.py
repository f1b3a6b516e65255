"""Plain ASGI for the hot path of nodes and routers: a framework's routing costs several times as much as a lookup.

A proxy may publish a service under a prefix (ASGI's `root_path`). If the proxy strips the prefix, no setting is needed,
because links of pages are relative. If it passes the prefix on, the setting must name it. Requests are then answered
with and without the prefix, so probes and nodes need not know it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import orjson

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.texts import clipped
from understudy_shared.http.problems import CONTENT_TYPE, Problem, ProblemError, ProblemType
from understudy_shared.http.target import application_target, refuse_unroutable

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON_TYPE = b"application/json"
NOSNIFF = (b"x-content-type-options", b"nosniff")
"""Header that every answer gets: a browser must not take an answer for a script or a page."""

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Limit on a body: room for 1,000 keys of 8 KiB, or for 100 of the longest keys accepted by default."""

MAX_FLAG_BYTES = 1024

ASKED_PATH: Final = "understudy.asked_path"
"""The key in the scope of a request for its original path, if that named an application."""

log = logging.getLogger(__name__)


def enter(scope: Scope, inner: bytes) -> None:
    """Replace the path of a request by `inner`, its path within the application that it named.

    Raises a problem if the path is ambiguous, or names a second application: the grant holds only for the first one.
    """
    refuse_unroutable(scope["raw_path"])
    if application_target(inner)[0] is not None:
        raise ProblemError(Problem(ProblemType.UNKNOWN_PATH, "the path names an application within another", "path"))
    scope[ASKED_PATH] = scope["raw_path"]
    scope["raw_path"], scope["path"] = inner, unquote_to_bytes(inner).decode(errors="replace")


async def read_body(receive: Receive, *, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Read the whole body. Raises a too-large problem before the body takes more than `max_bytes`."""
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ProblemError(Problem(ProblemType.BAD_REQUEST, "the client left before its body was whole"))
        part = message.get("body", b"")
        size_bytes += len(part)
        if size_bytes > max_bytes:
            raise ProblemError(
                Problem(ProblemType.TOO_LARGE, f"the body is above {max_bytes} bytes", fix="Send several batches")
            )
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def read_flag(receive: Receive, name: str, *, default: bool) -> bool:
    """Read the flag in a body of `{name: boolean}`; `default` without a body.

    Raises a problem for any other body: a misread flag would do the opposite of the request.
    """
    body = await read_body(receive, max_bytes=MAX_FLAG_BYTES)
    if not body:
        return default
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    flag = found.get(name, default) if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(flag, bool):
        raise _bad_flag(name, f"{name} must be true or false")
    unknown = sorted(found.keys() - {name})
    if unknown:
        raise _bad_flag(name, f"unknown member {clipped(unknown[0])}")
    return flag


def _bad_flag(name: str, what: str) -> ProblemError:
    return ProblemError(Problem(ProblemType.BAD_REQUEST, what, f"body.{name}", f'Send {{"{name}": true}}'))


async def send_reply(
    send: Send, status: int, body: bytes, content_type: bytes, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send one whole response."""
    head = [(b"content-type", content_type), NOSNIFF, (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def send_problem(send: Send, problem: Problem) -> None:
    """Send a problem as one whole response."""
    await send_reply(send, problem.status, problem.body(), CONTENT_TYPE, problem.headers)


def without_body(send: Send) -> Send:
    """Return a `send` for the answer to HEAD: it sends only the head, with its content-length."""

    async def send_head(message: MutableMapping[str, Any]) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return send_head


def adding(headers: Iterable[tuple[bytes, bytes]], send: Send) -> Send:
    """Return a `send` that adds these headers to the response."""

    async def send_with_headers(message: MutableMapping[str, Any]) -> None:
        is_start = message["type"] == "http.response.start"
        await send({**message, "headers": [*message["headers"], *headers]} if is_start else message)

    return send_with_headers


def bug(error: Exception) -> Problem:
    """Log an unexpected error with its traceback, and return the internal problem for it."""
    log.error("a request failed unexpectedly", exc_info=error, extra={"action": "request-bug"})
    return Problem(ProblemType.INTERNAL, f"{type(error).__name__}: {error}", fix="Report it, with the log")


def not_allowed(method: str, allow: str) -> Problem:
    """Return the problem of a method that the path does not accept; `allow` lists the accepted ones."""
    detail = f"{method} is not taken at this path"
    return Problem(ProblemType.METHOD_NOT_ALLOWED, detail, fix=f"Send {allow}", allow=allow)


ROOT_PATH: Final = "understudy.root_path"
"""The key in the scope of a request for the setting. With ASGI's own key, the framework would strip the prefix again,
from a path that was checked without it.
"""

_ROOT_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
_OUR_OWN = frozenset(("v1", "admin", "internal", "docs", "openapi.json", "metrics", "livez", "readyz", "healthz"))
_ROOT_FIX = "Write the prefix as the proxy has it: /understudy"
_INTERNAL = b"/internal/"


def parse_root_path(text: str) -> str:
    """Return the prefix without a slash at its end; "" without one. Raises SettingsError."""
    path = text.rstrip("/")
    first = path.partition("/")[2].partition("/")[0]
    if not _ROOT_PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
        why = "is not a path of segments of letters, digits, '-', '.', '_' and '~', each behind a slash"
    elif first in _OUR_OWN:
        why = f"begins like the service's own paths below /{first}"
    else:
        return path
    raise SettingsError(f"{text[:200]!r} {why}", where="root_path", fix=_ROOT_FIX)


def without_root(target: bytes, root_path: bytes) -> bytes:
    """Return a target without the prefix, or unchanged. Calls between services never have the prefix."""
    rest = target[len(root_path) :]
    if not target.startswith(root_path) or rest.startswith(_INTERNAL):
        return target
    return rest if rest.startswith(b"/") else b"/" + rest if not rest or rest.startswith(b"?") else target


def to_root(scope: Scope) -> str:
    """Return the relative reference from the page of a request to the root of the service, with a slash at its end."""
    path: bytes = scope.get(ASKED_PATH, scope["raw_path"])
    return "../" * (path.count(b"/") - 1) or "./"


def address_of(scope: Scope, path: str) -> str:
    """Return the address of a path of this service for the header `location`.

    It begins with the prefix if that is set. Otherwise it is relative, so that it also works behind a proxy that strips
    a prefix.
    """
    root_path: str = scope.get(ROOT_PATH, "")
    return f"{root_path}{path}" if root_path else f"{to_root(scope)}{path[1:]}"


def is_known(if_none_match: str, tag: str) -> bool:
    """Whether a request's `If-None-Match` names the tag of the answer.

    Tags are compared weakly: a compressed answer has the tag of the plain one.
    """
    known = {each.strip().removeprefix("W/") for each in if_none_match.split(",")}
    return "*" in known or tag.removeprefix("W/") in known
