"""Health for an operator: the fault, the readers that it hurts, the cause, and the remedy (pure).

Each indicator checks one thing, and shows the first fault that it finds. The worst state wins; of two that are
equally bad the cause comes before its consequence. A fault that readers notice is `hurt`, one that takes away a reserve
is `attention`. Each function yields the faults of one indicator in the order of severity.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeVar

from understudy_router.admin.facts import NodeView
from understudy_router.admin.snapshot import ClusterSnapshot, Observed
from understudy_router.cluster.health import Health
from understudy_router.cluster.readiness import Cause
from understudy_shared.auth.access import Exposure
from understudy_shared.base.texts import duration_text, named
from understudy_shared.bus.messages import QueryProgress
from understudy_shared.cluster.node_calls import CallKind
from understudy_shared.http.health import MAX_AFFECTED, HealthReport, HealthState, Indicator

CHECKPOINT_UNREADABLE = "checkpoint-unreadable"
"""The cause of degradation of a node that cannot follow its checkpoint."""

T = TypeVar("T")


def fault(  # noqa: PLR0917  # the members of an indicator, in their order
    state: HealthState, symptom: str, impact: str = "", cause: str = "", action: str = "", affected: Iterable[str] = ()
) -> Indicator:
    """Return the indicator that shows one fault: what is seen of it, whom it hurts, why it is so, what to do, and
    where. It gets its name from the table of indicators.
    """
    return Indicator("", state, symptom, impact, cause, action, tuple(affected))


attention = partial(fault, HealthState.ATTENTION)
"""The constructor of a fault that takes away a reserve."""

hurt = partial(fault, HealthState.HURT)
"""The constructor of a fault that readers notice."""


def unknown(symptom: str, cause: str, action: str) -> Indicator:
    """Return the fault of an indicator that cannot be judged."""
    return fault(HealthState.UNKNOWN, symptom, cause=cause, action=action)


def first(found: Mapping[str, T]) -> T:
    return next(iter(found.values()))


def be(names: Collection[object], one: str = "is", many: str = "are") -> str:
    """Return the verb for one thing or for many."""
    return one if len(names) == 1 else many


def store_partitions(snapshot: ClusterSnapshot, tasks: Iterable[int]) -> tuple[str, ...]:
    """Return the store partitions of the first tasks, as `store/partition`."""
    index = snapshot.index
    found: list[str] = []
    for task in islice(tasks, MAX_AFFECTED):
        found += [f"{store}/{index.partition[task]}" for store in index.stores_of[index.operator_id[task]]]
    return tuple(found)


def count_of(snapshot: ClusterSnapshot, tasks: Mapping[int, int]) -> int:
    """Return the number of the store partitions of so many tasks of each operator."""
    return sum(count * len(snapshot.index.stores_of[operator_id]) for operator_id, count in tasks.items())


def store_partitions_in_all(snapshot: ClusterSnapshot) -> int:
    return sum(route.partitions for route in snapshot.index.routes)


def waiting_nodes(snapshot: ClusterSnapshot) -> dict[str, str]:
    """Return the live nodes that wait for their checkpoint, and the part of it that they wait for."""
    return {beat.node_id: beat.waits_for for beat in snapshot.heartbeats if beat.waits_for is not None}


def blind_nodes(snapshot: ClusterSnapshot) -> list[str]:
    return [beat.node_id for beat in snapshot.heartbeats if CHECKPOINT_UNREADABLE in beat.degraded]


MANY_ERRORS_PERCENT, SOME_ERRORS_PERCENT = 5.0, 0.5
"""The shares of failed reads over the last minute above which readers are hurt, or need attention."""

MANY_CALLS_PERCENT, SOME_CALLS_PERCENT = 50.0, 5.0
"""The same of calls for other reads: where one fails, another replica is asked."""

_CALLS = {CallKind.SCAN: "scans", CallKind.EXPORT: "exports", CallKind.LEASE: "leases", CallKind.WATCH: "watches"}

OLD_MS = 60_000
"""The p99 from commit to visible, in ms, above which it needs attention."""

END_UNKNOWN = "the end of the commit log is not known"

QUIET_PACES, MIN_QUIET_MS = 5, 5_000
"""Limits of quiet: the query is quiet after this multiple of its usual time between commits, and not before so many
ms.
"""


def reads(seen: Observed) -> Iterator[Indicator]:
    """Whether readers get answers, all within their bounds."""
    snapshot, rates = seen.snapshot, seen.rates
    if snapshot.about.not_ready:
        yield _not_ready(snapshot, "; ".join(snapshot.about.not_ready))
    totals = snapshot.totals
    unserved = count_of(snapshot, {operator_id: each.unserved for operator_id, each in totals.summaries.items()})
    if unserved:
        dead = named(view.node_id for view in snapshot.nodes.values() if not view.is_live)
        yield hurt(
            f"{unserved} of {store_partitions_in_all(snapshot)} store partitions cannot be read",
            "their readers get 503",
            f"no replica is open; dead: {dead}" if dead else "no replica is open yet",
            f"start {dead} again" if dead else "wait while the nodes restore; understudy lag shows how far",
            store_partitions(snapshot, totals.unserved),
        )
    if rates.violations:
        symptom = f"{rates.violations} answers were older than their readers asked for"
        yield hurt(symptom, "a reader may have acted on them", "a bug", "report it with the log of router and node")
    percent = rates.error_percent or 0.0
    if percent >= SOME_ERRORS_PERCENT:
        yield fault(
            HealthState.HURT if percent >= MANY_ERRORS_PERCENT else HealthState.ATTENTION,
            f"{percent:g} % of the reads of the last minute failed",
            f"{rates.errors_per_s:g} readers a second get an error",
            action="see understudy_router_fallbacks_total: it counts them by reason; then the nodes below",
        )


def calls(seen: Observed) -> Iterator[Indicator]:
    """Whether scans, exports, leases and watches are answered, to readers and by nodes."""
    refused = seen.rates.failed_requests
    if refused:
        percent, kind = max((percent, kind) for kind, percent in refused.items())
        if percent >= SOME_ERRORS_PERCENT:
            yield fault(
                HealthState.HURT if percent >= MANY_ERRORS_PERCENT else HealthState.ATTENTION,
                f"{percent:g} % of the {_CALLS[kind]} of the last minute failed",
                f"readers get an error for {', '.join(_CALLS[each] for each in sorted(refused))}",
                "nodes refuse or do not answer, or more are asked for than limits allow",
                "see understudy_requests_total: it counts them by op and outcome; then the log of the nodes",
                [str(each) for each in sorted(refused)],
            )
    failed = seen.rates.failed_calls
    if not failed:
        return
    percent, kind = max((percent, kind) for kind, percent in failed.items())
    if percent >= SOME_CALLS_PERCENT:
        yield fault(
            HealthState.HURT if percent >= MANY_CALLS_PERCENT else HealthState.ATTENTION,
            f"{percent:g} % of the calls to nodes for {_CALLS[kind]} failed in the last minute",
            f"{', '.join(_CALLS[each] for each in sorted(failed))} are slow, or get 503 or 504",
            "nodes do not answer, or others of their kind have all places",
            "see understudy_router_calls_total: it counts them by outcome; then the log of the nodes",
            [str(each) for each in sorted(failed)],
        )


def _not_ready(snapshot: ClusterSnapshot, why: str) -> Indicator:
    """Return the fault of a router that does not answer readers yet, or stops."""
    if "stopping" in why:
        return attention("This router stops", cause=why, action="ask another router")
    for node_id, what in waiting_nodes(snapshot).items():
        action = "start the query, or mend the path of the checkpoint in the settings of the nodes"
        return unknown(f"No reader is answered yet: {node_id} waits for {what}", why, action)
    action = "look whether a node of this application runs on this Redis: its /readyz says what it waits for"
    return unknown("No reader is answered yet", why, action)


def checkpoint(seen: Observed) -> Iterator[Indicator]:
    """Whether the end of the commit log is known, so that lag is."""
    snapshot = seen.snapshot
    live = [beat.node_id for beat in snapshot.heartbeats]
    blind, count = blind_nodes(snapshot), store_partitions_in_all(snapshot)
    if not live:
        yield unknown("No node can say how the checkpoint is", "", "start a node")
    if not count and not blind:
        waiting = "; ".join(f"{node_id} waits for {what}" for node_id, what in waiting_nodes(snapshot).items())
        action = "wait; if it stays, look at /readyz of a node"
        yield unknown("No node has read a commit of the query yet", waiting or "the nodes start", action)
    if not snapshot.end_confirmed:
        age = "" if snapshot.end_age_ms is None else f" for {duration_text(snapshot.end_age_ms)}"
        yield hurt(
            f"{count} store partitions answer only readers without a lag bound",
            "their lag is unknown",
            f"no node confirmed the end of the commit log{age}"
            + (f"; {named(blind)} cannot read the checkpoint" if blind else ""),
            f"look at the checkpoint's storage as {named(blind or live)} see it",
            blind,
        )
    if blind:
        yield attention(
            f"{named(blind)} cannot read the checkpoint",
            "what they serve does not get newer",
            "reading the commit log fails there",
            "see the error in GET /admin/v1/lag of that node, then its mount or its access to the storage",
            blind,
        )


def query(seen: Observed) -> Iterator[Indicator]:
    """Whether the query commits as it did."""
    if not seen.snapshot.end_confirmed:
        yield unknown("Whether the query commits is not known", END_UNKNOWN, "see checkpoint")
    quiet = quiet_query(seen)
    if quiet is not None:
        yield quiet


def quiet_query(seen: Observed) -> Indicator | None:
    """Return the fault of a query that is quiet for longer than usual; None before its pace is known."""
    said = _progress(seen.snapshot)
    usual = (query.commit_interval_ms for _, query in said if query.commit_interval_ms is not None)
    since = (query.since_commit_ms + (view.age_ms or 0) for view, query in said if query.since_commit_ms is not None)
    # A router that has seen no commits takes what the nodes saw: no node saw a commit before it was there.
    usual_ms = seen.usual_commit_ms or max(usual, default=None)
    if usual_ms is None:
        return None
    silent_ms = max([seen.silent_ms, *since])
    if silent_ms <= max(MIN_QUIET_MS, QUIET_PACES * usual_ms):
        return None
    why, action = _why_quiet(seen.snapshot, said)
    return attention(
        f"The query has not committed for {duration_text(round(silent_ms))}",
        "answers stay what they are",
        f"it usually commits every {duration_text(round(usual_ms))}; {why}",
        action,
    )


def _progress(snapshot: ClusterSnapshot) -> list[tuple[NodeView, QueryProgress]]:
    """Return the reports about the query by the nodes that know the newest end of the history in use."""
    return [
        (view, beat.query)
        for view in snapshot.nodes.values()
        if (beat := view.heartbeat) is not None
        and beat.query is not None
        and beat.lineage == snapshot.lineage
        and beat.end_version == snapshot.end_version
    ]


def _why_quiet(snapshot: ClusterSnapshot, said: list[tuple[NodeView, QueryProgress]]) -> tuple[str, str]:
    """Return the cause by what the files show, and where to look.

    A query that was stopped leaves the same files as one without input. But a batch writes its offsets when it begins
    and its commit when it ends, so a query that is slow, or that ended within a batch, differs from one that begins no
    batch.
    """
    if not said:
        return "it stopped, hangs, or has no input", "look at the query"
    batch = f"batch {snapshot.end_version}"
    begun = [query.batch_ms + (view.age_ms or 0) for view, query in said if query.batch_ms is not None]
    if begun:
        ago = duration_text(max(begun))
        why = f"{batch} began at least {ago} ago, without a commit: it is slow, hangs, or ended there"
        return why, "look at the query's driver, and at the tasks of that batch"
    why = f"{batch} has not begun: the query was stopped, waits for its trigger, or has no input"
    return why, "look whether the query runs, and whether its sources have input"


def freshness(seen: Observed) -> Iterator[Indicator]:
    """Whether the commits of the query are soon visible."""
    if not seen.snapshot.end_confirmed:
        yield unknown("How fresh answers are is not known", END_UNKNOWN, "see checkpoint")
    growing = [store for store, trend in seen.trends.items() if trend.direction == "growing"]
    if growing:
        yield attention(
            f"{named(growing)} fall behind",
            "answers get older",
            "commits come faster than the last of their replicas applies them",
            "find that replica with understudy lag; the runbook tells a slow storage from a node without CPU",
            growing,
        )
    beats = seen.snapshot.heartbeats
    late = {each.node_id: each.freshness.p99_ms for each in beats if each.freshness and each.freshness.p99_ms > OLD_MS}
    if late:
        yield attention(
            f"Commits take up to {duration_text(max(late.values()))} to be visible on {named(late)}",
            "answers are older than usual",
            "by the commits of the last minute, from a commit until a replica that was in step showed it",
            "follow the runbook: it tells a slow storage from a node without CPU",
            late,
        )


def nodes(seen: Observed) -> Iterator[Indicator]:
    """Whether the nodes live and answer this router."""
    # One function, so that the faults stand in the order that readers meet them, each with its own words.
    snapshot = seen.snapshot
    views = snapshot.nodes.values()
    live = [view for view in views if view.is_live]
    dead = {view.node_id: view.dead.why for view in views if view.dead is not None and not view.dead.said_farewell}
    unheard = "the assignment names it, and it was not heard"
    gone = [view for view in snapshot.holders if not view.is_live]
    lost = {**dead, **{view.node_id: unheard if view.dead is None else view.dead.why for view in gone}}
    if not live:
        state, why = (
            HealthState.HURT if lost else HealthState.UNKNOWN,
            next(iter(dead.values()), "none was heard on Redis"),
        )
        yield fault(state, "No node lives", "no reader is answered", why, "start the nodes", dead)
    if lost:
        yield attention(
            f"{named(lost)} {be(lost)} dead",
            f"other nodes answer for {be(lost, 'it', 'them')}",
            first(lost),
            f"start {named(lost)} again with the same node_id and data_dir, or start another node",
            lost,
        )
    waiting = {view.node_id: view.heartbeat.waits_for for view in live if view.state == "waiting" and view.heartbeat}
    if waiting:
        yield attention(
            f"{named(waiting)} {be(waiting, 'waits', 'wait')} for {first(waiting)}",
            f"{be(waiting, 'it holds', 'they hold')} nothing yet",
            "the query has not begun there, or the path is wrong",
            "start the query, or mend the path of the checkpoint in the settings of the node",
            waiting,
        )
    yield from _doubted(live)


def _doubted(live: list[NodeView]) -> Iterator[Indicator]:
    """Yield the faults of nodes that live, but are asked after the others."""
    doubted = {view.node_id: view.health for view in live if view.health and view.health.health is not Health.OK}
    if doubted:
        health, action = first(doubted), "look at that node, and at the network between it and this router"
        symptom = f"{named(doubted)} {be(doubted)} {health.health}"
        yield attention(symptom, "asked after the others", health.why, action, doubted)
    failed = [view.node_id for view in live if view.state == "failed"]
    if failed:
        symptom = f"{named(failed)} {be(failed, 'has', 'have')} failed"
        why = "something in it died, or it follows another checkpoint"
        yield attention(symptom, "asked last", why, "its /readyz says why", failed)
    going = {view.node_id: view.state for view in live if view.state in {"draining", "leaving"}}
    if going:
        action = f"stop it when it holds nothing, or understudy drain {next(iter(going))} --undo"
        symptom = f"{named(going)} {be(going)} {first(going)}"
        yield attention(symptom, "others take over what it has", "somebody asked for it", action, going)


def redundancy(seen: Observed) -> Iterator[Indicator]:
    """Whether each store partition has another caught-up replica, where it should have."""
    snapshot, totals = seen.snapshot, seen.snapshot.totals
    thin = count_of(snapshot, {operator_id: each.thin for operator_id, each in totals.summaries.items()})
    if thin:
        yield attention(
            f"{thin} of {store_partitions_in_all(snapshot)} store partitions have one caught-up replica or none",
            "one more failure, and their readers wait",
            "the other replica is dead or not caught up yet",
            "wait while the others restore; start dead nodes again; stop no other node",
            store_partitions(snapshot, totals.thin),
        )


def bus(seen: Observed) -> Iterator[Indicator]:
    """Whether the router hears Redis, and Redis accepts the writes of the nodes."""
    about, impact = seen.snapshot.about, "lookups go on; no failure is healed meanwhile"
    why = about.bus_lost_why or about.unheard
    if why is not None:
        symptom = "Redis is not heard" if about.bus_lost_why else "Redis does not carry what the nodes say"
        yield attention(symptom, impact, why, "bring Redis back; restart nothing")
    refused = about.causes.get(Cause.WRITES_REFUSED)
    if refused is not None:
        yield attention("Redis refuses writes", impact, refused, "look at its memory, its disk, its role and its ACL")


def restores(seen: Observed) -> Iterator[Indicator]:
    """Whether replicas restore, or stopped with an error."""
    totals = seen.snapshot.totals
    broken = sum(each.broken for each in totals.summaries.values())
    if totals.errors:
        yield attention(
            f"{broken} replica{'' if broken == 1 else 's'} cannot go on",
            "they show the last good version with its true lag",
            totals.errors[0],
            "look at that node's disk and at the checkpoint's storage; it tries again by itself",
            totals.errors,
        )
    count = sum(each.restoring for each in totals.summaries.values())
    if count:
        yield attention(
            f"{count} replica is restoring" if count == 1 else f"{count} replicas are restoring",
            "they answer late or not yet; the others answer",
            "nodes started, or tasks move",
            "wait; understudy lag --watch shows how far they are",
        )


_SHOWN_ELSEWHERE = frozenset({
    Cause.BUS_AWAY, Cause.NODES_UNHEARD, Cause.WRITES_REFUSED, Cause.LAG_UNKNOWN, CHECKPOINT_UNREADABLE,
})  # fmt: skip
"""Causes that the indicators `bus` and `checkpoint` show."""


def degraded(seen: Observed) -> Iterator[Indicator]:
    """Whether the nodes and this router work apart from lookups, by the causes that no other indicator shows."""
    own = [why for cause, why in seen.snapshot.about.causes.items() if cause not in _SHOWN_ELSEWHERE]
    beats = seen.snapshot.heartbeats
    by_node = {beat.node_id: [cause for cause in beat.degraded if cause not in _SHOWN_ELSEWHERE] for beat in beats}
    found = {node_id: causes for node_id, causes in by_node.items() if causes}
    who = [*(["this router"] if own else []), *found]
    why = [*own, *(f"{node_id}: {', '.join(causes)}" for node_id, causes in list(found.items())[:3])]
    if who:
        action = "go by the causes in the runbook; /readyz of the service has the details"
        yield attention(f"{named(who)} {be(who)} degraded", "lookups go on", "; ".join(why), action, found)


def agreement(seen: Observed) -> Iterator[Indicator]:
    """Whether this router and the nodes agree about the nodes."""
    found = seen.disagreements
    if found:
        nodes = list(dict.fromkeys(each["node_id"] for each in found))
        yield attention(
            f"This router and {named(nodes)} do not agree",
            "reads may take a longer way",
            f"this router says {found[0]['router_says']}; {found[0]['node_id']} says {found[0]['node_says']}",
            "compare with what the other routers show; look at the network between",
            nodes,
        )


def access(seen: Observed) -> Iterator[Indicator]:
    """Whether strangers need no credentials here, or can intercept others'."""
    exposure = seen.snapshot.about.exposure
    if exposure is None:
        return
    if exposure is Exposure.UNGUARDED:
        impact, option = "anybody who reaches it can read every store and drain nodes", "--credentials-file"
    else:
        impact, option = "anybody on their way can read them, and do what they allow", "--tls-cert-file"
    yield attention(
        f"Other machines may reach this router, and {exposure}",
        impact,
        "insecure_bind says that the network keeps strangers out",
        f"give it {option}, or let it listen on loopback",
    )


INDICATORS: Mapping[str, Callable[[Observed], Iterator[Indicator]]] = {
    faults.__name__: faults
    for faults in (
        reads, calls, checkpoint, query, nodes, bus, freshness, restores, redundancy, degraded, agreement, access,
    )
}  # fmt: skip
"""All indicators by name, causes before their consequences. JSON, metrics, alerts and runbooks use these names."""


def health_of(seen: Observed, before: HealthReport | None = None) -> Generator[None, None, HealthReport]:
    """Evaluate all indicators, in slices: it takes longer with more nodes. `before` is the last report."""
    found: list[Indicator] = []
    for name, faults in INDICATORS.items():
        found.append(replace(next(faults(seen), Indicator(name)), name=name))
        yield
    return HealthReport.after(before, found, seen.snapshot.about.now_us)
