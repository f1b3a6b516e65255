"""The choice of the replicas to ask for a key, their order, and the reasons against others (pure).

First the live RUNNING active inside the bound, then every other live replica inside it by least lag, ties by load and
then by a stable hash; last the replicas of unknown lag, if the bound allows them. Draining nodes come after all of
these, and suspect ones after those. The tables are up to a heartbeat old, and the node measures the bound itself:
replicas that break it by the tables alone are *doubtful*, and are asked after all others
(docs/decisions/0005-choice.md); after these too, those that the bus alone calls dead, and those in quarantine
(docs/decisions/0009-health.md). Dead replicas are asked only when no replica lives by the tables: a pause of this
router looks the same (docs/decisions/0013-silence-is-no-proof.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import NamedTuple
from zlib import crc32

from understudy_router.cluster.candidates import Candidate, basis_of, candidates_of
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.cluster.health import RANK, Health
from understudy_router.cluster.tables import Tables
from understudy_router.cluster.watching import ClusterWatcher
from understudy_shared.base.clock import Clock
from understudy_shared.base.words import HostInfo, KeyQueryMetadata, LagInfo, ReplicaState, Role
from understudy_shared.bus.messages import Assignment
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.reads.bound_parsing import bound_fields
from understudy_shared.reads.bounds import Bound, Refusal, refusal
from understudy_shared.spark.key_codec import Row


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
"""Sort key after every lag."""

_NO_VERSION = 1
"""Sort key after every version."""


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


def resolve(tables: Tables, route: StoreRoute, row: Row) -> KeyQueryMetadata:
    """Return the partition of a key of a store that is not scattered, by its catalogue, and the hosts."""
    return metadata_of(tables, route, route.codec.partition(row, route.partitions))


def metadata_of(tables: Tables, route: StoreRoute, partition: int) -> KeyQueryMetadata:
    """Return the hosts of a partition of a store, by the newest assignment. Warm-ups are left out."""
    duty = assignment_of(tables).tasks.get(f"{route.operator_id}_{partition}")
    if duty is None:
        return KeyQueryMetadata(None, (), partition)
    active = None if duty.active is None else host_of(tables, duty.active)
    standbys = (host_of(tables, node_id) for node_id in duty.standbys)
    return KeyQueryMetadata(active, tuple(host for host in standbys if host is not None), partition)


def assignment_of(tables: Tables) -> Assignment:
    """Return the assignment; raise a not-initialised problem before there is one."""
    if tables.assignment is None:
        raise ProblemError(
            Problem(ProblemType.NOT_INITIALISED, "no assignment is known yet", fix="Retry when /readyz says so")
        )
    return tables.assignment


def host_of(tables: Tables, node_id: str) -> HostInfo | None:
    """Return where a node listens: by its own heartbeat, else by the assignment; None when it is dead or unknown."""
    node = tables.nodes.get(node_id)
    if node is not None:
        return node.heartbeat.endpoint.host_info()
    if node_id in tables.dead or tables.assignment is None:
        return None
    endpoint = tables.assignment.members.get(node_id)
    return None if endpoint is None else endpoint.host_info()


def explain_key(
    tables: Tables, route: StoreRoute, row: Row, bound: Bound, *, load: Mapping[str, int], now_ms: float
) -> dict[str, object]:
    """Return `GET /v1/stores/{store}/metadata/{k...}`: what a lookup of this key under this bound would do now. A key
    of a scattered store is in no one partition; `asked` has each of them.
    """
    assignment = assignment_of(tables)
    of_partition = partial(_of_partition, tables, route, bound, load=load, now_ms=now_ms)
    if route.codec.is_scattered:
        asked = [of_partition(each) for each in range(route.partitions)]
        place: dict[str, object] = {"partition": None, "active_host": None, "standby_hosts": [], "asked": asked}
        place |= {"choice": [], "exclusions": []}
    else:
        place = of_partition(resolve(tables, route, row).partition)
    return {
        "store": route.name,
        "key": route.codec.to_json(route.codec.encode(row)),
        "placement": route.codec.placement,
        "partitions": route.partitions,
        **place,
        "term": assignment.term,
        "epoch": assignment.epoch,
        "lineage": route.lineage,
        "end_offset_position": tables.end_version or None,
        "end_confirmed": tables.end_confirmed(now_ms),
        "bounds": {**bound_fields(bound), **replace(bound.selection, cursor=None).fields()},
    }


def _of_partition(
    tables: Tables, route: StoreRoute, bound: Bound, partition: int, *, load: Mapping[str, int], now_ms: float
) -> dict[str, object]:
    """Return the hosts of a partition, and what a read of a key in it would do now."""
    metadata = metadata_of(tables, route, partition)
    candidates = candidates_of(tables, route.operator_id, partition, now_ms)
    choice = choose(candidates, bound, key_hash=key_hash(route, partition), load=load)
    return {
        "partition": partition,
        "active_host": host_fields(metadata.active_host),
        "standby_hosts": [host_fields(host) for host in metadata.standby_hosts],
        "choice": _choice(choice),
        "exclusions": [{**described(each.candidate), "reason": each.reason} for each in choice.exclusions],
    }


def key_hash(route: StoreRoute, partition: int) -> int:
    """Return the tie-breaker between replicas: the same for all keys of a partition, so that its cache is used."""
    return route.operator_id * 1_000_003 + partition


def described(candidate: Candidate) -> dict[str, object]:
    """Return a candidate as readers see it; unknown values are null."""
    return {
        "node_id": candidate.node_id,
        "host": candidate.endpoint.host,
        "port": candidate.endpoint.port,
        "role": candidate.role,
        "state": candidate.state,
        "version": candidate.version,
        "offset_lag": candidate.offset_lag,
        "time_lag_ms": candidate.time_lag_ms,
        "report_age_ms": candidate.report_age_ms,
        "health": candidate.health if candidate.is_live and candidate.is_heard else None,
    }


def _choice(choice: Choice) -> list[dict[str, object]]:
    first = [{**described(candidate), "why": _why(candidate)} for candidate in choice.order]
    return first + [{**described(each.candidate), "why": _why_doubtful(each)} for each in choice.doubtful]


def _why(candidate: Candidate) -> str:
    lag = candidate.offset_lag
    behind = "lag unknown, which the bound allows" if lag is None else f"{lag} version{'' if lag == 1 else 's'} behind"
    words = [f"{candidate.role}, {behind}"]
    if candidate.is_draining:
        words.append(f"asked late: its node is {candidate.standing}")
    if candidate.health is not Health.OK:
        words.append(f"asked late: {_health(candidate)}")
    return "; ".join(words)


def _why_doubtful(each: Exclusion) -> str:
    if each.reason is Reason.NOT_HEARD_OF:
        return "asked last: nothing was heard of it yet"
    if each.reason is Reason.SILENT:
        return "asked last: silent on Redis for three heartbeats, and not asked yet"
    if each.reason is Reason.DEAD:
        return "asked last: dead by what is known here, as every replica is; a pause of this router looks the same"
    if each.reason is Reason.QUARANTINED:
        return f"asked last: {_health(each.candidate)}"
    why = f"asked last: {each.reason} by its last report; the node measures it anew"
    return why if each.candidate.health is Health.OK else f"{why}; {_health(each.candidate)}"


def _health(candidate: Candidate) -> str:
    return f"{candidate.health}, {candidate.health_why}"


def host_fields(host: HostInfo | None) -> dict[str, object] | None:
    """Return a host as JSON."""
    return None if host is None else {"host": host.host, "port": host.port}


MAX_CHOICE_AGE_MS = 100
"""Far below a heartbeat, which is how old the tables of a choice may be."""

MAX_CHOICES = 16_384
"""Cached choices by partition and bound; when there are more, the cache is cleared."""


@dataclass(slots=True)
class _Chosen:
    """A cached choice: its bound, time and inputs, and the version of the tables when it last held."""

    bound: Bound
    at_ms: float
    choice: Choice
    version: int
    holders: tuple[str, ...]
    basis: tuple[object, ...]


class Choices:
    """The choices of replicas by the tables, cached. `load` is keys in flight, by node id."""

    def __init__(self, tables: Tables, watcher: ClusterWatcher, *, load: Mapping[str, int], clock: Clock) -> None:
        self._tables = tables
        self._watcher = watcher
        self._load = load
        self._clock = clock
        self._chosen: dict[tuple[int, int, int], _Chosen] = {}

    def choose(self, route: StoreRoute, partition: int, bound: Bound) -> Choice:
        """Choose for a partition. The choice is cached while its inputs stay the same, at most MAX_CHOICE_AGE_MS:
        ages grow. A heartbeat of a node without this partition changes nothing: a thousand nodes send one a second.
        """
        now_ms, tables = self._clock.monotonic_ms(), self._tables
        place = (route.operator_id, partition, id(bound))
        kept = self._chosen.get(place)
        if kept is not None and kept.bound is bound and now_ms - kept.at_ms <= MAX_CHOICE_AGE_MS:
            if kept.version == tables.version:
                return kept.choice
            if kept.basis == basis_of(tables, kept.holders, now_ms):
                kept.version = tables.version
                return kept.choice
        if len(self._chosen) >= MAX_CHOICES:
            self._chosen.clear()
        candidates = candidates_of(tables, route.operator_id, partition, now_ms)
        holders = tuple(candidate.node_id for candidate in candidates)
        basis = basis_of(tables, holders, now_ms)
        choice = choose(candidates, bound, key_hash=key_hash(route, partition), load=self._load)
        if any(each.reason is Reason.LINEAGE_CHANGED for each in choice.exclusions):
            self._watcher.refresh()  # there are two histories: this router's may be the old one
        self._chosen[place] = _Chosen(bound, now_ms, choice, tables.version, holders, basis)
        return choice
