"""The driver of calls for programs that block: it takes the steps of the core by a transport."""

from __future__ import annotations

import time
from typing import TypeVar

from understudy.client.core.exchange import Close, Failure, Outcome, Receive, Send, Step, Steps, Together, Wait
from understudy.client.core.state import ClientState
from understudy.client.transports.base import Transport

T = TypeVar("T")


class Driver:
    """The driver of calls: it takes their steps by one transport, for one state."""

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
