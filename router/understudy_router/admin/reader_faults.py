"""The faults that concern readers: answers, known lag, a query that commits, fresh answers (pure).

Each function yields the faults of one indicator in the order of severity.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy_router.admin.facts import NodeView
from understudy_router.admin.faults import (
    attention,
    blind_nodes,
    count_of,
    fault,
    hurt,
    named,
    store_partitions,
    store_partitions_in_all,
    unknown,
    waiting_nodes,
)
from understudy_router.admin.snapshot import Observed, Snapshot
from understudy_shared.base.texts import duration_text
from understudy_shared.bus.messages import QueryProgress
from understudy_shared.cluster.node_calls import CallKind
from understudy_shared.http.health import Indicator, State

MANY_ERRORS_PERCENT, SOME_ERRORS_PERCENT = 5.0, 0.5
"""The shares of failed reads over the last minute from which readers count as hurt, or deserve a look."""

MANY_CALLS_PERCENT, SOME_CALLS_PERCENT = 50.0, 5.0
"""The same of calls for other reads: where one fails, another replica is asked."""

_CALLS = {CallKind.SCAN: "scans", CallKind.EXPORT: "exports", CallKind.LEASE: "leases", CallKind.WATCH: "watches"}

OLD_MS = 60_000
"""The p99 from commit to visible, in ms, above which it deserves a look."""

END_UNKNOWN = "the end of the commit log is not known"

QUIET_PACES, MIN_QUIET_MS = 5, 5_000
"""Limits of quiet: the query is quiet after so many of its usual times between commits, and not before so many ms."""


def reads(seen: Observed) -> Iterator[Indicator]:
    """Whether readers get answers, and all of these are within their bounds."""
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
            State.HURT if percent >= MANY_ERRORS_PERCENT else State.ATTENTION,
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
                State.HURT if percent >= MANY_ERRORS_PERCENT else State.ATTENTION,
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
            State.HURT if percent >= MANY_CALLS_PERCENT else State.ATTENTION,
            f"{percent:g} % of the calls to nodes for {_CALLS[kind]} failed in the last minute",
            f"{', '.join(_CALLS[each] for each in sorted(failed))} are slow, or get 503 or 504",
            "nodes do not answer, or others of their kind have all places",
            "see understudy_router_calls_total: it counts them by outcome; then the log of the nodes",
            [str(each) for each in sorted(failed)],
        )


def _not_ready(snapshot: Snapshot, why: str) -> Indicator:
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
    """Return the fault of a query that has not committed for much longer than usual; `None` while it commits, and
    before its pace is known.
    """
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


def _progress(snapshot: Snapshot) -> list[tuple[NodeView, QueryProgress]]:
    """Return the reports about the query by the nodes that know the newest end of the history in use."""
    return [
        (view, beat.query)
        for view in snapshot.nodes.values()
        if (beat := view.heartbeat) is not None
        and beat.query is not None
        and beat.lineage == snapshot.lineage
        and beat.end_version == snapshot.end_version
    ]


def _why_quiet(snapshot: Snapshot, said: list[tuple[NodeView, QueryProgress]]) -> tuple[str, str]:
    """Return the cause as far as the files show it, and where to look.

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
