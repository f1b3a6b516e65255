"""`Watch`: the events of a watch for programs that block."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic

from understudy.client.core.exchange import Close, Opened, Outcome, Step, Tell
from understudy.client.core.watches import Watching
from understudy.client.events import WatchEvent
from understudy.client.results import V
from understudy.client.transports.base import Stream


class Watch(Generic[V]):
    """The events of a watch: iterate over it. `Store.watch` makes it, and its end closes the connection.

    One thread iterates. `close` may be called by any, and ends the iteration.
    """

    def __init__(self, take: Callable[[Step], Outcome], watching: Watching) -> None:
        self._take, self._watching = take, watching
        self._steps = watching.steps()
        self._stream: Stream | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"Watch({self._watching!r})"

    def __iter__(self) -> Watch[V]:
        return self

    def __next__(self) -> WatchEvent[V]:
        """Return the next event, when it comes. Raises the error of a watch that cannot go on."""
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
        self._close_stream()  # one that was opened while another closed the watch
        raise StopIteration

    def __enter__(self) -> Watch[V]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._close_stream()

    @property
    def position(self) -> str | None:
        """The position behind all events so far: `position` of another watch goes on there. None before the first."""
        return self._watching.position

    def close(self) -> None:
        """End the watch, and its connection."""
        self._is_closed = True
        self._close_stream()

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
