"""Finds the nodes that follow a fork: another history with the same checkpoint id (pure).

Each node compares the commits in the heartbeats of others with its own commit log, and names in its heartbeat those
that differ. This module decides which side of such a difference is refused. Nodes and routers come to the same
result from the same heartbeats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from understudy_shared.base.words import FORKED
from understudy_shared.bus.messages import Heartbeat


def refused_forks(
    heartbeats: Iterable[Heartbeat], named: Collection[str], *, judging: str | None = None
) -> dict[str, str]:
    """Return the nodes that must not answer, assign or be assigned, each with the reason.

    `named` are the nodes of the assignment: they are the cluster, and a node that differs from one of them is
    refused. Where two of them differ, the one that contradicts fewer nodes of the assignment is accepted; in a tie,
    the process that has run longest. A node that reports itself as refused is believed, except by itself
    (`judging`): the nodes that refused it may have gone since.
    """
    beats = {beat.node_id: beat for beat in heartbeats}
    refused = {
        node_id: _why(beats, node_id, sorted(beats.keys()))
        for node_id, beat in beats.items()
        if FORKED in beat.degraded and node_id != judging
    }
    differs: defaultdict[str, set[str]] = defaultdict(set)
    for node_id, beat in beats.items():
        for other in beat.forks:
            if other in beats and other != node_id and not {node_id, other} & refused.keys():
                differs[node_id].add(other)
                differs[other].add(node_id)
    if not differs:
        return refused

    def trust(node_id: str) -> tuple[object, ...]:
        against = sum(other in named for other in differs[node_id])
        return (node_id not in named, against, -beats[node_id].sequence, node_id)

    accepted: set[str] = set()
    for node_id in sorted(differs, key=trust):
        against = sorted(differs[node_id] & accepted)
        if against:
            refused[node_id] = _why(beats, node_id, against)
        else:
            accepted.add(node_id)
    return refused


def _why(beats: Mapping[str, Heartbeat], node_id: str, against: Collection[str]) -> str:
    found = (beats[other].forks.get(node_id) or beats[node_id].forks.get(other) for other in against)
    evidence = next(filter(None, found), "it was refused before")
    return f"{node_id} follows a fork, another history of the same checkpoint id: {evidence}"
