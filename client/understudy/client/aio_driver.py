"""The driver of calls for event loops: it takes the steps of the core by a transport."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from understudy.client.core.exchange import Close, Failure, Outcome, Receive, Send, Step, Steps, Together, Wait
from understudy.client.core.state import ClientState
from understudy.client.transports.base import AsyncTransport

T = TypeVar("T")


class AsyncDriver:
    """The driver of calls: it takes their steps by one transport, for one state."""

    def __init__(self, state: ClientState, transport: AsyncTransport) -> None:
        self.state, self.transport = state, transport

    async def run(self, steps: Steps[T]) -> T:
        """Take the steps of a call, and return what they end with."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Send) and not step.request.streams:
                    step = steps.send(await self.transport.exchange(step))
                elif isinstance(step, Together):
                    step = steps.send(await self._together(step))
                else:
                    step = steps.send(await self.take(step))
        except StopIteration as stop:
            found: T = stop.value
            return found
        finally:
            steps.close()

    async def take(self, step: Step) -> Outcome:
        """Take a step, and return what came of it."""
        match step:
            case Send():
                return await (self.transport.open(step) if step.request.streams else self.transport.exchange(step))
            case Receive():
                piece: bytes | Failure = await step.stream.receive(step.deadline_s)
                return piece
            case Close():
                step.stream.close()
            case Wait():
                await asyncio.sleep(step.seconds)
        return None

    async def _together(self, step: Together) -> tuple[Any, ...]:
        tasks = [asyncio.ensure_future(self.run(each)) for each in step.calls]
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:
            for task in tasks:  # one failed, or the call was cancelled
                task.cancel()
