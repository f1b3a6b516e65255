"""Older versions that readers use, for a while or by a snapshot lease: the next page, or the next reader, finds them.

A version that is shown costs nothing here. Another one holds the changes, spills and bases that the shown one does not
share; these are bounded in bytes over all tasks of a node, and the version that was read the longest ago is dropped
first. A dropped version is opened from the checkpoint when it is asked for again (`past_versions.py`).

A lease is a matter of speed, never of truth: one that ends, or that a restart forgets, costs its reader a moment. The
use of a forgotten one brings it back, into half of the room at most: a token can be forged, and must not take the room
of leases that are requested.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import ceil
from typing import Final, Literal, NamedTuple

from understudy_node.engine.base import Base
from understudy_node.engine.view import Spill, Tier
from understudy_node.replica.task_view import TaskView
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.lease.calls import RETRY_AFTER
from understudy_shared.reads.bounds import ReadVersion
from understudy_shared.reads.tokens import SnapshotLease

MAX_LEASES: Final = 1000
MAX_LEASED_VERSIONS: Final = 64
"""Limit on the versions of all leases."""

RETRY_AT_MOST_S: Final = 60

Change = Literal["granted", "renewed", "refused", "expired", "released"]
CHANGES: Final[tuple[Change, ...]] = ("granted", "renewed", "refused", "expired", "released")


def leased_version(lease: SnapshotLease) -> ReadVersion:
    """Return the version of a lease: its number and its commit time, so that no other commit fits."""
    return ReadVersion(lease.position.version, lease.position.committed_at_us)


@dataclass(slots=True)
class HeldLease:
    """A lease that this node holds, and when it ends."""

    lease: SnapshotLease
    until_ms: float

    @property
    def version(self) -> ReadVersion:
        """The version that it keeps."""
        return leased_version(self.lease)


class LeaseTable:
    """The leases of one node. The serving loop grants and renews, the thread that follows the checkpoint ends them, and
    workers look at `until_ms`.
    """

    def __init__(self, *, max_leases: int = MAX_LEASES, max_versions: int = MAX_LEASED_VERSIONS) -> None:
        self.until_ms: Mapping[ReadVersion, float] = {}
        """Time until which each leased version is kept. It is replaced and never changed."""
        self.counts: Counter[Change] = Counter()
        self._max_leases = max_leases
        self._max_versions = max_versions
        self._lock = threading.Lock()
        self._held: dict[str, HeldLease] = {}

    def __len__(self) -> int:
        return len(self._held)

    def grant(self, lease: SnapshotLease, *, now_ms: float) -> None:
        """Hold a lease from now on. Raises an overloaded problem above the limits.

        A router may ask twice, when its connection closes before the reply: a lease that is held needs no more room.
        """
        with self._lock:
            self._expire(now_ms)
            held = self._held.get(lease.lease_id)
            why = None if held is not None and held.lease == lease else self._why_full(lease, 1)
            if why is not None:
                self.counts["refused"] += 1
                first_ms = min(each.until_ms for each in self._held.values()) - now_ms
                raise _full(why, min(RETRY_AT_MOST_S, max(1, ceil(first_ms / 1000))))
            self._add(HeldLease(lease, now_ms + lease.ttl_s * 1000))
            self.counts["granted"] += 1

    def renew(self, lease: SnapshotLease, *, now_ms: float) -> bool:
        """Renew a lease that is used, unless it was renewed in the last third of its time. Return whether it came back:
        this node had forgotten it, and has room.
        """
        held = self._held.get(lease.lease_id)
        if held is not None and held.until_ms - now_ms > held.lease.ttl_s * 1000 * 2 / 3:
            return False
        with self._lock:
            self._expire(now_ms)
            held = self._held.get(lease.lease_id)
            if held is not None:
                if held.lease == lease:
                    held.until_ms = now_ms + lease.ttl_s * 1000
                    self.counts["renewed"] += 1
                    self._note_times()
                return False
            if self._why_full(lease, 2) is not None:
                return False
            self._add(HeldLease(lease, now_ms + lease.ttl_s * 1000))
            return True

    def release(self, lease_id: str) -> bool:
        """End a lease before its time. Return whether it was held."""
        with self._lock:
            held = self._held.pop(lease_id, None)
            if held is not None:
                self.counts["released"] += 1
                self._note_times()
            return held is not None

    def expire(self, now_ms: float) -> None:
        """End what was not used for its time."""
        if self._held:
            with self._lock:
                self._expire(now_ms)

    def clear(self) -> None:
        """End all of them: their versions are of a history that is gone."""
        with self._lock:
            self._held.clear()
            self._note_times()

    def held(self, now_ms: float) -> list[HeldLease]:
        """Return the leases."""
        with self._lock:
            self._expire(now_ms)
            return list(self._held.values())

    def _why_full(self, lease: SnapshotLease, parts: int) -> str | None:
        """Return why one more lease has no room in the whole of it, or in a part."""
        if len(self._held) >= self._max_leases // parts:
            return f"a node holds {len(self._held)} snapshot leases, of at most {self._max_leases}"
        versions = self.until_ms.keys()
        if leased_version(lease) not in versions and len(versions) >= self._max_versions // parts:
            return f"the snapshot leases of a node are of {len(versions)} versions, of at most {self._max_versions}"
        return None

    def _add(self, held: HeldLease) -> None:
        self._held[held.lease.lease_id] = held
        self._note_times()

    def _expire(self, now_ms: float) -> None:
        over = [lease_id for lease_id, held in self._held.items() if held.until_ms <= now_ms]
        for lease_id in over:
            del self._held[lease_id]
        if over:
            self.counts["expired"] += len(over)
            self._note_times()

    def _note_times(self) -> None:
        times: dict[ReadVersion, float] = {}
        for held in self._held.values():
            times[held.version] = max(held.until_ms, times.get(held.version, 0.0))
        self.until_ms = times


def _full(why: str, retry_after_s: int) -> ProblemError:
    fix = "Retry when one of them has ended, or share one: its token reads the same version for all"
    extra: dict[str, object] = {RETRY_AFTER: retry_after_s}
    return ProblemError(
        Problem(ProblemType.OVERLOADED, f"no room: {why}", fix=fix, extra=extra, retry_after_s=retry_after_s)
    )


HOLD_MS: Final = 30_000
"""Time for which a version stays after it was read last."""

MAX_PINNED_VIEWS: Final = 256
MAX_PINNED_BYTES: Final = 256 * 1024 * 1024
MAX_PINNED_DISK_BYTES: Final = 4 * 1024 * 1024 * 1024
"""Limit on the files of versions that were opened for readers, linked ones too: Spark may delete its own any time."""


@dataclass(slots=True, eq=False)
class _Pin:
    replica: object
    view: TaskView
    until_ms: float
    extra_bytes: int = 0
    """Memory that only this version holds."""
    disk_bytes: int = 0
    """Size of the files that it was opened with."""
    version: ReadVersion = field(init=False)
    """Its version, of that commit alone."""

    def __post_init__(self) -> None:
        self.version = ReadVersion(self.view.version, self.view.committed_at_us)


class Pinned(NamedTuple):
    """The costs of the pins of one version, beyond the versions on show."""

    views: int = 0
    extra_bytes: int = 0
    disk_bytes: int = 0

    def and_also(self, pin: _Pin) -> Pinned:
        """Return the sum with another pin."""
        return Pinned(self.views + 1, self.extra_bytes + pin.extra_bytes, self.disk_bytes + pin.disk_bytes)


class PinnedViews:
    """The pinned versions of a node. Workers publish while the serving loop reads. Those of `leases` stay for as long
    as their leases, and are the last to be dropped above a limit; they do not count as views, since leases are bounded
    by versions.
    """

    def __init__(
        self,
        leases: LeaseTable | None = None,
        *,
        max_bytes: int = MAX_PINNED_BYTES,
        max_views: int = MAX_PINNED_VIEWS,
        max_disk_bytes: int = MAX_PINNED_DISK_BYTES,
    ) -> None:
        self.leases = LeaseTable() if leases is None else leases
        self._max_bytes = max_bytes
        self._max_disk_bytes = max_disk_bytes
        self._max_views = max_views
        self._lock = threading.Lock()
        self._pins: OrderedDict[tuple[object, int], _Pin] = OrderedDict()
        """Pins in order of their last read, the newest last, by the replica that showed the version. A replica of the
        same task in another layout has other keys.
        """
        self._dropped: list[_Pin] = []
        """Pins that were dropped, until `expire`: closing their files takes too long for the serving loop."""

    @property
    def extra_bytes(self) -> int:
        """Memory that is in use for pinned versions alone."""
        with self._lock:
            return sum(pin.extra_bytes for pin in self._pins.values())

    def __len__(self) -> int:
        return len(self._pins)

    def by_version(self) -> dict[ReadVersion, Pinned]:
        """Return what the pins of each version hold."""
        found: dict[ReadVersion, Pinned] = {}
        with self._lock:
            for pin in self._pins.values():
                found[pin.version] = found.get(pin.version, Pinned()).and_also(pin)
        return found

    def pin(self, replica: object, view: TaskView, now_ms: float, *, extra_bytes: int = 0, disk_bytes: int = 0) -> None:
        """Pin a version from now on. `extra_bytes` of memory and `disk_bytes` of files are held by it alone."""
        with self._lock:
            self._pin(replica, view, now_ms, extra_bytes, disk_bytes)

    def find(self, replica: object, wanted: ReadVersion, now_ms: float) -> TaskView | None:
        """Return a pinned version of a replica, and hold it from now on."""
        place = replica, wanted.number
        if place not in self._pins:
            return None
        with self._lock:
            pin = self._pins.get(place)
            if pin is None or not wanted.is_of(pin.view.version, pin.view.committed_at_us):
                return None
            if self._is_over(pin, now_ms):
                self._dropped.append(self._pins.pop(place))
                return None
            pin.until_ms = now_ms + HOLD_MS
            self._pins.move_to_end(place)
            return pin.view

    def published(self, replica: object, current: TaskView, now_ms: float) -> None:
        """Measure the memory of a replica's pinned versions after it shows another one, and apply the limits. Pin that
        one where it is leased: this replica is behind those whose version was chosen.
        """
        leased = self.leases.until_ms
        if not self._pins and not leased:  # nearly always; a pin that comes now is measured at the next version
            return
        with self._lock:
            _measure([pin for pin in self._pins.values() if pin.replica == replica], current)
            if ReadVersion(current.version, current.committed_at_us) in leased:
                self._pin(replica, current, now_ms, 0, 0)
            else:
                self._drop(now_ms)

    def expire(self, now_ms: float) -> None:
        """Drop what was not read for a while, and close it: on the thread that follows the checkpoint."""
        if self._pins or self._dropped:
            with self._lock:
                self._drop(now_ms)
                dropped, self._dropped = self._dropped, []
            dropped.clear()

    def release(self, replica: object) -> None:
        """Drop all pins of a replica: it begins again, or leaves."""
        with self._lock:
            for place in [place for place in self._pins if place[0] == replica]:
                del self._pins[place]

    def _pin(self, replica: object, view: TaskView, now_ms: float, extra_bytes: int, disk_bytes: int) -> None:
        place = replica, view.version
        known = self._pins.get(place)
        if known is not None and known.view is view:
            known.until_ms = now_ms + HOLD_MS
            self._pins.move_to_end(place)
            return
        if known is not None:
            self._dropped.append(known)
        self._pins[place] = _Pin(replica, view, now_ms + HOLD_MS, extra_bytes, disk_bytes)
        self._pins.move_to_end(place)
        self._drop(now_ms)

    def _is_over(self, pin: _Pin, now_ms: float) -> bool:
        return now_ms >= pin.until_ms and now_ms >= self.leases.until_ms.get(pin.version, 0.0)

    def _drop(self, now_ms: float) -> None:
        """Apply the limits. The newest pin stays: its reader comes for it in a moment."""
        leased = self.leases.until_ms
        kept = [pin for pin in self._pins.values() if not self._is_over(pin, now_ms)]
        if leased:
            newest = kept[-1:]
            kept = sorted(kept[:-1], key=lambda pin: pin.version in leased) + newest
        counted = [pin for pin in kept if pin.version not in leased] if leased else kept
        over = counted[: max(0, len(counted) - self._max_views)]
        kept = [pin for pin in kept if pin not in over] if over else kept
        kept = _within(self._max_bytes, kept, lambda pin: pin.extra_bytes)
        kept = _within(self._max_disk_bytes, kept, lambda pin: pin.disk_bytes)
        if len(kept) < len(self._pins):
            stay = set(map(id, kept))
            for place in [place for place, pin in self._pins.items() if id(pin) not in stay]:
                self._dropped.append(self._pins.pop(place))


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
    """Measure a replica's pins. What several of them share counts as the newest's, which goes last."""
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
