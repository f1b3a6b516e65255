"""Resumable streams (pure): one after another, at any server, each continues after the last event of the one before.

Rules. A stream that was cut is resumed for at most `patience`; a server's refusal ends it for good.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import orjson

from understudy.client.core.call import OTHER_URL, Call
from understudy.client.core.exchange import Close, Endpoint, Failure, Opened, Receive, Request, Steps, Wait
from understudy.client.core.reader import BoundStore
from understudy.client.errors import (
    Attempt,
    BadReplyError,
    DeadlineError,
    OverloadedError,
    UnavailableError,
    UnreachableError,
)
from understudy.client.results import Binding
from understudy_shared.base.errors import UnderstudyError

PATIENCE_S: Final = 60.0
RETRY_S: Final = 1.0
MIN_RETRY_S, MAX_RETRY_S = 0.1, 60.0
"""Default reconnect delay. A server may change it within these limits."""

LONGEST_PAUSE_S: Final = 15.0
"""The longest pause that comes by itself."""

MAY_PASS: Final = (UnreachableError, UnavailableError, OverloadedError)
"""Errors after which it is tried again, once something has come."""


class BadStreamError(ValueError):
    """Bytes that are not the stream that was asked for."""


class Streaming(ABC):
    """Streams on their way. `steps` yields their events; `position` is after all of them."""

    noun: str
    """The name of such a stream in errors."""

    silence_s: float
    """Time without a byte of news after which a stream counts as cut."""

    def __init__(self, store: BoundStore, *, position: str | None, patience_s: float, timeout_s: float) -> None:
        """Prepare it; `timeout_s` is for its beginning."""
        self.position = position
        self._store, self._state = store, store.reader.state
        self._patience_s, self._timeout_s = patience_s, timeout_s
        self._retry_s = RETRY_S * (0.5 + self._state.rng.random() / 2)
        self._until_s: float | None = 0.0
        """The time to give up unless something comes; None while its stream lives."""
        self._quiet_until_s = 0.0
        self._endpoint: Endpoint | None = None
        self._is_over = False
        """Whether everything has come that was asked for."""

    def _asked_for(self, binding: Binding | None, until_s: float) -> Steps[None]:
        """Prepare the requests, once. Raises UsageError."""
        yield from ()

    @abstractmethod
    def _request(self) -> Request:
        """Return the request of the next stream."""

    @abstractmethod
    def _begin(self) -> None:
        """Prepare for the bytes of another stream."""

    @abstractmethod
    def _take(self, piece: bytes, binding: Binding | None) -> Steps[str | None]:
        """Tell what ended in these bytes. Return why the stream ends, if it does. Raises BadStreamError."""

    def steps(self) -> Steps[None]:
        """Yield events until all have come. Raises the error of a stream that cannot begin or be resumed."""
        state = self._state
        until_s = self._until_s = state.now_s() + self._timeout_s
        binding = yield from self._store.binding(until_s)
        yield from self._asked_for(binding, until_s)
        opened = yield from self._opened(until_s)
        while True:
            why = yield from self._events(opened, binding)
            yield Close(opened.stream)
            if self._is_over:
                return
            if self._endpoint is not None:  # resume at another server first: this one ended the stream
                state.servers.failed(self._endpoint, state.now_s(), at_least_s=2 * self._retry_s)
            if self._until_s is None:
                self._until_s = state.now_s() + self._patience_s
            opened = yield from self._opened_again(self._until_s, why)

    def _opened(self, deadline_s: float) -> Steps[Opened]:
        call = Call(self._state, self._request(), deadline_s)
        opened: Opened = yield from call.steps()
        self._endpoint = call.endpoint
        return opened

    def _opened_again(self, until_s: float, why: str) -> Steps[Opened]:
        """Open the next stream by then. `why` says how the last one ended."""
        state, pause_s = self._state, self._retry_s
        error: UnderstudyError = self._ended(why)
        while True:
            left_s = until_s - state.now_s()
            if left_s <= 0:
                raise error
            yield Wait(min(pause_s, left_s))
            now_s = state.now_s()
            try:
                return (yield from self._opened(now_s + min(self._timeout_s, max(until_s - now_s, 1.0))))
            except MAY_PASS as failed:
                error = failed
            pause_s = min(pause_s * 2, max(self._retry_s, LONGEST_PAUSE_S)) * (0.75 + state.rng.random() / 4)

    def _events(self, opened: Opened, binding: Binding | None) -> Steps[str]:
        """Tell what comes until the stream ends, and return why it did."""
        self._begin()
        self._quiet_until_s = self._state.now_s() + self._timeout_s
        while True:
            quiet_s, until_s = self._quiet_until_s, self._until_s
            piece = yield Receive(opened.stream, quiet_s if until_s is None else min(quiet_s, until_s))
            if isinstance(piece, Failure):
                return piece.why
            if not piece:
                return "the stream ended"
            assert isinstance(piece, bytes)
            try:
                why = yield from self._take(piece, binding)
            except BadStreamError as error:
                raise self._bad(str(error)) from None
            if why is not None:
                return why

    def _has_news(self) -> None:
        """Note that something came: the stream lives."""
        self._until_s, self._quiet_until_s = None, self._state.now_s() + self.silence_s

    def _ended(self, why: str) -> DeadlineError:
        fix = f"Start {self.noun} again after its position; or give it more patience"
        return DeadlineError(f"{self.noun} could not go on in time", [self._attempt(why)], fix=fix)

    def _bad(self, why: str) -> BadReplyError:
        return BadReplyError("the stream is not one of an Understudy server", [self._attempt(why)], fix=OTHER_URL)

    def _attempt(self, why: str) -> Attempt:
        return Attempt("" if self._endpoint is None else self._endpoint.url, why)


def object_of(data: str | bytes, what: str) -> Mapping[str, Any]:
    """Return the JSON object of a part of a stream. Raises BadStreamError."""
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError:
        raw = None
    if not isinstance(raw, dict):
        raise BadStreamError(f"{what} is not a JSON object")
    return raw
