"""Indicators for the parts of the cluster: nodes, replicas, the bus, and who may reach it (pure)."""

from __future__ import annotations

from understudy_router.admin.indicator import FEW, Situation, be, ids, named, store_partitions, store_partitions_in_all
from understudy_router.admin.reader_looks import CHECKPOINT_UNREADABLE
from understudy_router.cluster.degraded import Cause
from understudy_router.cluster.health import Health
from understudy_shared.auth.binding import Exposure
from understudy_shared.http.health import Indicator, State


def nodes(situation: Situation) -> Indicator:
    """Whether the nodes live and answer this router."""
    # An indicator shows one fault: the branches are in the order of severity, and the first that applies wins.
    snapshot = situation.snapshot
    views = list(snapshot.nodes.values())
    dead = [view for view in views if view.dead is not None and not view.dead.said_farewell]
    listed = set(ids(dead))
    gone = [view for view in snapshot.holders if not view.is_live and view.node_id not in listed]
    live = [view for view in views if view.is_live]
    if not live:
        return Indicator(
            "nodes",
            State.HURT if dead or gone else State.UNKNOWN,
            "No node lives",
            "no reader is answered",
            dead[0].dead.why if dead and dead[0].dead is not None else "none was heard on the bus",
            "start the nodes",
            ids(dead),
        )
    if dead or gone:
        first = (dead or gone)[0]
        why = first.dead.why if first.dead is not None else "the assignment names it, and it was not heard"
        lost = ids([*dead, *gone])
        return Indicator(
            "nodes",
            State.ATTENTION,
            f"{named(lost)} {'is' if len(lost) == 1 else 'are'} dead",
            "other nodes answer for " + ("it" if len(lost) == 1 else "them"),
            why,
            f"start {named(lost)} again with the same node_id and data_dir, or start another node",
            lost,
        )
    waiting = [(view.node_id, view.heartbeat.waits_for) for view in live if view.state == "waiting" and view.heartbeat]
    if waiting:
        names = [node_id for node_id, _ in waiting]
        return Indicator(
            "nodes",
            State.ATTENTION,
            f"{named(names)} {'waits' if len(names) == 1 else 'wait'} for {waiting[0][1]}",
            "it holds nothing yet" if len(names) == 1 else "they hold nothing yet",
            "the query has not begun there, or the path is wrong",
            "start the query, or mend the path of the checkpoint in the settings of the node",
            tuple(names),
        )
    doubted = [view for view in live if view.health is not None and view.health.health is not Health.OK]
    if doubted:
        health = doubted[0].health
        assert health is not None
        return Indicator(
            "nodes",
            State.ATTENTION,
            f"{named(ids(doubted))} {be(doubted)} {health.health}",
            "asked after the others",
            health.why,
            "look at that node, and at the network between it and this router",
            ids(doubted),
        )
    failed = [view for view in live if view.state == "failed"]
    if failed:
        return Indicator(
            "nodes",
            State.ATTENTION,
            f"{named(ids(failed))} {'has' if len(failed) == 1 else 'have'} failed",
            "asked last",
            "something in it died, or it follows another checkpoint",
            "its /readyz says why",
            ids(failed),
        )
    going = [view for view in live if view.state in {"draining", "leaving"}]
    if going:
        return Indicator(
            "nodes",
            State.ATTENTION,
            f"{named(ids(going))} {be(going)} {going[0].state}",
            "others take over what it has",
            "somebody asked for it",
            f"stop it when it holds nothing, or understudy drain {going[0].node_id} --undo",
            ids(going),
        )
    return Indicator("nodes")


def redundancy(situation: Situation) -> Indicator:
    """Whether each store partition has another caught-up replica, where it should have."""
    snapshot = situation.snapshot
    stores_of, summaries = snapshot.layout.stores_of, snapshot.totals.summaries.items()
    thin = sum(summary.thin * len(stores_of[operator_id]) for operator_id, summary in summaries)
    if not thin:
        return Indicator("redundancy")
    return Indicator(
        "redundancy",
        State.ATTENTION,
        f"{thin} of {store_partitions_in_all(snapshot)} store partitions have one caught-up replica or none",
        "one more failure, and their readers wait",
        "the other replica is dead or not caught up yet",
        "wait while the others restore; start dead nodes again; stop no other node",
        store_partitions(snapshot, snapshot.totals.thin),
    )


def bus(situation: Situation) -> Indicator:
    """Whether the router hears Redis, and Redis accepts the writes of the nodes."""
    about = situation.snapshot.about
    why = about.bus_lost_why or about.unheard
    if why is not None:
        return Indicator(
            "bus",
            State.ATTENTION,
            "Redis is not heard" if about.bus_lost_why else "Redis does not carry what the nodes say",
            "lookups go on; no failure is healed meanwhile",
            why,
            "bring Redis back; restart nothing",
        )
    refused = about.causes.get(Cause.WRITES_REFUSED)
    if refused is not None:
        return Indicator(
            "bus",
            State.ATTENTION,
            "Redis refuses writes",
            "lookups go on; no failure is healed meanwhile",
            refused,
            "look at its memory, its disk, its role and its ACL",
        )
    return Indicator("bus")


def restores(situation: Situation) -> Indicator:
    """Whether replicas restore, or stopped with an error."""
    snapshot = situation.snapshot
    broken, count = snapshot.totals.errors, sum(each.broken for each in snapshot.totals.summaries.values())
    if broken:
        return Indicator(
            "restores",
            State.ATTENTION,
            f"{count} replica{'' if count == 1 else 's'} cannot go on",
            "they show the last good version with its true lag",
            broken[0],
            "look at that node's disk and at the checkpoint's storage; it tries again by itself",
            broken,
        )
    count = sum(each.restoring for each in snapshot.totals.summaries.values())
    if count:
        return Indicator(
            "restores",
            State.ATTENTION,
            f"{count} replica is restoring" if count == 1 else f"{count} replicas are restoring",
            "they answer late or not yet; the others answer",
            "nodes started, or tasks move",
            "wait; understudy lag --watch shows how far they are",
        )
    return Indicator("restores")


_SHOWN_ELSEWHERE = frozenset({
    Cause.BUS_AWAY, Cause.NODES_UNHEARD, Cause.WRITES_REFUSED, Cause.LAG_UNKNOWN, CHECKPOINT_UNREADABLE,
})  # fmt: skip
"""Causes that the indicators `bus` and `checkpoint` show."""


def degraded(situation: Situation) -> Indicator:
    """Whether the nodes and this router work besides lookups, by the causes that no other indicator shows."""
    own = [why for cause, why in situation.causes.items() if cause not in _SHOWN_ELSEWHERE]
    by_node = {
        view.node_id: [cause for cause in view.heartbeat.degraded if cause not in _SHOWN_ELSEWHERE]
        for view in situation.snapshot.nodes.values()
        if view.heartbeat is not None
    }
    found = {node_id: causes for node_id, causes in by_node.items() if causes}
    if not own and not found:
        return Indicator("degraded")
    who = [*(["this router"] if own else []), *found]
    why = [*own, *(f"{node_id}: {', '.join(causes)}" for node_id, causes in list(found.items())[:FEW])]
    return Indicator(
        "degraded",
        State.ATTENTION,
        f"{named(who)} {be(who)} degraded",
        "lookups go on",
        "; ".join(why),
        "go by the causes in the runbook; /readyz of the service has the details",
        tuple(found),
    )


def agreement(situation: Situation) -> Indicator:
    """Whether this router and the nodes agree about the nodes."""
    found = situation.disagreements
    if not found:
        return Indicator("agreement")
    first = found[0].difference
    return Indicator(
        "agreement",
        State.ATTENTION,
        f"This router and {named([each.difference.node_id for each in found])} do not agree",
        "reads may take a longer way",
        f"this router says {first.router_says}; {first.node_id} says {first.node_says}",
        "compare with what the other routers show; look at the network between",
        tuple(dict.fromkeys(each.difference.node_id for each in found)),
    )


def access(situation: Situation) -> Indicator:
    """Whether this router is open to strangers: it needs no credentials of them, or lets them read the credentials of
    others.
    """
    if situation.exposure is None:
        return Indicator("access")
    if situation.exposure is Exposure.UNGUARDED:
        impact, option = "anybody who reaches it can read every store and drain nodes", "--credentials-file"
    else:
        impact, option = "anybody on their way can read them, and do what they allow", "--tls-cert-file"
    return Indicator(
        "access",
        State.ATTENTION,
        f"Other machines may reach this router, and {situation.exposure}",
        impact,
        "insecure_bind says that the network keeps strangers out",
        f"give it {option}, or let it listen on loopback",
    )
