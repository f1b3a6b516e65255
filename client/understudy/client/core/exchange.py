"""The servers of a client, and the steps of a call: the core says what to do next, and a shell what came of it (pure).

Time is passed in.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Generator, Hashable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from understudy.client.errors import UsageError

_DEFAULT_PORTS = {"http": 80, "https": 443}

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
"""Shortest and longest pause: doubled with each failure in a row."""

MAX_PAUSES = 10_000
"""Most things that pause at once; with more of them all are forgotten."""

K = TypeVar("K", bound=Hashable)


class Pauses(Generic[K]):
    """The pauses of things of one kind: servers, or nodes with partitions."""

    def __init__(self, rng: random.Random) -> None:
        self.failing: dict[K, int] = {}
        """The number of failures in a row of what has not succeeded since."""
        self._rng = rng
        self._until_s: dict[K, float] = {}

    def left_s(self, thing: K, now_s: float) -> float:
        """Return how long it is left alone from now on."""
        return max(0.0, self._until_s.get(thing, 0.0) - now_s)

    def failed(self, thing: K, now_s: float, at_least_s: float = 0.0) -> None:
        """Leave it alone for a while."""
        if len(self.failing) >= MAX_PAUSES:
            self.failing.clear()
            self._until_s.clear()
        count = self.failing[thing] = min(self.failing.get(thing, 0) + 1, 16)
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (count - 1)) * self._rng.uniform(0.5, 1.0)
        self._until_s[thing] = now_s + max(pause_s, at_least_s)

    def succeeded(self, thing: K) -> None:
        """Forget its failures."""
        self.failing.pop(thing, None)
        self._until_s.pop(thing, None)


class Endpoint(NamedTuple):
    """A server's address. `tls_name` is the name of its certificate, where that is not its host; `prefix` is the path
    under which a proxy publishes the server.
    """

    scheme: str
    host: str
    port: int
    tls_name: str = ""
    prefix: str = ""

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"

    @property
    def server_name(self) -> str:
        """The name that the certificate of a server must have."""
        return self.tls_name or self.host

    @property
    def authority(self) -> str:
        """The value of the header `host`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(url: str) -> Endpoint:
    """Parse the URL of a server, with the path under which a proxy publishes it; `http://` may be left out.

    Raises UsageError.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:  # brackets that do not match, a port that is not a number
        host, port = None, None
    if not host or port == 0 or not (url.isascii() and url.isprintable()) or " " in url:
        raise _wrong(url, "it names no host and port")
    if parts.scheme not in _DEFAULT_PORTS:
        raise _wrong(url, "its scheme is not http or https")
    if parts.username is not None or parts.password is not None:
        raise UsageError("a URL has a login in it", where="urls", fix="Leave it out; give api_key or api_key_file")
    if parts.query or parts.fragment:
        raise _wrong(url, "it has a query or a fragment")
    return Endpoint(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], prefix=parts.path.rstrip("/"))


def _wrong(url: str, why: str) -> UsageError:
    return UsageError(f"{url!r} is not the URL of a server: {why}", where="urls", fix="Write http://127.0.0.1:8080")


class Servers:
    """The servers of a client. One is asked until it fails; then it comes last, for a pause that grows.

    Clients begin at different ones, so that they spread over routers.
    """

    def __init__(self, endpoints: Sequence[Endpoint], rng: random.Random) -> None:
        start = rng.randrange(len(endpoints))
        self.endpoints = (*endpoints[start:], *endpoints[:start])
        self._current = self.endpoints[0]
        self._pauses: Pauses[Endpoint] = Pauses(rng)

    def __repr__(self) -> str:
        return f"Servers({self._current.url} of {len(self.endpoints)}, {len(self._pauses.failing)} fail)"

    def best(self, now_s: float, tried: Collection[Endpoint]) -> Endpoint:
        """Return the server to ask next: the current one, unless it failed recently or was tried in this call."""
        if not tried and not self._pauses.failing:
            return self._current
        return min(self.endpoints, key=lambda each: self._rank(each, now_s, tried))

    def _rank(self, endpoint: Endpoint, now_s: float, tried: Collection[Endpoint]) -> tuple[bool, float, bool]:
        return endpoint in tried, self._pauses.left_s(endpoint, now_s), endpoint != self._current

    def answered(self, endpoint: Endpoint) -> None:
        """Ask this server first from now on."""
        self._current = endpoint
        if self._pauses.failing:
            self._pauses.succeeded(endpoint)

    def failed(self, endpoint: Endpoint, now_s: float, at_least_s: float = 0.0) -> None:
        """Ask this server last for a while."""
        self._pauses.failed(endpoint, now_s, at_least_s)


T = TypeVar("T")

Headers = tuple[tuple[str, str], ...]


class Request(NamedTuple):
    """A request to any server. Each can be sent twice: reads, and leases, which end by themselves.

    `wait_s` is how long the server was asked to wait; it comes on top of the call's time. `streams` are the media types
    of an answer that is read while it comes; without them it is a whole JSON document. `last_event_id` is the position
    to resume after.
    """

    method: str
    target: str
    body: bytes | None = None
    wait_s: float = 0.0
    streams: tuple[str, ...] = ()
    last_event_id: str = ""


class Send(NamedTuple):
    """The step to send a request, and to wait for its reply until `deadline_s` of the monotonic clock."""

    endpoint: Endpoint
    request: Request
    headers: Headers
    deadline_s: float


class Wait(NamedTuple):
    """The step to wait."""

    seconds: float


class Together(NamedTuple):
    """The step to take the steps of several calls, at the same time where the shell can."""

    calls: tuple[Generator[Any, Any, Any], ...]


class Receive(NamedTuple):
    """The step to wait for more of a stream until `deadline_s` of the monotonic clock."""

    stream: Any
    deadline_s: float


class Close(NamedTuple):
    """The step to close a stream."""

    stream: Any


class Tell(NamedTuple):
    """The step to hand an event to the program."""

    event: Any


class Opened(NamedTuple):
    """A reply with status 200 whose body is still coming. `stream` is the transport's own; `headers` are lower case."""

    content_type: str
    headers: Mapping[str, str]
    stream: Any


class Reply(NamedTuple):
    """A whole reply of a server. `retry_after` and `etag` are the headers' texts, "" without one."""

    status: int
    content_type: str
    body: bytes
    retry_after: str = ""
    etag: str = ""


class FailureKind(Enum):
    """The stage at which an attempt failed."""

    NOT_SENT = auto()
    """No connection: no server has seen the request."""
    STALE = auto()
    """A connection that was used before was closed before anything came."""
    CUT = auto()
    """The connection ended before the reply did."""
    TIMEOUT = auto()
    BAD_REPLY = auto()
    """Bytes that are not an HTTP reply, or exceed a limit."""


class Failure(NamedTuple):
    """An attempt without a reply, and why."""

    kind: FailureKind
    why: str


Step = Send | Wait | Together | Receive | Close | Tell
Outcome = Reply | Failure | Opened | bytes | None
"""The outcome of a step: the reply to a request; for `Receive` bytes, which are empty at the end of a whole body; None
for the others.
"""

Results = tuple[Any, ...]
"""The results of calls that were made together."""

Steps = Generator[Step, Outcome | Results, T]
"""A call as the shells drive it: they run each step, and send its outcome back."""
