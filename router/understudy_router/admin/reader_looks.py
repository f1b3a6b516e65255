"""Indicators for the experience of readers: answers, known lag, fresh answers (pure)."""

from __future__ import annotations

from understudy_router.admin.indicator import Situation, named, store_partitions, store_partitions_in_all
from understudy_router.admin.query_looks import quiet_query
from understudy_router.admin.snapshot import Snapshot
from understudy_shared.base.durations import duration_text
from understudy_shared.http.health import Indicator, State

MANY_ERRORS_PERCENT, SOME_ERRORS_PERCENT = 5.0, 0.5
"""The shares of failed reads over the last minute from which readers count as hurt, or deserve a look."""

OLD_MS = 60_000
"""The p99 from commit to visible, in ms, above which it deserves a look."""

CHECKPOINT_UNREADABLE = "checkpoint-unreadable"
"""The cause by which a node is degraded that cannot follow its checkpoint."""


def reads(situation: Situation) -> Indicator:
    """Whether readers get answers, and all of these are within their bounds."""
    snapshot, rates = situation.snapshot, situation.rates
    if snapshot.about.not_ready:
        why = "; ".join(snapshot.about.not_ready)
        if "stopping" in why:
            return Indicator("reads", State.ATTENTION, "This router stops", cause=why, action="ask another router")
        waiting = waiting_nodes(snapshot)
        if waiting:
            node_id, what = next(iter(waiting.items()))
            return Indicator(
                "reads",
                State.UNKNOWN,
                f"No reader is answered yet: {node_id} waits for {what}",
                cause=why,
                action="start the query, or mend the path of the checkpoint in the settings of the nodes",
            )
        return Indicator(
            "reads",
            State.UNKNOWN,
            "No reader is answered yet",
            cause=why,
            action="look whether a node of this application runs on this Redis: its /readyz says what it waits for",
        )
    unserved = _count(snapshot)
    if unserved:
        dead = [view.node_id for view in snapshot.nodes.values() if not view.is_live]
        return Indicator(
            "reads",
            State.HURT,
            f"{unserved} of {store_partitions_in_all(snapshot)} store partitions cannot be read",
            "their readers get 503",
            f"no replica is open; dead: {named(dead)}" if dead else "no replica is open yet",
            f"start {named(dead)} again" if dead else "wait while the nodes restore; understudy lag shows how far",
            store_partitions(snapshot, snapshot.totals.unserved),
        )
    if rates.violations:
        return Indicator(
            "reads",
            State.HURT,
            f"{rates.violations} answers were older than their readers asked for",
            "a reader may have acted on them",
            "a bug",
            "report it with the log of router and node",
        )
    percent = rates.error_percent or 0.0
    if percent >= SOME_ERRORS_PERCENT:
        return Indicator(
            "reads",
            State.HURT if percent >= MANY_ERRORS_PERCENT else State.ATTENTION,
            f"{percent:g} % of the reads of the last minute failed",
            f"{rates.errors_per_s:g} readers a second get an error",
            action="see understudy_router_fallbacks_total: it counts them by reason; then the nodes below",
        )
    return Indicator("reads")


def checkpoint(situation: Situation) -> Indicator:
    """Whether the end of the commit log is known, so that lag is."""
    snapshot = situation.snapshot
    live = [view for view in snapshot.nodes.values() if view.is_live]
    if not live:
        return Indicator("checkpoint", State.UNKNOWN, "No node can say how the checkpoint is", action="start a node")
    blind = blind_nodes(snapshot)
    if not store_partitions_in_all(snapshot) and not blind:
        return Indicator(
            "checkpoint",
            State.UNKNOWN,
            "No node has read a commit of the query yet",
            cause="; ".join(f"{node_id} waits for {what}" for node_id, what in waiting_nodes(snapshot).items())
            or "the nodes start",
            action="wait; if it stays, look at /readyz of a node",
        )
    if not snapshot.end_confirmed:
        age = "" if snapshot.end_age_ms is None else f" for {duration_text(snapshot.end_age_ms)}"
        cause = f"no node confirmed the end of the commit log{age}"
        cause += f"; {named(blind)} cannot read the checkpoint" if blind else ""
        return Indicator(
            "checkpoint",
            State.HURT,
            f"{store_partitions_in_all(snapshot)} store partitions answer only readers without a lag bound",
            "their lag is unknown",
            cause,
            f"look at the checkpoint's storage as {named(blind or [view.node_id for view in live])} see it",
            tuple(blind),
        )
    if blind:
        return Indicator(
            "checkpoint",
            State.ATTENTION,
            f"{named(blind)} cannot read the checkpoint",
            "what they serve does not get newer",
            "reading the commit log fails there",
            "see the error in GET /admin/v1/lag of that node, then its mount or its access to the storage",
            tuple(blind),
        )
    return Indicator("checkpoint")


def query(situation: Situation) -> Indicator:
    """Whether the query commits as it did."""
    if not situation.snapshot.end_confirmed:
        return Indicator(
            "query",
            State.UNKNOWN,
            "Whether the query commits is not known",
            cause="the end of the commit log is not known",
            action="see checkpoint",
        )
    quiet = quiet_query(situation)
    if quiet is None:
        return Indicator("query")
    return Indicator("query", State.ATTENTION, quiet.symptom, "answers stay what they are", quiet.cause, quiet.action)


def freshness(situation: Situation) -> Indicator:
    """Whether the commits of the query are soon visible."""
    if not situation.snapshot.end_confirmed:
        return Indicator(
            "freshness",
            State.UNKNOWN,
            "How fresh answers are is not known",
            cause="the end of the commit log is not known",
            action="see checkpoint",
        )
    growing = [store for store, trend in situation.trends if trend.direction == "growing"]
    if growing:
        return Indicator(
            "freshness",
            State.ATTENTION,
            f"{named(growing)} fall behind",
            "answers get older",
            "commits come faster than the last of their replicas applies them",
            "find that replica with understudy lag; the runbook tells a slow storage from a node without CPU",
            tuple(growing),
        )
    late = {
        view.node_id: beat.freshness.p99_ms
        for view in situation.snapshot.nodes.values()
        if (beat := view.heartbeat) is not None and beat.freshness is not None and beat.freshness.p99_ms > OLD_MS
    }
    if late:
        return Indicator(
            "freshness",
            State.ATTENTION,
            f"Commits take up to {duration_text(max(late.values()))} to be visible on {named(list(late))}",
            "answers are older than usual",
            "by the commits of the last minute, from a commit until a replica that was in step showed it",
            "follow the runbook: it tells a slow storage from a node without CPU",
            tuple(late),
        )
    return Indicator("freshness")


def _count(snapshot: Snapshot) -> int:
    """Count the store partitions without an open replica."""
    stores_of, summaries = snapshot.layout.stores_of, snapshot.totals.summaries.items()
    return sum(summary.unserved * len(stores_of[operator_id]) for operator_id, summary in summaries)


def waiting_nodes(snapshot: Snapshot) -> dict[str, str]:
    """Return the live nodes that wait for their checkpoint, and the part of it that they wait for."""
    beats = [(view.node_id, view.heartbeat) for view in snapshot.nodes.values()]
    return {node_id: beat.waits_for for node_id, beat in beats if beat is not None and beat.waits_for is not None}


def blind_nodes(snapshot: Snapshot) -> list[str]:
    """Return the live nodes that cannot read the checkpoint."""
    views = snapshot.nodes.values()
    return [
        view.node_id
        for view in views
        if view.heartbeat is not None and CHECKPOINT_UNREADABLE in view.heartbeat.degraded
    ]
