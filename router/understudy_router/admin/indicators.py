"""Health as an operator needs it: the fault, the readers that it hurts, the cause, and the remedy (pure).

Each indicator looks at one thing, and shows the first fault that it finds. The worst state wins; of two that are
equally bad the cause comes before its consequence. A fault that readers notice is `hurt`, one that takes away a reserve
is `attention`.

Each function yields the faults of one indicator in the order of severity.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace

from understudy_router.admin.facts import NodeView
from understudy_router.admin.faults import (
    CHECKPOINT_UNREADABLE,
    FEW,
    attention,
    be,
    count_of,
    fault,
    first,
    named,
    store_partitions,
    store_partitions_in_all,
)
from understudy_router.admin.reader_faults import calls, checkpoint, freshness, query, reads
from understudy_router.admin.snapshot import Observed
from understudy_router.cluster.degraded import Cause
from understudy_router.cluster.health import Health
from understudy_shared.auth.access import Exposure
from understudy_shared.http.health import HealthReport, Indicator, State


def nodes(seen: Observed) -> Iterator[Indicator]:
    """Whether the nodes live and answer this router."""
    # One function, so that the faults are seen in the order in which a reader gets them, each with its own words.
    snapshot = seen.snapshot
    views = snapshot.nodes.values()
    live = [view for view in views if view.is_live]
    dead = {view.node_id: view.dead.why for view in views if view.dead is not None and not view.dead.said_farewell}
    unheard = "the assignment names it, and it was not heard"
    gone = [view for view in snapshot.holders if not view.is_live]
    lost = {**dead, **{view.node_id: unheard if view.dead is None else view.dead.why for view in gone}}
    if not live:
        state, why = State.HURT if lost else State.UNKNOWN, next(iter(dead.values()), "none was heard on Redis")
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
    """Whether the nodes and this router work besides lookups, by the causes that no other indicator shows."""
    own = [why for cause, why in seen.snapshot.about.causes.items() if cause not in _SHOWN_ELSEWHERE]
    beats = seen.snapshot.heartbeats
    by_node = {beat.node_id: [cause for cause in beat.degraded if cause not in _SHOWN_ELSEWHERE] for beat in beats}
    found = {node_id: causes for node_id, causes in by_node.items() if causes}
    who = [*(["this router"] if own else []), *found]
    why = [*own, *(f"{node_id}: {', '.join(causes)}" for node_id, causes in list(found.items())[:FEW])]
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
    """Whether this router is open to strangers: it needs no credentials of them, or lets them read the credentials of
    others.
    """
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
    """Evaluate all indicators, in slices, because the time grows with the number of nodes. `before` is the report of
    the last look.
    """
    found: list[Indicator] = []
    for name, faults in INDICATORS.items():
        found.append(replace(next(faults(seen), Indicator(name)), name=name))
        yield
    return HealthReport.after(before, found, seen.snapshot.about.now_us)
