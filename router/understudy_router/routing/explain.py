"""The explanation of a lookup's route, as data: KIP-535's metadata, the order, and each exclusion's reason (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from understudy_router.cluster.candidates import Candidate, candidates_of
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.cluster.health import Health
from understudy_router.cluster.tables import Tables
from understudy_router.routing.choose import Choice, Exclusion, Reason, choose
from understudy_router.routing.resolve import assignment_of, metadata_of, resolve
from understudy_shared.base.words import HostInfo
from understudy_shared.reads.bound_parsing import bound_fields
from understudy_shared.reads.bounds import Bound
from understudy_shared.spark.key_codec import Row


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
