"""Steps and outcomes: the core says what to do next, and a shell what came of it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar

from understudy.client.core.endpoints import Endpoint

T = TypeVar("T")

Headers = tuple[tuple[str, str], ...]


class Request(NamedTuple):
    """A request to any server. Each can be sent twice: reads, and leases, which end by themselves.

    `wait_s` is how long the server was asked to wait; it comes on top of the call's time. `streams` are the media types
    of an answer that is read while it comes; without them it is a whole JSON document. `last_event_id` is the position
    to go on behind.
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
    """Bytes that are no HTTP reply, or one beyond a limit."""


class Failure(NamedTuple):
    """An attempt without a reply, and why."""

    kind: FailureKind
    why: str


Step = Send | Wait | Together | Receive | Close | Tell
Outcome = Reply | Failure | Opened | bytes | None
"""The outcome of a step: of a request what came back, of `Receive` bytes, which are empty at the whole end of a body;
None of the others.
"""

Results = tuple[Any, ...]
"""The results of calls that were made together."""

Steps = Generator[Step, Outcome | Results, T]
"""A call as the shells drive it: they take each step, and send back what came of it."""
