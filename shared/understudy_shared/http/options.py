"""The answers to OPTIONS, and to HEAD at probes, in front of all applications of a service.

HAProxy's bare `option httpchk` sends `OPTIONS /`: it gets the answer of `/readyz`. Elsewhere OPTIONS is answered with
the methods that a path takes. A browser's preflight is answered before (`cors.py`).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from understudy_shared.http.edge import App, Receive, Scope, Send

_PROBES = frozenset((b"/livez", b"/healthz", b"/readyz"))
_OF_PROBES = b"GET, HEAD, OPTIONS"
_OF_THE_REFUSAL = frozenset((b"allow", b"content-length", b"content-type"))


def read_instead(scope: Scope) -> Scope | None:
    """Return the GET whose answer a request gets: OPTIONS and HEAD of a probe are answered like it. None for others."""
    method, path = scope["method"], scope["raw_path"]
    if method == "OPTIONS" and path == b"/":
        path = b"/readyz"
    if method not in {"HEAD", "OPTIONS"} or path not in _PROBES:
        return None
    return {**scope, "method": "GET", "raw_path": path, "path": path.decode()}


def as_probe(app: App, read: Scope) -> App:
    """Return the application that answers with what `app` answers to `read`, and with the methods that probes take."""

    async def answer(_: Scope, receive: Receive, send: Send) -> None:
        async def with_methods(message: MutableMapping[str, Any]) -> None:
            is_start = message["type"] == "http.response.start"
            await send({**message, "headers": [*message["headers"], (b"allow", _OF_PROBES)]} if is_start else message)

        await app(read, receive, with_methods)

    return answer


def saying_methods(app: App) -> App:
    """Return the application that answers OPTIONS with the methods that `app` names where it refuses it."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_refused = False

        async def with_methods(message: MutableMapping[str, Any]) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start" and message["status"] == 405:
                is_refused = True
                methods = dict(message["headers"])[b"allow"] + b", OPTIONS"
                kept = [each for each in message["headers"] if each[0] not in _OF_THE_REFUSAL]
                await send({**message, "status": 204, "headers": [*kept, (b"allow", methods)]})
            else:
                await send({**message, "body": b""} if is_refused else message)

        await app(scope, receive, with_methods)

    return answer
