"""`AsyncWatch` and `AsyncChanges`: events as they come, for event loops, with the surface of `Watch`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, Self

from understudy.client.core.exchange import Close, Opened, Outcome, Step, Tell
from understudy.client.core.streaming import Streaming
from understudy.client.events import WatchEvent
from understudy.client.results import V
from understudy.client.transports.base import AsyncStream


class AsyncEvents(Generic[V]):
    """Events as they come: iterate over it. Its end closes the connection.

    One task iterates. An iterator and no generator: who leaves a loop by `break`, or is cancelled, leaves no task.
    """

    def __init__(self, take: Callable[[Step], Awaitable[Outcome]], streaming: Streaming) -> None:
        self._take, self._streaming = take, streaming
        self._steps = streaming.steps()
        self._stream: AsyncStream | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._streaming!r})"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent[V]:
        """Return the next event, when it comes. Raises the error of what cannot go on."""
        outcome: Outcome = None
        try:
            while not self._is_closed:
                try:
                    step = self._steps.send(outcome)
                except StopIteration:
                    break  # everything has come
                if isinstance(step, Tell):
                    event: WatchEvent[V] = step.event
                    return event
                outcome = await self._take(step)
                if isinstance(outcome, Opened):
                    self._stream = outcome.stream
                elif isinstance(step, Close):
                    self._stream = None
        except BaseException:
            await self.aclose()
            raise
        self._close_stream()  # one that was opened while another task closed it
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._close_stream()

    @property
    def position(self) -> str | None:
        """The position behind all events so far: `position` of another watch goes on there. None before the first."""
        return self._streaming.position

    async def aclose(self) -> None:
        """End it, and its connection."""
        self._is_closed = True
        self._close_stream()

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


class AsyncWatch(AsyncEvents[V]):
    """The events of a watch. `AsyncStore.watch` and `AsyncStore.watch_many` make it."""


class AsyncChanges(AsyncEvents[V]):
    """The changes of a store, which end behind the last version. `AsyncStore.changes` makes it."""
