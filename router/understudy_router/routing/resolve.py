"""The hosts of a key: KIP-535's `queryMetadataForKey`, with three different negative answers kept apart (pure).

An unknown store is a 404; a cluster that is not known yet is a 503 to retry; a partition without an active is neither:
its standbys can be asked.
"""

from __future__ import annotations

from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.cluster.tables import Tables
from understudy_shared.base.words import HostInfo, KeyQueryMetadata
from understudy_shared.bus.messages import Assignment
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.spark.key_codec import Row


def resolve(tables: Tables, route: StoreRoute, row: Row) -> KeyQueryMetadata:
    """Return the partition of a key, of a store that is not scattered, and its hosts. The catalogue has the number of
    partitions, not the assignment.
    """
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
