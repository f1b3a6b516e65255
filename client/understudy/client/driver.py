"""The driver of calls for programs that block: it runs the steps of the core over a transport, and delivers events as
they come.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from understudy.client.core.exchange import (
    Close,
    Failure,
    Opened,
    Outcome,
    Receive,
    Send,
    Step,
    Steps,
    Tell,
    Together,
    Wait,
)
from understudy.client.core.state import ClientState
from understudy.client.core.streaming import Streaming
from understudy.client.results import V, WatchEvent
from understudy.client.transports.base import Stream, Transport

T = TypeVar("T")


class Driver:
    """The driver of calls: it runs their steps over one transport, for one state."""

    def __init__(self, state: ClientState, transport: Transport) -> None:
        self.state, self.transport = state, transport

    def run(self, steps: Steps[T]) -> T:
        """Take the steps of a call, and return what they end with."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Send) and not step.request.streams:
                    step = steps.send(self.transport.exchange(step))
                elif isinstance(step, Together):
                    step = steps.send(tuple([self.run(each) for each in step.calls]))
                else:
                    step = steps.send(self.take(step))
        except StopIteration as stop:
            found: T = stop.value
            return found
        finally:
            steps.close()

    def take(self, step: Step) -> Outcome:
        """Take a step, and return what came of it."""
        match step:
            case Send():
                return self.transport.open(step) if step.request.streams else self.transport.exchange(step)
            case Receive():
                piece: bytes | Failure = step.stream.receive(step.deadline_s)
                return piece
            case Close():
                step.stream.close()
            case Wait():
                time.sleep(step.seconds)
        return None


class Events(Generic[V]):
    """Events as they come: iterate over it. Its end closes the connection.

    One thread iterates. `close` may be called by any, and ends the iteration.
    """

    def __init__(self, take: Callable[[Step], Outcome], streaming: Streaming) -> None:
        self._take, self._streaming = take, streaming
        self._steps = streaming.steps()
        self._stream: Stream | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._streaming!r})"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WatchEvent[V]:
        """Wait for the next event. Raises the error of a stream that cannot be resumed."""
        outcome: Outcome = None
        try:
            while not self._is_closed:
                step = self._steps.send(outcome)
                if isinstance(step, Tell):
                    event: WatchEvent[V] = step.event
                    return event
                outcome = self._take(step)
                if isinstance(outcome, Opened):
                    self._stream = outcome.stream
                elif isinstance(step, Close):
                    self._stream = None
        except BaseException:
            self.close()
            raise
        self._close_stream()  # one that was opened while another thread closed it
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._close_stream()

    @property
    def position(self) -> str | None:
        """The position after all events so far, to resume another watch by `position`. None before the first."""
        return self._streaming.position

    def close(self) -> None:
        """End it, and its connection."""
        self._is_closed = True
        self._close_stream()

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


class Watch(Events[V]):
    """The events of a watch. `Store.watch` and `Store.watch_many` make it."""


class Changes(Events[V]):
    """The changes of a store, up to the last version. `Store.changes` makes it."""
