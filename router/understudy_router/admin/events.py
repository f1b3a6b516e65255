"""The log of events with lasting numbers: events that the tables note, and changes from one look to the next (pure).

More events may happen between two looks than the tables keep; then as many numbers are left out as events can be
missing.
"""

from __future__ import annotations

from collections import deque

from understudy_router.admin.changes import Known, changes
from understudy_router.admin.observed import Document
from understudy_router.admin.quiet_query import Quiet
from understudy_router.admin.snapshot import Snapshot
from understudy_router.cluster.tables import MAX_EVENTS, TableEvent
from understudy_shared.spark.times import utc_text

MAX_SHOWN = 100


class EventLog:
    """The last events. The text of each time is made once: made again, it could differ by a microsecond, because two
    clocks never agree exactly.
    """

    def __init__(self) -> None:
        self._last: TableEvent | None = None
        self._known = Known()
        self._happened: deque[Document] = deque(maxlen=MAX_SHOWN)
        self._next = 1

    def see(self, snapshot: Snapshot, quiet: Quiet | None = None) -> list[Document]:
        """Take in the events that the tables keep now, and the changes since the last look. Return the newest first."""
        events = snapshot.events
        places = [place for place, event in enumerate(events) if event is self._last]
        if not places and self._last is not None and events:
            self._next += MAX_EVENTS
        for event in events[places[-1] + 1 if places else 0 :]:
            self._note(wall_text(snapshot, event.at_ms), event.event, event.detail)
        self._last = events[-1] if events else self._last
        self._known, lines = changes(self._known, snapshot, quiet)
        for kind, detail in lines:
            self._note(wall_text(snapshot, snapshot.about.now_ms), kind, detail)
        return list(reversed(self._happened))

    def _note(self, at: str | None, event: str, detail: str) -> None:
        self._happened.append({"id": self._next, "at": at, "event": event, "detail": detail})
        self._next += 1


def wall_text(snapshot: Snapshot, at_ms: float) -> str | None:
    """Convert a moment of this machine's monotonic clock to wall time."""
    about = snapshot.about
    return utc_text(about.now_us - round((about.now_ms - at_ms) * 1000))
