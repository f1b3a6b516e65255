"""Steps and outcomes: the core says what to do next, and a shell what came of it."""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar

from understudy.client.core.endpoints import Endpoint

T = TypeVar("T")

Headers = tuple[tuple[str, str], ...]


class Request(NamedTuple):
    """A request to any server. Each can be sent twice: reads, and leases, which end by themselves.

    `wait_s` is how long the server was asked to wait; it comes on top of the call's time.
    """

    method: str
    target: str
    body: bytes | None = None
    wait_s: float = 0.0


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


Step = Send | Wait | Together
Outcome = Reply | Failure | None
"""The outcome of a request; None after a wait."""

Results = tuple[Any, ...]
"""The results of calls that were made together."""

Steps = Generator[Step, Outcome | Results, T]
"""A call as the shells drive it: they take each step, and send back what came of it."""
