"""The newest events of a node, kept for operators who look later, and why it is degraded now."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy_node.checkpoint.files import FetchMethod
from understudy_node.follow.end import End
from understudy_node.generations import Generation, Layout
from understudy_node.replica.task import TaskReplica
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError, UnsupportedError
from understudy_shared.base.throttles import LogThrottle
from understudy_shared.base.words import (
    FORK_FOUND,
    FORKED,
    GOSSIP_KEY_MISSING,
    LEASE_HELD_BY_UNSIGNED,
    UNSIGNED_ACCEPTED,
    WRITES_REFUSED,
    Lineage,
)
from understudy_shared.spark.temporal import utc_text

log = logging.getLogger(__name__)

MAX_EVENTS = 256

_GOOD_NEWS = frozenset({"ready", "resumed", "layout", "named", "unnamed", "schemas", "removed"})


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
        self._clock = clock
        self._throttle = LogThrottle()
        self._events: deque[NodeEvent] = deque(maxlen=MAX_EVENTS)
        self._ready: tuple[Lineage, Layout, frozenset[str]] | None = None
        """Lineage, layout and tasks of the last "ready" event."""
        self._ready_generation: Generation | None = None
        """The last generation found ready: it is not checked again."""
        self._damaged_copies = 0

    def __iter__(self) -> Iterator[NodeEvent]:
        return iter(tuple(self._events))  # a copy: readers iterate while the polling thread appends

    def note(self, what: str, detail: str) -> None:
        self._events.append(NodeEvent(self._clock.wall_us(), what, detail))
        log.log(logging.INFO if what in _GOOD_NEWS else logging.WARNING, "%s: %s", what, detail, extra={"action": what})

    def polled(self, *, must_read: bool) -> None:
        """Note that a poll worked. Schemas that are not supported stay so while they must be read: polls between two
        commits do not read them.
        """
        self.has_polled = True
        if not (must_read and isinstance(self.error, UnsupportedError)):
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


CHECKPOINT_UNREADABLE = "checkpoint-unreadable"
LAG_UNKNOWN = "lag-unknown"
REPLICAS_STALLED = "replicas-stalled"
LOCAL_COPY_DAMAGED = "local-copy-damaged"
LOCAL_DISK = "local-disk"
"""The disk of the data directory is full, or cannot be written."""
BUS_AWAY = "bus-away"
OWN_MESSAGE = "own-message"
"""A message of this node does not validate, so it was not sent."""

CAUSES = (
    BUS_AWAY,
    WRITES_REFUSED,
    OWN_MESSAGE,
    CHECKPOINT_UNREADABLE,
    LAG_UNKNOWN,
    REPLICAS_STALLED,
    FORKED,
    FORK_FOUND,
    LOCAL_COPY_DAMAGED,
    LOCAL_DISK,
    UNSIGNED_ACCEPTED,
    GOSSIP_KEY_MISSING,
    LEASE_HELD_BY_UNSIGNED,
)
"""The labels of the metric, with the process's."""


def causes_of(
    error: UnderstudyError | None,
    end: End,
    replicas: Sequence[TaskReplica],
    *,
    full_disk: Path | None,
    now_ms: float,
    end_expiry_ms: float,
) -> dict[str, str]:
    """Return why a node that can answer lookups is degraded, by cause."""
    found: dict[str, str] = {}
    if error is not None:
        found[CHECKPOINT_UNREADABLE] = f"the checkpoint cannot be followed: {error}"
    if end.confirmed_ms is None:
        found[LAG_UNKNOWN] = "lag is unknown: the end of the history is not confirmed"
    elif now_ms - end.confirmed_ms > end_expiry_ms:
        found[LAG_UNKNOWN] = f"lag is unknown: the end of the history was not confirmed within {end_expiry_ms:.0f} ms"
    stalled = [replica for replica in replicas if replica.stalled]
    if stalled:
        first, count = stalled[0], len(stalled)
        version = None if first.view is None else first.view.version
        found[REPLICAS_STALLED] = (
            f"{count} {'replica cannot' if count == 1 else 'replicas cannot'} advance: {first.task} is at version "
            f"{version} of {first.target}: {first.error or 'no step of it ends'}"
        )
    damaged = [(replica.task, replica.damage) for replica in replicas if replica.damage is not None]
    if damaged:
        task, damage = damaged[0]
        found[LOCAL_COPY_DAMAGED] = f"{len(damaged)} local copies are built again: of {task}, {damage}"
    unwritten = [(replica.task, replica.unwritten) for replica in replicas if replica.unwritten is not None]
    if unwritten:
        task, failure = unwritten[0]
        found[LOCAL_DISK] = f"{len(unwritten)} replicas cannot write their local copies: of {task}, {failure}"
    elif full_disk is not None:
        found[LOCAL_DISK] = f"the disk of {full_disk} is full: no local copy can be written. Free space there"
    return found
