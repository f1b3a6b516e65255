"""Bounds of a reader: how old an answer may be, which role may give it, how unknown lag counts, and which page of it is
wanted (pure).

By default there is no bound: every replica may answer, and the answer states its age.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.printable import clipped
from understudy_shared.base.words import LagInfo, Role
from understudy_shared.reads.cursor import decode_cursor
from understudy_shared.reads.position import Position, decode_position
from understudy_shared.reads.selection import EVERYTHING, MAX_PAGE_ELEMENTS, Selection

MAX_BATCH_KEYS = 1000
"""Limit on the keys of one batch lookup; a server refuses more with 413, and a client sends several batches."""

WAIT_WITH_POSITION_MS = 200
"""Default patience of a reader that named a position: a commit normally becomes visible well within it."""

MAX_WAIT_MS = 30_000
"""Longest time a lookup may wait for a position; longer belongs to the watch call."""

MAX_LIMIT = 10**18 - 1
"""Largest `max_lag` and `max_staleness_ms`: 18 digits, the same in a query and in a body."""


class BadBoundError(UnderstudyError):
    """A bound is unknown, mistyped or out of range."""


class UnknownLag(StrEnum):
    """The treatment of a replica whose lag is unknown."""

    SERVE = "serve"
    REFUSE = "refuse"


class Refusal(StrEnum):
    """The reason why a replica may not answer under a bound; routers fall back by it."""

    LAG_EXCEEDED = "lag-exceeded"
    LAG_UNKNOWN = "lag-unknown"
    BELOW_MIN_POSITION = "below-min-position"
    NOT_ACTIVE = "not-active"
    LINEAGE_CHANGED = "lineage-changed"
    VERSION_GONE = "version-gone"
    """The replica does not hold a cursor's version: it dropped that version, or has not reached it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound of a reader: `max_lag` in versions (inclusive), `max_staleness_ms`, `min_position`, `require_active`.

    `unknown_lag=None` means: serve unknown lag when no lag bound was given, refuse it when one was.
    """

    max_lag: int | None = None
    max_staleness_ms: int | None = None
    min_position: Position | None = None
    require_active: bool = False
    unknown_lag: UnknownLag | None = None
    wait_ms: int = 0
    selection: Selection = EVERYTHING

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
    bound: Bound,
    *,
    lag: LagInfo,
    role: Role,
    version: int,
    position_committed_at_us: int | None,
    known_end: int = 0,
) -> Refusal | None:
    """Return why a replica at `version` may not answer, or None when it may. The caller has checked the lineage.

    `known_end` is a version that is known to be committed, whether the replica has heard of it or not: even one whose
    lag is unknown is at least that far behind.

    `position_committed_at_us` is when the replica's history committed the version that `min_position` names, None when
    that is not known. Another time than the token's means that the history was rewound: same number, another batch.
    """
    if bound.require_active and role is not Role.ACTIVE:
        return Refusal.NOT_ACTIVE
    position = bound.min_position
    if position is not None:
        if _differs(position_committed_at_us, position.committed_at_us):
            return Refusal.LINEAGE_CHANGED
        if version < position.version:
            return Refusal.BELOW_MIN_POSITION
    # A bound that is surely exceeded refuses first: `unknown_lag=serve` excuses only unknown lag.
    if (
        _exceeds(known_end - version, bound.max_lag)
        or _exceeds(lag.offset_lag, bound.max_lag)
        or _exceeds(lag.time_lag_ms, bound.max_staleness_ms)
    ):
        return Refusal.LAG_EXCEEDED
    if lag.offset_lag is None or (bound.max_staleness_ms is not None and lag.time_lag_ms is None):
        return None if bound.serves_unknown_lag else Refusal.LAG_UNKNOWN
    return None


def _exceeds(lag: int | None, limit: int | None) -> bool:
    return lag is not None and limit is not None and lag > limit


def _differs(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a != b


def parse_bound(parameters: Mapping[str, object]) -> Bound:
    """Parse the bound in query parameters (texts) or a JSON object (numbers, booleans).

    Raises BadBoundError naming the parameter, what it was and what is accepted.
    """
    unknown = sorted(set(parameters) - _PARAMETERS)
    if unknown:
        raise BadBoundError(
            f"unknown bound {clipped(unknown[0])}", where="bounds", fix=f"Known are: {', '.join(sorted(_PARAMETERS))}"
        )
    token = parameters.get("min_position")
    if token is not None and not isinstance(token, str):
        raise BadBoundError("min_position must be a text", where="min_position", fix="Send the `position` of an answer")
    position = None if token is None else decode_position(token)
    return Bound(
        max_lag=_whole(parameters, "max_lag", unit="versions"),
        max_staleness_ms=_whole(parameters, "max_staleness_ms", unit="milliseconds"),
        min_position=position,
        require_active=parse_flag(parameters, "require_active"),
        unknown_lag=_unknown_lag(parameters.get("unknown_lag")),
        wait_ms=_wait_ms(parameters, position is not None),
        selection=_selection(parameters),
    )


_SELECTION = ("limit", "cursor", "include_expired")
_PARAMETERS = {"max_lag", "max_staleness_ms", "min_position", "require_active", "unknown_lag", "wait_ms", *_SELECTION}


def _selection(parameters: Mapping[str, object]) -> Selection:
    limit, cursor, include_expired = map(parameters.get, _SELECTION)
    if limit is cursor is include_expired is None:
        return EVERYTHING
    return Selection(
        MAX_PAGE_ELEMENTS if limit is None else _limit(parameters),
        None if cursor is None else decode_cursor(cursor),
        include_expired is None or parse_flag(parameters, "include_expired"),
    )


def _limit(parameters: Mapping[str, object]) -> int:
    try:
        limit = _whole(parameters, "limit", unit="elements")
    except BadBoundError:
        limit = None
    if limit is not None and 1 <= limit <= MAX_PAGE_ELEMENTS:
        return limit
    raise BadBoundError(
        f"limit={clipped(parameters['limit'])} is not a whole number from 1 to {MAX_PAGE_ELEMENTS}",
        where="limit",
        fix="Send a smaller limit and follow next_cursor, or leave it out",
    )


def _whole(parameters: Mapping[str, object], name: str, *, unit: str) -> int | None:
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 <= value <= MAX_LIMIT
        and value == int(value)
    ):
        return int(value)  # some JSON writers write every number as 5.0
    raise BadBoundError(
        f"{name}={clipped(value)} is not a whole number of {unit}, 0 or more, of at most 18 digits",
        where=name,
        fix=f"Send for example {name}=5",
    )


def parse_flag(parameters: Mapping[str, object], name: str) -> bool:
    """Parse a boolean parameter, false when it is not given. Raises BadBoundError."""
    value = parameters.get(name)
    text = value.lower() if isinstance(value, str) else value  # Python and Spark write True and TRUE
    if text is True or text in ("true", "1"):
        return True
    if text is None or text is False or text in ("false", "0"):
        return False
    raise BadBoundError(f"{name}={clipped(value)} is not a boolean", where=name, fix="Send true or false")


def _unknown_lag(value: object) -> UnknownLag | None:
    if value is None:
        return None
    if isinstance(value, str) and value in set(UnknownLag):
        return UnknownLag(value)
    raise BadBoundError(
        f"unknown_lag={clipped(value)} is not a choice", where="unknown_lag", fix="Send serve or refuse"
    )


def _wait_ms(parameters: Mapping[str, object], has_position: bool) -> int:
    wait_ms = _whole(parameters, "wait_ms", unit="milliseconds")
    if wait_ms is None:
        return WAIT_WITH_POSITION_MS if has_position else 0
    if wait_ms > MAX_WAIT_MS:
        raise BadBoundError(
            f"wait_ms={wait_ms} is above {MAX_WAIT_MS}", where="wait_ms", fix=f"Wait at most {MAX_WAIT_MS} ms"
        )
    return wait_ms
