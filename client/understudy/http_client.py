"""An HTTP call to a node or router, and the meaning of its reply. Every call has a timeout.

Rule: only a JSON body that says `found: false` means that a key is absent; any other 404 is an error.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from types import TracebackType
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request

import orjson

from understudy.credentials import FIXES, authorization
from understudy.exits import CommandError, ExitCode
from understudy.flag_words import in_flags, place_in_flags
from understudy.trust import UNTRUSTED_FIX, client_context
from understudy_shared.base.printable import printable
from understudy_shared.http.opener import url_opener
from understudy_shared.telemetry.trace import parse_traceparent
from understudy_shared.tls.trouble import TlsReason, tls_trouble

PROBLEM_TYPE = "application/problem+json"
STREAM_TIMEOUT_S = 60.0
"""Time without bytes after which a stream counts as cut. Its server looks for another replica for 20 s."""

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_NOT_THE_CALLERS_FAULT = {401, 403, 409, 410, 421, 429}
"""Statuses below 500 that do not blame the request: the same request may work later or at another server."""


class ServerProblemError(CommandError):
    """A problem that the server sent; `body` is its JSON as it came, `slug` its type."""

    def __init__(self, problem: Mapping[str, Any], body: bytes) -> None:
        self.slug = str(problem.get("type", ""))
        super().__init__(
            in_flags(printable(str(problem.get("detail") or problem.get("title") or "the server refused"))),
            where=place_in_flags(printable(str(problem.get("where", "")))),
            fix=FIXES.get(self.slug) or in_flags(printable(str(problem.get("fix", "")))),
            exit_code=problem_exit_code(problem),
            notes=[printable(candidate_line(candidate)) for candidate in problem.get("candidates", [])],
        )
        self.body = body


class ServerReply(NamedTuple):
    """The reply of a server."""

    status: int
    content_type: str
    body: bytes


class Server:
    """A node or router at `url`; `http://` may be left out. Each call has a connection of its own, and shows the key of
    the environment.
    """

    def __init__(self, url: str, *, timeout_s: float, is_own: bool = False) -> None:
        """Prepare calls. `is_own`: this process started the server, so neither side has to prove its identity."""
        self._url = server_url(url)
        self._authorization = authorization(os.environ)
        self._timeout_s = timeout_s
        context = client_context(os.environ, is_own=is_own) if self._url.startswith("https:") else None
        self._opener = url_opener(context, uses_proxies=urlsplit(self._url).hostname not in _LOOPBACK)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opener.close()

    def get(self, path: str, parameters: Mapping[str, str] | None = None, *, wait_ms: int = 0) -> bytes:
        """Return the JSON of a reply. The timeout comes on top of `wait_ms`, which the server was asked to wait."""
        return self._call("GET", path, parameters=parameters, content=None, wait_ms=wait_ms)

    def post(
        self, path: str, content: bytes, parameters: Mapping[str, str] | None = None, *, wait_ms: int = 0
    ) -> bytes:
        """Return the JSON of a reply to a JSON body."""
        return self._call("POST", path, parameters=parameters, content=content, wait_ms=wait_ms)

    @contextmanager
    def streamed(self, path: str, content: bytes, *, wait_ms: int = 0) -> Iterator[HTTPResponse]:
        """Give the answer to a JSON body, to be read while it comes. Raises as `post` does, before it is read. Between
        two parts of it a server may take longer than for others.
        """
        timeout_s = max(self._timeout_s, STREAM_TIMEOUT_S) + wait_ms / 1000
        with self._failing_clearly(timeout_s):
            response: HTTPResponse = self._opener.open(self._request("POST", path, content), timeout=timeout_s)
        with response:
            if response.status != HTTPStatus.OK:
                with self._failing_clearly(timeout_s):
                    body = response.read()
                reply_of(response.status, response.headers.get("Content-Type", ""), body)
            yield response

    def delete(self, path: str) -> None:
        """Send a DELETE, whose answer has no body."""
        self._call("DELETE", path, parameters=None, content=None, wait_ms=0)

    def not_ready(self) -> list[str]:
        """Return why the server says that it is not ready; empty when it is. A silent server is not ready either."""
        try:
            request = Request(self._url + "/readyz", None, self._authorization)  # noqa: S310  # checked: http or https
            reply = self._send(request, self._timeout_s)
        except (OSError, HTTPException, ValueError) as error:
            return [f"it does not answer: {_cause(error)}"]
        document = _json(reply.body)
        reasons = document.get("reasons") if isinstance(document, dict) else None
        return list(map(str, reasons)) if isinstance(reasons, list) else [f"/readyz has status {reply.status}"]

    def _call(
        self, method: str, path: str, *, parameters: Mapping[str, str] | None, content: bytes | None, wait_ms: int
    ) -> bytes:
        timeout_s = self._timeout_s + wait_ms / 1000
        query = f"?{urlencode(parameters)}" if parameters else ""
        with self._failing_clearly(timeout_s):
            reply = self._send(self._request(method, path + query, content), timeout_s)
        return reply_of(reply.status, reply.content_type, reply.body)

    def _request(self, method: str, target: str, content: bytes | None) -> Request:
        kind = {} if content is None else {"Content-Type": "application/json"}
        headers = {**kind, **_trace_header(), **self._authorization}
        return Request(self._url + target, content, headers, method=method)  # noqa: S310  # checked: http or https

    @contextmanager
    def _failing_clearly(self, timeout_s: float) -> Iterator[None]:
        """Raise CommandError for what fails on the way to the server."""
        try:
            yield
        except (OSError, HTTPException, ValueError) as error:
            cause = _cause(error)
            if isinstance(cause, TimeoutError):
                raise self._unreachable(
                    f"there was no answer within {timeout_s:g} s", "Try again, or wait longer with --timeout-s"
                ) from None
            trouble = tls_trouble(cause) if isinstance(cause, ssl.SSLError) else None
            if trouble is not None:
                plain = trouble.reason is TlsReason.NO_TLS
                fix = "Write http://, or name the port for TLS" if plain else UNTRUSTED_FIX
                raise self._unreachable(f"cannot reach the server by TLS: {trouble.why}", fix) from None
            raise self._unreachable(
                f"cannot reach the server: {cause}",
                "Start one with: understudy serve CHECKPOINT; or name another with --url or UNDERSTUDY_URL",
            ) from None

    def _send(self, request: Request, timeout_s: float) -> ServerReply:
        with self._opener.open(request, timeout=timeout_s) as response:
            return ServerReply(response.status, response.headers.get("Content-Type", ""), response.read())

    def _unreachable(self, what: str, fix: str) -> CommandError:
        return CommandError(what, where=self._url, fix=fix, exit_code=ExitCode.UNREACHABLE)


def _trace_header() -> dict[str, str]:
    """Return the trace that this command is a part of. A caller hands it over in the variable TRACEPARENT."""
    trace = parse_traceparent(os.environ.get("TRACEPARENT", ""))
    return {} if trace is None else {"traceparent": trace.traceparent}


def _cause(error: Exception) -> object:
    """Return the cause of an error: urllib wraps errors of the socket."""
    cause = error.reason if isinstance(error, URLError) else error
    return cause if isinstance(cause, TimeoutError) or str(cause) else type(cause).__name__


def server_url(url: str) -> str:
    """Return the URL of a server without a slash at its end. Raises CommandError when it does not name a server."""
    whole = (url if "://" in url else f"http://{url}").rstrip("/")
    try:
        parts = urlsplit(whole)
        is_url = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:  # brackets that do not match, a port that is not a number
        is_url = False
    if not is_url or not parts.hostname or not whole.isascii() or not whole.isprintable() or " " in whole:
        raise CommandError(
            f"{url!r} is not a server's URL",
            where="--url",
            fix="Write for example http://127.0.0.1:8080",
            exit_code=ExitCode.USAGE,
        )
    return whole


def reply_of(status: int, content_type: str, body: bytes) -> bytes:
    """Return the body of an answer. Raises ServerProblemError for a problem, CommandError for a foreign reply."""
    if status == 204:
        return b""
    kind = content_type.partition(";")[0].strip().lower()
    document = _json(body)
    if kind == PROBLEM_TYPE and isinstance(document, dict):
        raise ServerProblemError(document, body)
    is_absent_key = status == 404 and isinstance(document, dict) and document.get("found") is False
    if kind == "application/json" and isinstance(document, dict) and (status < 300 or is_absent_key):
        return body
    raise CommandError(
        f"the reply is not one of an Understudy server: status {status}, {kind or 'no content type'}",
        fix="Check --url: it names a node's or router's address without a path",
        exit_code=ExitCode.REFUSED,
    )


def problem_exit_code(problem: Mapping[str, Any]) -> ExitCode:
    """Return 2 when the request was wrong, 3 when it was right and is not answered."""
    status = problem.get("status")
    is_callers_fault = isinstance(status, int) and 400 <= status < 500 and status not in _NOT_THE_CALLERS_FAULT
    return ExitCode.USAGE if is_callers_fault else ExitCode.REFUSED


def candidate_line(candidate: Mapping[str, Any]) -> str:
    """Print a replica that may not answer, and why."""
    host, port = candidate.get("host", "?"), candidate.get("port", "?")
    facts = [str(candidate[name]) for name in ("role", "state") if candidate.get(name)]
    facts += [
        f"{label} unknown" if candidate[name] is None else f"{label} {candidate[name]}{unit}"
        for name, label, unit in (
            ("version", "version", ""),
            ("offset_lag", "versions behind", ""),
            ("time_lag_ms", "time lag", " ms"),
        )
        if name in candidate
    ]
    return f"{host}:{port}: {candidate.get('reason', 'no reason given')} ({', '.join(facts)})"


def path_segment(text: str) -> str:
    """Quote a path segment so that it arrives as `text`: dots too, which clients would resolve as folders."""
    return {".": "%2E", "..": "%2E%2E"}.get(text) or quote(text, safe="", errors="surrogateescape")


def _json(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
