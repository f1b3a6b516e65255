"""The bounds of a read: the largest age of an answer or its exact version, the role that may answer, the treatment of
unknown lag, and the page of a long list (pure).

By default there is no bound: every replica may answer, and the answer states its age.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import ApplicationId, LagInfo, Lineage, Role
from understudy_shared.reads.tokens import PageCursor, Position, SnapshotLease

MAX_PAGE_ELEMENTS: Final = 1_000
"""Limit on the elements of one answer, and its default. It equals the limit on keys of a batch, because printing them
blocks the event loop.
"""


class ElementPlace(NamedTuple):
    """The number of an element of a key, and the bytes by which a version finds it; empty for the first element, and if
    elements are found by their number.
    """

    number: int = 0
    start: bytes = b""


FIRST_PLACE: Final = ElementPlace()


@dataclass(frozen=True, slots=True)
class Selection:
    """The elements to return of each key. `limit` is their number; without `include_expired`, elements that have surely
    expired are left out. `place`, at or before the cursor's offset, is known only at the node that issued the cursor.
    """

    limit: int = MAX_PAGE_ELEMENTS
    cursor: PageCursor | None = None
    include_expired: bool = True
    place: ElementPlace = FIRST_PLACE

    @property
    def offset(self) -> int:
        """The number of elements on earlier pages."""
        return 0 if self.cursor is None else self.cursor.offset

    def fields(self) -> dict[str, object]:
        """Return the parameters that it was made of; unset ones are left out."""
        fields: dict[str, object] = {} if self.limit == MAX_PAGE_ELEMENTS else {"limit": self.limit}
        if self.cursor is not None:
            fields["cursor"] = self.cursor.encode()
        return fields if self.include_expired else {**fields, "include_expired": False}


EVERYTHING: Final = Selection()


MAX_BATCH_KEYS = 1000
"""Limit on the keys of one batch lookup; a server refuses more with 413, and a client sends several batches."""

WAIT_WITH_POSITION_MS = 200
"""Default wait for a position that a read names. A commit normally becomes visible well within it."""

MAX_WAIT_MS = 30_000
"""Longest time for which a lookup may wait for a position. Use a watch for longer waits."""

MAX_LIMIT = 10**18 - 1
"""Largest `max_lag` and `max_staleness_ms`: 18 digits, the same in a query and in a body."""


class BadBoundError(UnderstudyError):
    """A bound is unknown, mistyped or out of range."""


class UnknownLag(StrEnum):
    """The treatment of a replica whose lag is unknown."""

    SERVE = "serve"
    REFUSE = "refuse"


class Refusal(StrEnum):
    """The reason why a replica may not answer under a bound. It decides how routers fall back."""

    LAG_EXCEEDED = "lag-exceeded"
    LAG_UNKNOWN = "lag-unknown"
    BELOW_MIN_POSITION = "below-min-position"
    NOT_ACTIVE = "not-active"
    LINEAGE_CHANGED = "lineage-changed"
    VERSION_NOT_YET = "version-not-yet"
    """The replica has not reached the requested version."""
    VERSION_OPENING = "version-opening"
    """The replica opens the version from the checkpoint: it can answer in a moment."""
    VERSION_GONE = "version-gone"
    """The replica can no longer read the requested version: the checkpoint no longer has it."""

    @property
    def may_pass(self) -> bool:
        """Whether the same replica may answer later: it may reach a newer version, or finish opening an older one."""
        return self in _PASSING


_PASSING = frozenset((Refusal.BELOW_MIN_POSITION, Refusal.VERSION_NOT_YET, Refusal.VERSION_OPENING))


class ReadVersion(NamedTuple):
    """The one version that a read wants. With a commit time, only the commit of that time counts."""

    number: int
    committed_at_us: int | None = None
    of_any_commit: bool = False

    def is_of(self, version: int, committed_at_us: int | None) -> bool:
        return version == self.number and (self.of_any_commit or committed_at_us == self.committed_at_us)


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound of a reader: `max_lag` in versions (inclusive), `max_staleness_ms`, `min_position`, `require_active`.

    `unknown_lag=None` means: serve unknown lag if no lag bound was given, refuse it if one was. Four things select one
    version: `version`; `snapshot`, the position of that version; `at_us`, a moment that `resolved_at` replaces by a
    snapshot (negative: relative to the read); and a cursor. `lease` is set if the token of a lease was sent as the
    snapshot: its use renews it.
    """

    max_lag: int | None = None
    max_staleness_ms: int | None = None
    min_position: Position | None = None
    require_active: bool = False
    unknown_lag: UnknownLag | None = None
    wait_ms: int = 0
    selection: Selection = EVERYTHING
    version: int | None = None
    snapshot: Position | None = None
    at_us: int | None = None
    lease: SnapshotLease | None = field(default=None, hash=False)

    @property
    def read_version(self) -> ReadVersion | None:
        """The one requested version; None for the newest. A cursor's version wins."""
        cursor, snapshot = self.selection.cursor, self.snapshot
        if cursor is not None:
            return ReadVersion(cursor.version, cursor.committed_at_us)
        if snapshot is not None:
            return ReadVersion(snapshot.version, snapshot.committed_at_us)
        return None if self.version is None else ReadVersion(self.version, of_any_commit=True)

    def moment_us(self, now_us: int) -> int | None:
        """Return the absolute moment that it names, for a read that begins now."""
        return now_us + self.at_us if self.at_us is not None and self.at_us < 0 else self.at_us

    def resolved_at(self, snapshot: Position) -> Bound:
        """Return the bound with the version that was the newest at the moment that it names."""
        return replace(self, at_us=None, snapshot=snapshot)

    @property
    def limits_lag(self) -> bool:
        return self.max_lag is not None or self.max_staleness_ms is not None

    @property
    def serves_unknown_lag(self) -> bool:
        if self.unknown_lag is not None:
            return self.unknown_lag is UnknownLag.SERVE
        return not self.limits_lag


NO_BOUND = Bound()


def refusal(
    bound: Bound, *, lag: LagInfo, role: Role, version: int, position_committed_at_us: int | None, known_end: int = 0
) -> Refusal | None:
    """Return why a replica at `version` may not answer, or None if it may. The caller has checked the lineage.

    `known_end` is a version that is known to be committed, even if the replica has not heard of it. So a replica with
    unknown lag is at least that far behind.

    `position_committed_at_us` is the time at which the replica's history committed the version of `min_position`, None
    if unknown. If it differs from the token's, the history was rewound: the same number is another batch.
    """
    if bound.require_active and role is not Role.ACTIVE:
        return Refusal.NOT_ACTIVE
    position = bound.min_position
    if position is not None:
        if _differs(position_committed_at_us, position.committed_at_us):
            return Refusal.LINEAGE_CHANGED
        if version < position.version:
            return Refusal.BELOW_MIN_POSITION
    wanted = bound.read_version
    if wanted is not None and version < wanted.number:
        return Refusal.VERSION_NOT_YET
    # A bound that is surely exceeded refuses first: `unknown_lag=serve` excuses only unknown lag.
    offset_lag, time_lag_ms = lag.offset_lag, lag.time_lag_ms
    if bound.max_lag is not None and (
        known_end - version > bound.max_lag or (offset_lag is not None and offset_lag > bound.max_lag)
    ):
        return Refusal.LAG_EXCEEDED
    if bound.max_staleness_ms is not None and time_lag_ms is not None and time_lag_ms > bound.max_staleness_ms:
        return Refusal.LAG_EXCEEDED
    if offset_lag is None or (bound.max_staleness_ms is not None and time_lag_ms is None):
        return None if bound.serves_unknown_lag else Refusal.LAG_UNKNOWN
    return None


def _differs(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a != b


def version_of(number: int, committed_at_us: int | None) -> ReadVersion:
    """Return the version to read. If its commit time is unknown, any commit with that number counts."""
    return ReadVersion(number, committed_at_us, of_any_commit=committed_at_us is None)


def bound_at(application_id: str, lineage: str, version: ReadVersion) -> Bound:
    if version.of_any_commit:
        return Bound(version=version.number)
    of = (ApplicationId(application_id), Lineage(lineage))
    return Bound(snapshot=Position(*of, version.number, version.committed_at_us))
