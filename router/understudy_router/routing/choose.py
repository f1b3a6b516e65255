"""The choice of the replicas to ask for a key, their order, and the reasons against others (pure).

First the live RUNNING active inside the bound, then every other live replica inside it by least lag, ties by load and
then by a stable hash; last the replicas of unknown lag, where the bound allows them. Nodes that drain go behind all of
these, and suspect ones behind those. The tables are up to a heartbeat old, and the node measures the bound itself:
replicas that break it by the tables alone are *doubtful*, and are asked after all others
(docs/decisions/0005-choice.md); after these too, those that the bus alone calls dead, and those in quarantine
(docs/decisions/0009-health.md). Dead replicas are asked only when no replica lives by the tables: a pause of this
router looks the same (docs/decisions/0013-silence-is-no-proof.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple
from zlib import crc32

from understudy_router.cluster.candidates import Candidate
from understudy_router.cluster.health import RANK, Health
from understudy_shared.base.words import LagInfo, ReplicaState, Role
from understudy_shared.reads.bounds import Bound, Refusal, refusal


class Reason(StrEnum):
    """The reason why a candidate is left out, or doubtful."""

    DEAD = "dead"
    NOT_OPEN = "not-open"
    OTHER_LAYOUT = "other-layout"
    FORKED = "forked"
    LINEAGE_CHANGED = "lineage-changed"
    NOT_ACTIVE = "not-active"
    NOT_HEARD_OF = "not-heard-of"
    SILENT = "silent"
    LAG_EXCEEDED = "lag-exceeded"
    LAG_UNKNOWN = "lag-unknown"
    BELOW_MIN_POSITION = "below-min-position"
    VERSION_NOT_YET = "version-not-yet"
    QUARANTINED = "quarantined"


class Exclusion(NamedTuple):
    """A candidate and the reason why it is not among the first to be asked."""

    candidate: Candidate
    reason: Reason


class Choice(NamedTuple):
    """Every candidate once. `order` is asked first; `doubtful` after it, in order; `exclusions` never."""

    order: tuple[Candidate, ...]
    doubtful: tuple[Exclusion, ...]
    exclusions: tuple[Exclusion, ...]

    @property
    def asked(self) -> tuple[Candidate, ...]:
        """Every candidate that may be asked, in order."""
        return (*self.order, *(each.candidate for each in self.doubtful))


_ASKED_LAST = frozenset(
    {
        Reason.LAG_EXCEEDED,
        Reason.LAG_UNKNOWN,
        Reason.BELOW_MIN_POSITION,
        Reason.VERSION_NOT_YET,
        Reason.NOT_OPEN,
        Reason.NOT_HEARD_OF,
        Reason.SILENT,
        Reason.QUARANTINED,
    }
)
"""Reasons that may have changed since the heartbeat: the node knows better."""

_UNKNOWN_LAG = 2**62
"""Sort key behind every lag."""

_NO_VERSION = 1
"""Sort key behind every version."""


def choose(candidates: Sequence[Candidate], bound: Bound, *, key_hash: int, load: Mapping[str, int]) -> Choice:
    """Sort the candidates of one partition. `load` is keys in flight, by node id."""
    order, doubtful, exclusions = [], [], []
    for candidate in candidates:
        reason = reason_against(candidate, bound)
        if reason is None:
            order.append(candidate)
        elif reason in _ASKED_LAST:
            doubtful.append(Exclusion(candidate, reason))
        else:
            exclusions.append(Exclusion(candidate, reason))

    if not order and not doubtful and all(each.reason is Reason.DEAD for each in exclusions):
        doubtful = [each for each in exclusions if _may_live(each.candidate, bound)]
        exclusions = [each for each in exclusions if each not in doubtful]

    def preference(candidate: Candidate) -> tuple[object, ...]:
        return _preference(candidate, key_hash=key_hash, load=load)

    def distrust(each: Exclusion) -> tuple[object, ...]:
        is_quarantined = each.candidate.health is Health.QUARANTINED
        is_last = each.reason is Reason.NOT_OPEN
        return (is_quarantined, each.candidate.is_silent, is_last, preference(each.candidate))

    return Choice(
        tuple(sorted(order, key=preference)),
        tuple(sorted(doubtful, key=distrust)),
        tuple(sorted(exclusions, key=lambda each: each.candidate.node_id)),
    )


def _may_live(dead: Candidate, bound: Bound) -> bool:
    """Whether a dead candidate may be asked: it has an address, did not leave, and is of the right kind."""
    is_wanted = dead.has_lineage and dead.has_layout and (dead.role == "active" or not bound.require_active)
    return is_wanted and dead.has_endpoint and not dead.has_left


def reason_against(candidate: Candidate, bound: Bound) -> Reason | None:
    """Return why a candidate does not fit, by the tables; None when it does."""
    # The reasons are in the order of precedence: a reader who is refused gets the first that applies.
    if not candidate.is_live:
        return Reason.DEAD
    if candidate.is_fork:
        return Reason.FORKED
    position = bound.min_position or bound.snapshot
    if not candidate.has_lineage or (position is not None and candidate.lineage not in {None, position.lineage}):
        return Reason.LINEAGE_CHANGED
    if not candidate.has_layout:
        return Reason.OTHER_LAYOUT
    if bound.require_active and candidate.role != "active":
        return Reason.NOT_ACTIVE
    if not candidate.is_heard:
        has_bound = bound.limits_lag or position is not None
        return Reason.NOT_HEARD_OF if has_bound or not bound.serves_unknown_lag else None
    if candidate.version is None:
        return Reason.NOT_OPEN
    lag = LagInfo(candidate.version, None, candidate.offset_lag, candidate.time_lag_ms)
    role = Role.ACTIVE if candidate.role == "active" else Role.STANDBY
    refused = refusal(bound, lag=lag, role=role, version=candidate.version, position_committed_at_us=None)
    if refused is not None:
        return _REASON_OF[refused]
    if candidate.health is Health.QUARANTINED:
        return Reason.QUARANTINED
    return Reason.SILENT if candidate.is_silent else None


_REASON_OF = {
    Refusal.LAG_EXCEEDED: Reason.LAG_EXCEEDED,
    Refusal.LAG_UNKNOWN: Reason.LAG_UNKNOWN,
    Refusal.BELOW_MIN_POSITION: Reason.BELOW_MIN_POSITION,
    Refusal.VERSION_NOT_YET: Reason.VERSION_NOT_YET,
    Refusal.NOT_ACTIVE: Reason.NOT_ACTIVE,
    Refusal.LINEAGE_CHANGED: Reason.LINEAGE_CHANGED,
}


def _preference(candidate: Candidate, *, key_hash: int, load: Mapping[str, int]) -> tuple[object, ...]:
    """Return the sort key of candidates that are equally allowed."""
    lag = candidate.offset_lag
    is_first = candidate.role == "active" and candidate.state == ReplicaState.RUNNING and lag is not None
    return (
        RANK[candidate.health],
        candidate.is_draining,
        not is_first,
        _UNKNOWN_LAG if lag is None else lag,
        # Their lag is unknown, but the later of two versions is the less stale one.
        0 if lag is not None else _NO_VERSION if candidate.version is None else -candidate.version,
        load.get(candidate.node_id, 0),
        crc32(b"%d %b" % (key_hash, candidate.node_id.encode())),
        candidate.node_id,
    )
