"""The state that all calls of a client share: its servers, its budget for retries, its position and its credential
(pure).

The position is the newest that any answer had. Threads and tasks share it, and it only goes forward, except that a
position of another history replaces it: the old one means nothing there.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, Literal

from understudy.client.core.exchange import Endpoint, Headers, Request, Servers, parse_endpoint
from understudy.client.core.values import application_segment
from understudy.client.credentials import Credential, credential
from understudy.client.errors import UsageError
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.throttles import FADE_MS, RetryBudget
from understudy_shared.reads.tokens import OtherLineageError, Position, decode_position

URL = "UNDERSTUDY_URL"
DEFAULT_URL = "http://127.0.0.1:8080"

RETRY_PERCENT, RETRY_PER_S = 10.0, 0.3
"""The retries that a client earns: one for ten calls, and three in ten seconds while it calls rarely."""

Duration = timedelta | float
"""A duration, or seconds."""

Routing = Literal["routers", "direct"]
"""The servers that are asked for keys: routers, or the nodes that hold them."""

_ACCEPTED = (("accept", "application/json"), ("accept-encoding", "identity"), ("user-agent", "understudy-python"))
_JSON_BODY = (("content-type", "application/json"),)


class SessionPosition:
    """The newest position, and its token as a server gave it."""

    def __init__(self) -> None:
        self.token: str | None = None
        self._position: Position | None = None
        self._locks: dict[int, threading.Lock] = {}

    def observe(self, token: object) -> None:
        """Take the position of an answer into account. Anything else is left out."""
        if token == self.token or not isinstance(token, str):
            return
        try:
            position = decode_position(token)
        except UnderstudyError:
            return
        with self._lock():
            self._merge(position, token)

    def forget(self, token: str) -> None:
        """Drop a position if a server says that its history is gone, unless a newer one replaced it."""
        with self._lock():
            if self.token == token:
                self.token = self._position = None

    def _merge(self, position: Position, token: str) -> None:
        known = self._position
        try:
            merged = position if known is None else known.merge(position)
        except OtherLineageError:
            merged = position
        if merged is not known:
            self._position, self.token = merged, token

    def _lock(self) -> threading.Lock:
        """Return the lock of this process: a parent's may have been held when it forked."""
        return self._locks.setdefault(os.getpid(), threading.Lock())


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a client, checked. Times are in seconds."""

    timeout_s: float
    scan_timeout_s: float
    retries: int
    session: bool


class ClientState:
    """The state that the calls of one client share."""

    def __init__(
        self,
        settings: Settings,
        endpoints: Sequence[Endpoint],
        shown: Credential,
        *,
        rng: random.Random | None = None,
        now_s: Callable[[], float] = monotonic,
        trace: str | None = None,
    ) -> None:
        self.application: str | None = None
        """The application that all requests name; None: the server's only one, or the only one with the store."""
        self._segment = ""
        self.settings = settings
        self.now_s = now_s
        self._trace = trace
        self.rng = rng or random.SystemRandom()  # not one that forked children have in common: it spreads load
        self.servers = Servers(endpoints, self.rng)
        self.credential = shown
        self.position = SessionPosition()
        # As one that was quiet for a while: the first call may be retried.
        self.budget = RetryBudget(percent=RETRY_PERCENT, per_s=RETRY_PER_S, now_ms=now_s() * 1000 - FADE_MS)
        self.is_direct = False
        """Whether readers ask the nodes that hold a key."""
        self.addresses: Mapping[str, str] | None = None
        """The addresses of nodes, by those that the routers name, where they differ; only with direct routing."""
        self.codecs: dict[tuple[str, bool], Any] = {}
        """The codecs of keys, by their store and whether they are of its windows; only of stores that need one."""
        self._headers: tuple[str, Headers, Headers] = ("", _ACCEPTED, (*_ACCEPTED, *_JSON_BODY))

    def within(self, application: str) -> ClientState:
        """Return the state of calls to one application: its position and its nodes are its own, all else is shared.

        Raises UsageError.
        """
        inner = copy(self)
        inner.application, inner._segment = application, application_segment(application)  # noqa: SLF001  # of the same class
        inner.position, inner.codecs = SessionPosition(), {}
        return inner

    def named(self, request: Request) -> Request:
        """Return a request whose path names the application."""
        if not self._segment:
            return request
        root, version, rest = request.target.partition("/v1/")
        return request._replace(target=f"{root}/v1/applications/{self._segment}/{rest}") if version else request

    def deadline_s(self, timeout: Duration | None, *, is_scan: bool = False) -> float:
        """Return the end of a call that begins now. Raises UsageError for a timeout that is not a positive number."""
        if timeout is None and not is_scan:  # nearly all calls
            return self.now_s() + self.settings.timeout_s
        return self.now_s() + self.timeout_s(timeout, is_scan=is_scan)

    def timeout_s(self, timeout: Duration | None, *, is_scan: bool = False) -> float:
        """Return the time of a call in seconds. Raises UsageError for a timeout that is not a positive number."""
        if timeout is not None:
            return seconds(timeout, "timeout")
        return self.settings.scan_timeout_s if is_scan else self.settings.timeout_s

    def headers(self, request: Request) -> Headers:
        """Return the headers of a request, besides those of the connection."""
        key, of_get, of_body = self._headers
        if key != self.credential.key:
            key = self.credential.key
            shown = (("authorization", f"Bearer {key}"),) if key else ()
            of_get = (*_ACCEPTED, *shown)
            of_body = (*of_get, *_JSON_BODY)
            self._headers = (key, of_get, of_body)
        headers = of_get if request.body is None else of_body
        if request.streams:
            # No other request follows a stream on its connection.
            headers = (("accept", ", ".join(request.streams)), *headers[1:], ("connection", "close"))
            if request.last_event_id:
                headers = (*headers, ("last-event-id", request.last_event_id))
        trace = traceparent() or self._trace
        return headers if trace is None else (*headers, ("traceparent", trace))


def seconds(value: Duration, name: str) -> float:
    """Return a duration in seconds. Raises UsageError unless it is above zero and finite."""
    found = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(found, (int, float)) and not isinstance(found, bool) and 0 < found < 1e6:
        return float(found)
    raise UsageError(
        f"{name}={value!r} is not a time", where=name, fix=f"Give {name}=timedelta(seconds=5), or a number of seconds"
    )


def client_state(
    urls: str | Sequence[str] | None,
    *,
    api_key: str | None,
    api_key_file: str | os.PathLike[str] | None,
    timeout: Duration,
    scan_timeout: Duration,
    retries: int,
    session: bool,
    routing: Routing,
    addresses: Mapping[str, str] | None,
    environ: Mapping[str, str],
    application: str | None = None,
) -> ClientState:
    """Check what a client was given, and return its state. Raises UsageError."""
    named = environ.get(URL, DEFAULT_URL).split(",") if urls is None else [urls] if isinstance(urls, str) else [*urls]
    endpoints = list(dict.fromkeys(parse_endpoint(url.strip()) for url in named))
    if not endpoints:
        raise UsageError("a client needs the URL of a server", where="urls", fix=f"Give one, or set {URL}")
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries <= 10:
        raise UsageError(f"retries={retries!r} is not a number from 0 to 10", where="retries", fix="Give retries=2")
    settings = Settings(
        timeout_s=seconds(timeout, "timeout"),
        scan_timeout_s=seconds(scan_timeout, "scan_timeout"),
        retries=retries,
        session=session,
    )
    if routing not in ("routers", "direct"):
        raise UsageError(f"routing={routing!r} is not a choice", where="routing", fix="Give 'routers' or 'direct'")
    state = ClientState(settings, endpoints, credential(environ, api_key, api_key_file))
    if routing == "direct":
        state.is_direct, state.addresses = True, addresses
    elif addresses is not None:
        fix = "Give routing='direct', too, or leave addresses out"
        raise UsageError("addresses of nodes are only used with direct routing", where="addresses", fix=fix)
    return state if application is None else state.within(application)


def traceparent() -> str | None:
    """Return the header of the active span; None without one. OpenTelemetry is asked only where it is loaded."""
    current, api = sys.modules.get("opentelemetry.context"), sys.modules.get("opentelemetry.trace")
    if current is None or api is None or not current.get_current():  # an empty context has no span
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
