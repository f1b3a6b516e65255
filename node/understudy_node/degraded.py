"""The causes by which a node is degraded although lookups work (pure), for `/readyz` and the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from understudy_node.follow.end import End
from understudy_node.replica.task import TaskReplica
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import (
    FORK_FOUND,
    FORKED,
    GOSSIP_KEY_MISSING,
    LEASE_HELD_BY_UNSIGNED,
    UNSIGNED_ACCEPTED,
    WRITES_REFUSED,
)

CHECKPOINT_UNREADABLE = "checkpoint-unreadable"
LAG_UNKNOWN = "lag-unknown"
REPLICAS_STALLED = "replicas-stalled"
"""Replicas are behind and cannot advance."""
LOCAL_COPY_DAMAGED = "local-copy-damaged"
"""Local copies are damaged, and are built again."""
LOCAL_DISK = "local-disk"
"""The disk of the data directory is full, or cannot be written."""
BUS_AWAY = "bus-away"
OWN_MESSAGE = "own-message"
"""A message of this node does not validate, so it was not sent."""

CAUSES = (
    BUS_AWAY,
    WRITES_REFUSED,
    OWN_MESSAGE,
    CHECKPOINT_UNREADABLE,
    LAG_UNKNOWN,
    REPLICAS_STALLED,
    FORKED,
    FORK_FOUND,
    LOCAL_COPY_DAMAGED,
    LOCAL_DISK,
    UNSIGNED_ACCEPTED,
    GOSSIP_KEY_MISSING,
    LEASE_HELD_BY_UNSIGNED,
)
"""The labels of the metric, with those of the process."""


def causes_of(
    error: UnderstudyError | None,
    end: End,
    replicas: Sequence[TaskReplica],
    *,
    full_disk: Path | None,
    now_ms: float,
    end_expiry_ms: float,
) -> dict[str, str]:
    """Return why a node that can answer lookups is degraded, by cause."""
    found: dict[str, str] = {}
    if error is not None:
        found[CHECKPOINT_UNREADABLE] = f"the checkpoint cannot be followed: {error}"
    if end.confirmed_ms is None:
        found[LAG_UNKNOWN] = "lag is unknown: the end of the history is not confirmed"
    elif now_ms - end.confirmed_ms > end_expiry_ms:
        found[LAG_UNKNOWN] = f"lag is unknown: the end of the history was not confirmed within {end_expiry_ms:.0f} ms"
    stalled = [replica for replica in replicas if replica.stalled]
    if stalled:
        first, count = stalled[0], len(stalled)
        version = None if first.view is None else first.view.version
        found[REPLICAS_STALLED] = (
            f"{count} {'replica cannot' if count == 1 else 'replicas cannot'} advance: {first.task} is at version "
            f"{version} of {first.target}: {first.error or 'no step of it ends'}"
        )
    damaged = [(replica.task, replica.damage) for replica in replicas if replica.damage is not None]
    if damaged:
        task, damage = damaged[0]
        found[LOCAL_COPY_DAMAGED] = f"{len(damaged)} local copies are built again: of {task}, {damage}"
    unwritten = [(replica.task, replica.unwritten) for replica in replicas if replica.unwritten is not None]
    if unwritten:
        task, failure = unwritten[0]
        found[LOCAL_DISK] = f"{len(unwritten)} replicas cannot write their local copies: of {task}, {failure}"
    elif full_disk is not None:
        found[LOCAL_DISK] = f"the disk of {full_disk} is full: no local copy can be written. Free space there"
    return found
