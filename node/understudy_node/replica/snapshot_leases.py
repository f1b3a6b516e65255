"""The snapshot leases of a node: each is a pin of a version with an expiry, within limits.

A lease is a matter of speed, never of truth: what is not kept any more is read from the checkpoint again. So a lease
that ends, or that a restart forgets, costs its reader a moment. The use of a forgotten one brings it back, into half
of the room at most: a token can be made up, and must not take the room of those who ask.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

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
    """Return the version of a lease: of that commit, and no other."""
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
