"""Older versions that readers use: they stay readable for a while, so that the next page, or the next reader of such a
version, finds it.

A version that is shown costs nothing here. Another one holds the changes, spills and bases that the shown one does not
share; these are bounded in bytes over all tasks of a node, and the version that was read the longest ago is dropped
first. A dropped version is opened from the checkpoint when it is asked for again (`past_versions.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Final

from understudy_node.engine.base import Base
from understudy_node.engine.spill import Spill
from understudy_node.engine.tier import Tier
from understudy_node.replica.task_view import TaskView
from understudy_shared.base.words import TaskId
from understudy_shared.reads.bounds import ReadVersion

HOLD_MS: Final = 30_000
"""Time for which a version stays after it was read last."""

MAX_PINNED_VIEWS: Final = 256
MAX_PINNED_BYTES: Final = 256 * 1024 * 1024
MAX_PINNED_DISK_BYTES: Final = 4 * 1024 * 1024 * 1024
"""Limit on the files of versions that were opened for readers, linked ones too: Spark may delete its own any time."""


@dataclass(slots=True, eq=False)
class _Pin:
    task: TaskId
    view: TaskView
    until_ms: float
    extra_bytes: int = 0
    """Memory that only this version holds."""
    disk_bytes: int = 0
    """Size of the files that it was opened with."""


class PinnedViews:
    """The pinned versions of a node. Workers publish while the serving loop reads."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_PINNED_BYTES,
        max_views: int = MAX_PINNED_VIEWS,
        max_disk_bytes: int = MAX_PINNED_DISK_BYTES,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_disk_bytes = max_disk_bytes
        self._max_views = max_views
        self._lock = threading.Lock()
        self._pins: list[_Pin] = []
        """Pins in order of their last read, the newest last."""
        self._dropped: list[_Pin] = []
        """Pins that were dropped, until `expire`: closing their files takes too long for the serving loop."""

    @property
    def extra_bytes(self) -> int:
        """Memory that is in use for pinned versions alone."""
        with self._lock:
            return sum(pin.extra_bytes for pin in self._pins)

    def __len__(self) -> int:
        return len(self._pins)

    def pin(self, task: TaskId, view: TaskView, now_ms: float, *, extra_bytes: int = 0, disk_bytes: int = 0) -> None:
        """Pin a version from now on. `extra_bytes` is memory, and `disk_bytes` the size of files, that only it holds: a
        version that is not shown.
        """
        with self._lock:
            known = next((pin for pin in self._pins if pin.task == task and pin.view is view), None)
            self._hold(known or _Pin(task, view, 0, extra_bytes, disk_bytes), now_ms)

    def find(self, task: TaskId, wanted: ReadVersion, now_ms: float) -> TaskView | None:
        """Return a pinned version of a task, and hold it from now on."""
        if not self._pins:
            return None
        with self._lock:
            self._drop(now_ms)
            for pin in self._pins:
                if pin.task == task and pin.view.is_of(wanted):
                    self._hold(pin, now_ms)
                    return pin.view
        return None

    def published(self, task: TaskId, current: TaskView, now_ms: float) -> None:
        """Measure the memory of a task's pinned versions after it shows another one, and apply the limits."""
        if not self._pins:  # nearly always; a pin that comes in this moment is measured at the next version
            return
        with self._lock:
            _measure([pin for pin in self._pins if pin.task == task], current)
            self._drop(now_ms)

    def expire(self, now_ms: float) -> None:
        """Drop what was not read for a while, and close what was dropped. Called by the thread that follows the
        checkpoint.
        """
        if self._pins or self._dropped:
            with self._lock:
                self._drop(now_ms)
                dropped, self._dropped = self._dropped, []
            dropped.clear()

    def release(self, task: TaskId) -> None:
        """Drop all pins of a task: it begins again, or leaves."""
        with self._lock:
            self._pins = [pin for pin in self._pins if pin.task != task]

    def _hold(self, pin: _Pin, now_ms: float) -> None:
        """Make a pin the newest one."""
        pin.until_ms = now_ms + HOLD_MS
        self._pins = [*(each for each in self._pins if each is not pin), pin]
        self._drop(now_ms)

    def _drop(self, now_ms: float) -> None:
        """Apply the limits. The newest pin stays: its reader comes for it in a moment."""
        kept = [pin for pin in self._pins if now_ms < pin.until_ms][-self._max_views :]
        kept = _within(self._max_bytes, kept, lambda pin: pin.extra_bytes)
        kept = _within(self._max_disk_bytes, kept, lambda pin: pin.disk_bytes)
        if len(kept) < len(self._pins):
            self._dropped += [pin for pin in self._pins if pin not in kept]
            self._pins = kept


def _within(limit: int, pins: Sequence[_Pin], size_of: Callable[[_Pin], int]) -> list[_Pin]:
    """Return the pins without the oldest ones that exceed a limit together with the others."""
    kept, total = list(pins), sum(map(size_of, pins))
    for pin in pins[:-1]:
        if total > limit and size_of(pin):
            kept.remove(pin)
            total -= size_of(pin)
    return kept


def extra_bytes(old: TaskView, current: TaskView) -> int:
    """Return the memory of the old version that the current one does not share."""
    return _unshared_bytes(old, _parts_of(current).keys())


def _measure(pins: Sequence[_Pin], current: TaskView) -> None:
    """Measure a task's pins. What several of them share counts as the newest's, which goes last."""
    seen = set(_parts_of(current))
    for pin in reversed(pins):
        pin.extra_bytes = _unshared_bytes(pin.view, seen)
        seen |= _parts_of(pin.view).keys()


def _unshared_bytes(view: TaskView, seen: Set[int]) -> int:
    return sum(part.resident_bytes for place, part in _parts_of(view).items() if place not in seen)


def _parts_of(view: TaskView) -> dict[int, Tier | Spill | Base]:
    """Return what holds the memory of a version, by identity: tiers, spills and bases never change."""
    parts: list[Tier | Spill | Base] = []
    for store in view.stores.values():
        parts += [*store.tiers, store.base]
        parts += [] if store.spill is None else [store.spill]
    return {id(part): part for part in parts}
