"""Drives the core of the Python client without I/O: a clock that stands still, and servers that are functions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from understudy.client.core.exchange import (
    Close,
    Failure,
    FailureKind,
    Opened,
    Outcome,
    Receive,
    Reply,
    Results,
    Send,
    Step,
    Steps,
    Tell,
    Together,
    Wait,
    parse_endpoint,
)
from understudy.client.core.state import ClientState, Settings
from understudy.client.credentials import Credential

T = TypeVar("T")

CUT = Failure(FailureKind.CUT, "the server closed the connection")
SILENCE = Failure(FailureKind.TIMEOUT, "silence until the deadline")
"""Pieces of a stream: its end by a cut, which is the default, and a time without anything."""

Served = Callable[[Send, "World"], Outcome]


@dataclass
class World:
    """Time, and what was asked. `served` gives the outcome of each request, and may move the time."""

    served: Served
    now_s: float = 1000.0
    sent: list[Send] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    closed: int = 0

    def state(self, *urls: str, retries: int = 2, key: str = "", session: bool = False, seed: int = 1) -> ClientState:
        """The state of a client of these servers."""
        settings = Settings(timeout_s=5.0, scan_timeout_s=30.0, retries=retries, session=session)
        endpoints = [parse_endpoint(url) for url in urls or ("http://a:1",)]
        shown = Credential(key, None, "api_key")
        return ClientState(settings, endpoints, shown, rng=random.Random(seed), now_s=lambda: self.now_s)

    def run(self, steps: Steps[T]) -> T:
        outcome: Outcome | Results = None
        try:
            while True:
                step = steps.send(outcome)
                if isinstance(step, Together):
                    outcome = tuple([self.run(each) for each in step.calls])
                else:
                    outcome = self._outcome(step)
        except StopIteration as stop:
            found: T = stop.value
            return found

    def told(self, steps: Steps[None]) -> Iterator[Any]:
        """The events that the steps of a watch tell. It has no end but an error; changes have one."""
        outcome: Outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration:
                return
            outcome = None
            if isinstance(step, Tell):
                yield step.event
            else:
                outcome = self._outcome(step)

    def _outcome(self, step: Step) -> Outcome:
        match step:
            case Wait():
                assert step.seconds > 0
                self.waits.append(step.seconds)
                self.now_s += step.seconds
            case Send():
                self.sent.append(step)
                return self.served(step, self)
            case Receive():
                assert step.deadline_s >= self.now_s
                piece = next(step.stream, CUT)
                if piece is SILENCE:
                    self.now_s = step.deadline_s
                    return Failure(FailureKind.TIMEOUT, "nothing came in time")
                return piece
            case Close():
                self.closed += 1
        return None

    @property
    def asked(self) -> list[str]:
        """The hosts that were asked, in order."""
        return [each.endpoint.host for each in self.sent]


def scripted(*outcomes: Outcome, lasting_s: float = 0.0) -> World:
    """A world in which each request has the next of these outcomes, the last one again and again."""

    def served(send: Send, world: World) -> Outcome:
        world.now_s += lasting_s
        return outcomes[min(len(world.sent), len(outcomes)) - 1]

    return World(served)


def answer(document: object, status: int = 200) -> Reply:
    return Reply(status, "application/json", orjson.dumps(document))


def stream(*pieces: bytes | Failure, kind: str = "text/event-stream") -> Opened:
    """The answer to a watch: what comes, piece after piece, and then its end."""
    return Opened(kind, {}, iter(pieces))


def problem(slug: str, status: int, *, retry_after: str = "", **members: object) -> Reply:
    document = {"type": slug, "title": slug, "status": status, "detail": f"it is {slug}", "fix": "do so", **members}
    return Reply(status, "application/problem+json", orjson.dumps(document), retry_after)


def found(key: str, *, store: str = "words", version: int = 3, position: str = "us1.x") -> dict[str, object]:
    return {
        "store": store,
        "key": {"word": key},
        "found": True,
        "value": {"count": 7},
        "partition": 1,
        "version": version,
        "committed_at": "2026-11-20T11:00:03.120000Z",
        "watermark": None,
        "lag": {"current_offset_position": 3, "end_offset_position": None, "offset_lag": None, "time_lag_ms": None},
        "served_by": {"host": "node-1", "port": 7101, "role": "active", "state": "RUNNING"},
        "position": position,
    }
