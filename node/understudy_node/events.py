"""The log of a node's events, for operators who look later. The newest events are kept."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from understudy_node.checkpoint.files import FetchMethod
from understudy_node.generation import Generation, Layout
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError, UnsupportedError
from understudy_shared.base.throttles import LogThrottle
from understudy_shared.base.words import Lineage
from understudy_shared.spark.times import utc_text

log = logging.getLogger(__name__)

MAX_EVENTS = 256

_GOOD_NEWS = frozenset({"ready", "resumed", "layout", "named", "unnamed", "schemas"})


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """An event that an operator may want to see later."""

    at_us: int
    what: str
    detail: str

    def as_dict(self) -> dict[str, object]:
        return {"at": utc_text(self.at_us), "event": self.what, "detail": self.detail}


class NodeEvents:
    """The last events of one node. `error` is the error of its last poll, None after a poll that worked."""

    def __init__(self, clock: Clock) -> None:
        self.error: UnderstudyError | None = None
        self.has_polled = False
        """Whether a poll worked."""
        self._clock = clock
        self._throttle = LogThrottle()
        self._events: deque[NodeEvent] = deque(maxlen=MAX_EVENTS)
        self._ready: tuple[Lineage, Layout, frozenset[str]] | None = None
        """Lineage, layout and tasks of the last "ready" event."""
        self._ready_generation: Generation | None = None
        """The last generation that was found ready: it need not be checked again."""
        self._damaged_copies = 0

    def __iter__(self) -> Iterator[NodeEvent]:
        return iter(tuple(self._events))  # a copy: readers iterate while the polling thread appends

    def note(self, what: str, detail: str) -> None:
        """Keep and log an event."""
        self._events.append(NodeEvent(self._clock.wall_us(), what, detail))
        log.log(logging.INFO if what in _GOOD_NEWS else logging.WARNING, "%s: %s", what, detail, extra={"action": what})

    def polled(self) -> None:
        """Note that a poll worked. An unsupported checkpoint stays unsupported."""
        self.has_polled = True
        if not isinstance(self.error, UnsupportedError):
            self.error = None

    def failed(self, error: UnderstudyError) -> None:
        """Note that a poll failed.

        The same error is kept once while it lasts, and logged no more than once a minute.
        """
        if self.error is None or self.error.args != error.args:
            if self._throttle.admit(error.args, self._clock.monotonic_ms()) is not None:
                log.error("%s", error, extra={"action": "poll-failed"})
            self._events.append(NodeEvent(self._clock.wall_us(), "error", str(error)))
        self.error = error

    def note_damaged(self, copies: int) -> None:
        """Report when more local copies were found damaged: the log says which."""
        if copies > self._damaged_copies:
            self.note("local-damage", f"{copies - self._damaged_copies} local copies were damaged, and are built again")
            self._damaged_copies = copies

    def note_ready(self, generation: Generation | None, fetched: Mapping[FetchMethod, int]) -> None:
        """Report once that all tasks held can answer, and again when more are held.

        `fetched` counts tables by fetch method.
        """
        if generation is not None and generation is self._ready_generation:
            return
        self._ready_generation = None  # a generation that is not served any more must not stay in memory
        if generation is None or not generation.replicas or not generation.ready:
            return
        self._ready_generation = generation
        held, before = frozenset(generation.held), self._ready
        self._ready = (generation.lineage, generation.layout, held)
        if before is not None and before[:2] == self._ready[:2] and held <= before[2]:
            return
        ways = ", ".join(f"{count} by {way}" for way, count in sorted(fetched.items()))
        self.note("ready", f"{len(generation.replicas)} tasks are open" + (f"; tables brought: {ways}" if ways else ""))
