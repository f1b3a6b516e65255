"""Calls of commands to nodes and routers, through the core of the Python client, which fails over between servers.

Rule: a server's answer reaches the command byte for byte. Failures are a `CommandError` in the words of the command
line: flags instead of parameters. Values and the user's own words stay.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import orjson

from understudy.calls.credentials import FIXES, UNTRUSTED_FIX, client_context, shown_credential
from understudy.client import errors
from understudy.client.core.call import Call
from understudy.client.core.exchange import Endpoint, Failure, Opened, Reply, Request, Send, Steps, parse_endpoint
from understudy.client.core.state import ClientState, Settings
from understudy.client.credentials import Trust
from understudy.client.driver import Driver
from understudy.client.transports.base import Stream, Transport
from understudy.client.transports.sockets import SocketTransport
from understudy.terminal.exits import CommandError, ExitCode
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.texts import printable
from understudy_shared.reads.bound_parsing import BOUNDS, SELECTION
from understudy_shared.telemetry.spans import parse_traceparent

_LONG = tuple(name for name in (*BOUNDS, *SELECTION) if "_" in name)
_ORDINARY = (
    *(name for name in (*BOUNDS, *SELECTION) if "_" not in name),
    *("longs", "partition", "prefix", "where", "fields", "estimate", "from", "to"),
)
"""Parameters that are also English words: they count only with a value or in quotes."""

_ALL = "|".join((*_LONG, *_ORDINARY))
_WITH_VALUE = re.compile(rf"(?<![\w.'/-])({_ALL})=([\w{{}}-]+)")
_ALONE = re.compile(rf"'({_ALL})'|(?<![\w.'/=-])({'|'.join(_LONG)})(?![\w=])")


def _as_arguments(found: re.Match[str]) -> str:
    words = " ".join(found[1].split("/"))
    return f"Give an argument for each column, two for a window, as understudy get STORE {words}"


_PHRASES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\bSend (?=--)"), "Give "),
    (re.compile(r" \(the plus of an offset as %2B\)"), ""),
    (re.compile(r"\bSend for example (?=--)"), "Give for example "),
    (re.compile(r"\bSend lookup\?key=<([^>]*)>, percent-encoded"), r"Write understudy lookup STORE '<\1>'"),
    (re.compile(r"\bSend a segment for each column, two for a window, as keys/(.*)"), _as_arguments),
    (re.compile(r"^keys/(.*)(?= is not a key of this store: )"), lambda found: " ".join(found[1].split("/"))),
    (re.compile(r"(?<= it has )(\d+) path segments?(?=, the key takes )"), r"\1 parts"),
    (re.compile(r"\bGET /admin/v1/lag\b"), "understudy lag"),
    (re.compile(r"\bGET /v1/stores (?=lists)"), "understudy stores "),
    (re.compile(r"\bGET /v1/applications lists\b"), "understudy applications list shows"),
    (re.compile(r"\bGET /v1/applications/\{application\} (?=says)"), "understudy applications show APPLICATION "),
    (re.compile(r"\bName the application: [^\s;]+"), "Name the application with --application"),
    (re.compile(r"\bname the application$"), "name the application with --application"),
    (
        re.compile(r"^nothing is at \S+ of a service of several applications"),
        "this server has several applications, and this asks one of them",
    ),
    (re.compile(r"^nothing is at /(?:admin/)?v1/applications\b.*"), "this server has one application, not several"),
    (re.compile(r"^nothing is at /.*"), "this server has no such answer"),
    (re.compile(r"^Try /v1/stores, .*"), "Leave --application out; or name a node, a router or a fleet with --url"),
)
_PLACES = {"path": "STORE KEY", "query": "options", "bounds": "options", "query parameter 'key'": "KEY"}


def in_flags(text: str) -> str:
    """Translate a sentence of a problem, with flags for parameters: `max_lag=0` is `--max-lag 0`."""
    text = _ALONE.sub(lambda found: _flag(found[1] or found[2]), _WITH_VALUE.sub(_valued, text))
    for pattern, words in _PHRASES:
        text = pattern.sub(words, text)
    return text


def place_in_flags(where: str) -> str:
    """Name the part of the command that was wrong: `STORE KEY` for the path of its request, a flag for a parameter."""
    return _PLACES.get(where) or (_flag(where) if where in (*_LONG, *_ORDINARY) else in_flags(where))


def _valued(found: re.Match[str]) -> str:
    name, value = found[1], found[2]
    if (name, value) in {("require_active", "true"), ("include_expired", "true")}:
        return _flag(name)
    return "--no-include-expired" if (name, value) == ("include_expired", "false") else f"{_flag(name)} {value}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


T = TypeVar("T")

STREAM_TIMEOUT_S = 60.0
"""Time without bytes after which a stream counts as cut. Its server looks for another replica for 20 s."""

EXPORT_TYPES = ("application/x-ndjson", "text/csv", "application/vnd.apache.arrow.stream")
_OVERVIEW = "/admin/v1/applications"
_READ_BYTES = 256 * 1024
_NOT_THE_CALLERS_FAULT = {401, 403, 409, 410, 421, 429}
"""Statuses below 500 that do not blame the request: the same request may work later or at another server."""


class ReportedProblemError(CommandError):
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


class Streamed(NamedTuple):
    """An answer that is read while it comes."""

    headers: Mapping[str, str]
    body: io.BufferedIOBase


class RemoteServer:
    """The nodes or routers at `url`, with commas between several; `http://` may be left out. Calls show the key of the
    environment. Each server is asked once in a call: scripts that try again decide so themselves.
    """

    def __init__(self, url: str, *, timeout_s: float, is_own: bool = False, application: str | None = None) -> None:
        """Prepare calls. `is_own`: this process started the server, so neither side has to prove its identity.
        `application`: the application of a fleet that all calls except probes are for.
        """
        endpoints = [server_endpoint(each.strip()) for each in url.split(",")]
        self.url = ", ".join(each.url for each in endpoints)
        self._timeout_s = timeout_s
        settings = Settings(timeout_s, timeout_s, retries=len(endpoints) - 1, session=False)
        trace = parse_traceparent(os.environ.get("TRACEPARENT", ""))  # this command is a part of that trace
        state = ClientState(
            settings, endpoints, shown_credential(os.environ), trace=None if trace is None else trace.traceparent
        )
        self.state = state if application is None else _within(state, application)
        self.driver = Driver(self.state, _transport(endpoints, is_own=is_own))

    def __enter__(self) -> RemoteServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.transport.close()

    def get(self, path: str, parameters: Mapping[str, str] | None = None, *, wait_ms: int = 0) -> bytes:
        """Return the JSON of a reply. The timeout comes on top of `wait_ms`, which the server was asked to wait."""
        return self._call(Request("GET", _with_query(path, parameters), None, wait_ms / 1000)).body

    def get_or_overview(self, path: str) -> bytes:
        """Return the report of one application; the overview of all where a router of a fleet is asked for it."""
        try:
            return self.get(path)
        except ReportedProblemError as problem:
            if problem.slug != "unknown-path":
                raise
            try:
                return self.get(_OVERVIEW)
            except CommandError:
                raise problem from None

    def post(
        self, path: str, content: bytes, parameters: Mapping[str, str] | None = None, *, wait_ms: int = 0
    ) -> bytes:
        """Return the JSON of a reply to a JSON body."""
        return self._call(Request("POST", _with_query(path, parameters), content, wait_ms / 1000)).body

    def delete(self, path: str) -> bytes:
        """Return the body of the reply to a DELETE, which may be empty."""
        return self._call(Request("DELETE", path)).body

    @contextmanager
    def streamed(self, path: str, content: bytes, *, wait_ms: int = 0) -> Iterator[Streamed]:
        """Give the answer to a JSON body as a stream. Raises as `post` does, before the stream is read. A server may
        take longer between two parts of it than for other answers.
        """
        limit_s = max(self._timeout_s, STREAM_TIMEOUT_S)
        request = Request("POST", path, content, wait_ms / 1000, EXPORT_TYPES)
        opened = self._call(request, limit_s).document
        assert isinstance(opened, Opened)
        with io.BufferedReader(StreamBody(opened.stream, limit_s), _READ_BYTES) as body:
            yield Streamed(opened.headers, body)

    def opened(self, path: str, deadline_s: float) -> Opened | Reply | Failure:
        """Return any document unread, or the failure, by a deadline. Failures are not raised."""
        request = Request("GET", path, streams=("*/*",))
        endpoint = self.state.servers.best(monotonic(), ())
        return self.driver.transport.open(
            Send(endpoint, self.state.named(request), self.state.headers(request), deadline_s)
        )

    def not_ready(self) -> list[str]:
        """Return why the server says that it is not ready; empty when it is. A silent server is not ready either."""
        request = Request("GET", "/readyz")
        endpoint = self.state.servers.best(monotonic(), ())
        reply = self.driver.transport.exchange(
            Send(endpoint, request, self.state.headers(request), monotonic() + self._timeout_s)
        )
        if isinstance(reply, Failure):
            return [f"it does not answer: {reply.why}"]
        document = _json(reply.body)
        reasons = document.get("reasons") if isinstance(document, dict) else None
        return list(map(str, reasons)) if isinstance(reasons, list) else [f"/readyz has status {reply.status}"]

    @contextmanager
    def failing_clearly(self, limit_s: float) -> Iterator[None]:
        """Raise the `CommandError` of what the client raises."""
        try:
            yield
        except CommandError:
            raise
        except UnderstudyError as error:
            raise command_error(error, self.url, limit_s) from None

    def take(self, steps_by: Callable[[float], Steps[T]]) -> T:
        """Run steps of the client's core until a deadline, and return their result. Raises CommandError."""
        with self.failing_clearly(self._timeout_s):
            return self.driver.run(steps_by(monotonic() + self._timeout_s))

    def _call(self, request: Request, limit_s: float | None = None) -> Call:
        limit_s = self._timeout_s if limit_s is None else limit_s
        call = Call(self.state, request, monotonic() + limit_s + request.wait_s)
        with self.failing_clearly(limit_s + request.wait_s):
            self.driver.run(call.steps())
        return call


class StreamBody(io.RawIOBase):
    """The body of a stream as a file. A stream that was cut is an `OSError`."""

    def __init__(self, stream: Stream, limit_s: float) -> None:
        self._stream, self._limit_s = stream, limit_s
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            piece = self._stream.receive(monotonic() + self._limit_s)
            if isinstance(piece, Failure):
                raise OSError(piece.why)
            self._left = memoryview(piece)
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


def command_error(error: UnderstudyError, url: str, limit_s: float) -> CommandError:
    """Return the error of a command for an error of the client, which was asked at `url` within a time."""
    match error:
        case errors.ServerProblemError():
            return ReportedProblemError(error.problem, error.body)
        case errors.DeadlineError():
            what, fix = f"there was no answer within {limit_s:g} s", "Try again, or wait longer with --timeout-s"
        case errors.UnreachableError() if not isinstance(error, errors.WrongKeyError):
            return _unreachable(error, url)
        case _:
            is_usage = isinstance(error, errors.UsageError)
            code = ExitCode.USAGE if is_usage else ExitCode.REFUSED
            return CommandError(error.what, where=error.where, fix=error.fix, exit_code=code)
    return CommandError(what, where=url, fix=fix, exit_code=ExitCode.UNREACHABLE)


def _unreachable(error: errors.UnreachableError, url: str) -> CommandError:
    why = printable(error.attempts[-1].why if error.attempts else error.what).removeprefix("cannot connect: ")
    if isinstance(error, errors.BadReplyError) and why.startswith("status "):
        return CommandError(
            f"the reply is not one of an Understudy server: {why}",
            fix="Check --url: it names a node or router, with the path under which a proxy publishes it, if any",
            exit_code=ExitCode.REFUSED,
        )
    if why.startswith("by TLS: "):
        is_plain = "does not speak TLS" in why
        fix = "Write http://, or name the port for TLS" if is_plain else UNTRUSTED_FIX
        return CommandError(f"cannot reach the server {why}", where=url, fix=fix, exit_code=ExitCode.UNREACHABLE)
    fix = "Start one with: understudy serve CHECKPOINT; or name another with --url or UNDERSTUDY_URL"
    return CommandError(f"cannot reach the server: {why}", where=url, fix=fix, exit_code=ExitCode.UNREACHABLE)


def _transport(endpoints: list[Endpoint], *, is_own: bool) -> Transport:
    """Return sockets, or what asks through the proxy that is set for the servers."""
    context = client_context(os.environ, is_own=is_own) if any(each.scheme == "https" for each in endpoints) else None
    if any(name.lower().endswith("_proxy") for name in os.environ):
        from understudy.calls.proxied import ProxiedTransport, is_proxied  # noqa: PLC0415  # urllib is slow to import

        if is_proxied(endpoints[0]):
            return ProxiedTransport(context)
    return SocketTransport(Trust({}, context))


def _with_query(path: str, parameters: Mapping[str, str] | None) -> str:
    return f"{path}{'&' if '?' in path else '?'}{urlencode(parameters)}" if parameters else path


def server_endpoint(url: str) -> Endpoint:
    """Return the address of a server. Raises CommandError when it does not name one."""
    try:
        return parse_endpoint(url)
    except errors.UsageError as error:
        fix = "Leave it out; set UNDERSTUDY_API_KEY_FILE" if "login" in error.what else error.fix
        raise CommandError(error.what, where="--url", fix=fix, exit_code=ExitCode.USAGE) from None


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


def _within(state: ClientState, application: str) -> ClientState:
    try:
        return state.within(application)
    except errors.UsageError as error:
        raise CommandError(error.what, where="--application", fix=error.fix, exit_code=ExitCode.USAGE) from None
