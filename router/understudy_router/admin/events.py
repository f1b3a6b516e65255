"""The log of events in the overview: those that the tables note, and changes from one look to the next (pure).

A look happens each second while a viewer watches, else every ten seconds; a condition that begins and ends in between
is not seen. Each kind of event is one line, however many things it is about, so that a thousand nodes do not push
everything else out of the list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from understudy_router.admin.faults import blind_nodes, named
from understudy_router.admin.schema_changes import KINDS, Line, schema_changes
from understudy_router.admin.snapshot import Document, Snapshot
from understudy_router.cluster.catalogue import Stores
from understudy_router.cluster.degraded import Cause
from understudy_router.cluster.tables import MAX_EVENTS, TableEvent
from understudy_shared.http.health import Indicator

MAX_SHOWN = 100


class EventLog:
    """The last events. The text of each time is made once: made again, it could differ by a microsecond, because two
    clocks never agree exactly.

    More events may happen between two looks than the tables keep; then as many numbers are left out as events can be
    missing.
    """

    def __init__(self) -> None:
        self._last: TableEvent | None = None
        self._known = Known()
        self._happened: deque[Document] = deque(maxlen=MAX_SHOWN)
        self._next = 1

    def see(self, snapshot: Snapshot, quiet: Indicator | None = None) -> list[Document]:
        """Take in the events that the tables keep now, and the changes since the last look. Return the newest first."""
        events = snapshot.events
        places = [place for place, event in enumerate(events) if event is self._last]
        if not places and self._last is not None and events:
            self._next += MAX_EVENTS
        for event in events[places[-1] + 1 if places else 0 :]:
            self._note(snapshot.about.wall_text(event.at_ms), event.event, event.detail)
        self._last = events[-1] if events else self._last
        self._known, lines = changes(self._known, snapshot, quiet)
        for kind, detail in lines:
            self._note(snapshot.about.wall_text(snapshot.about.now_ms), kind, detail)
        return list(reversed(self._happened))

    def _note(self, at: str | None, event: str, detail: str) -> None:
        self._happened.append({"id": self._next, "at": at, "event": event, "detail": detail})
        self._next += 1


class Draining(NamedTuple):
    """A live node that drains. `holds`: whether the assignment still gives it any task."""

    incarnation: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Known:
    """The state at the last look, with which the next look is compared."""

    draining: Mapping[str, Draining] = field(default_factory=dict)
    stores: Stores | None = None
    conditions: frozenset[str] = frozenset()
    """The conditions that hold, by the name of the event with which they began."""
    quiet_at: tuple[str | None, int] = (None, 0)
    """History and version at which the query was last seen to be quiet."""


_ENDINGS = {
    "bus-unheard": ("bus-heard", "Redis carries again what the nodes say"),
    "bus-refuses-writes": ("bus-takes-writes", "no node says any more that Redis refuses what it writes"),
    "lag-unknown": ("lag-known", "a node confirms the end of the commit log"),
    "query-quiet": ("query-commits", "the query commits again, or began anew"),
}
"""The event that ends a condition and its text, by the event with which the condition begins."""

EVENTS = ("drain", "drained", "drain-undone", *KINDS, *_ENDINGS, *(ended for ended, _ in _ENDINGS.values()))
"""Every kind of event that is found here."""


def changes(known: Known, snapshot: Snapshot, quiet: Indicator | None) -> tuple[Known, list[Line]]:
    """Return the state of now, and the events since `known`. `quiet` is set for a query that does not commit as it
    did.
    """
    end = (snapshot.lineage, snapshot.end_version)
    present = _conditions(snapshot, quiet, has_moved=end != known.quiet_at)
    conditions = {event for event in _ENDINGS if present.get(event, "") is None and event in known.conditions}
    conditions |= {event for event, why in present.items() if why is not None}
    draining = dict(_draining(snapshot))
    stores = snapshot.index.stores or known.stores
    lines = [
        *_drains(known.draining, draining, snapshot),
        *schema_changes(known.stores, stores),
        *((event, why) for event, why in present.items() if why is not None and event not in known.conditions),
        *(_ENDINGS[event] for event in _ENDINGS if event in known.conditions and event not in conditions),
    ]
    return Known(draining, stores, frozenset(conditions), known.quiet_at if quiet is None else end), lines


def _conditions(snapshot: Snapshot, quiet: Indicator | None, *, has_moved: bool) -> Mapping[str, str | None]:
    """Return the reason of each condition that holds. The reason is `None` for one that cannot be judged now, so it
    counts as it did before.
    """
    about, found = snapshot.about, dict[str, str | None]()
    is_any_live = bool(snapshot.heartbeats)
    if about.bus_lost_why is not None or about.unheard is not None:
        found["bus-unheard"] = None if about.bus_lost_why is not None else about.unheard
    refused = about.causes.get(Cause.WRITES_REFUSED)
    if refused is not None or not is_any_live:
        found["bus-refuses-writes"] = refused
    if not snapshot.end_confirmed:
        is_told = is_any_live and snapshot.end_version > 0
        found["lag-unknown"] = _why_unknown(snapshot) if is_told else None
        found["query-quiet"] = None
    elif quiet is not None or not has_moved:
        # While the end does not move, a quiet query stays quiet, although its pace may be forgotten when nodes restart.
        found["query-quiet"] = None if quiet is None else f"{quiet.symptom}: {quiet.cause}"
    return found


def _why_unknown(snapshot: Snapshot) -> str:
    blind = blind_nodes(snapshot)
    who = f": {named(blind)} cannot read the checkpoint" if blind else ""
    return f"no node confirms the end of the commit log{who}"


def _draining(snapshot: Snapshot) -> Iterator[tuple[str, Draining]]:
    assignment, holders = snapshot.assignment, snapshot.index.number_of
    for beat in snapshot.heartbeats:
        if beat.state == "draining":
            yield beat.node_id, Draining(beat.incarnation, assignment is None or beat.node_id in holders)


def _drains(before: Mapping[str, Draining], now: Mapping[str, Draining], snapshot: Snapshot) -> Iterator[Line]:
    """Yield lines for drains that began, ended, or were undone. A node that left or died has an event of its own."""
    # A drain belongs to a process: comparing incarnations tells an undone drain from a node that was started again.
    begun = [node_id for node_id in now if node_id not in before]
    if begun:
        yield "drain", f"{named(begun)}: somebody asked for it; other nodes take over what it has"
    held = {node_id for node_id, each in before.items() if each.holds}
    empty = [node_id for node_id, each in now.items() if not each.holds and node_id in held]
    if empty:
        yield "drained", f"{named(empty)}: nothing is left there, it may be stopped"
    back = [beat for beat in snapshot.heartbeats if beat.node_id in before and beat.node_id not in now]
    undone = [beat.node_id for beat in back if beat.incarnation == before[beat.node_id].incarnation]
    if undone:
        yield "drain-undone", f"{named(undone)}: somebody took the drain back"
    anew = [beat.node_id for beat in back if beat.node_id not in undone]
    if anew:
        yield "drain-undone", f"{named(anew)}: it was started again, and a drain ends with its process"
