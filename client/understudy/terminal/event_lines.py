"""Events of watches, and changes of stores, as lines for people."""

from __future__ import annotations

from typing import Any

from understudy.client.events import WatchEvent
from understudy.terminal.values import quoted
from understudy_shared.base.printable import printable

EVENT_HEADS = f"{'committed at':27}  {'version':>8}  {'event':9}  key  content"
"""The line above events."""

_LISTS = ("sessions", "rows", "values", "entries", "timers")


def event_line(event: WatchEvent[Any]) -> str:
    """Print an event in one line: when, which version, what, and of which key."""
    raw = event.raw
    found = next((quoted(raw[name]) for name in ("result", "value", *_LISTS) if name in raw), "")
    if event.kind == "coalesced":
        count = "unknown" if event.changes is None else str(event.changes)
        found = f"changes since version {event.first_version}: {count}"
    elif event.kind == "reset":
        found = printable(str(raw.get("detail", "")))
    key = quoted(raw["key"]) if "key" in raw else "-"
    when = printable(str(raw.get("committed_at") or "-"))
    version = "-" if event.version is None else str(event.version)
    return f"{when:27}  {version:>8}  {event.kind:9}  {key}  {found}".rstrip()
