"""The metadata of a store, as data: the hosts of every partition, and how keys get there (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b

import orjson

from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.cluster.tables import Tables
from understudy_router.routing.choose import Reason
from understudy_router.routing.explain import host_fields
from understudy_router.routing.resolve import assignment_of, host_of, metadata_of
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Assignment


class StoreMetadata:
    """`GET /v1/stores/{store}/metadata`: every partition's hosts (KIP-535's `allMetadataForStore`), and what a client
    needs to ask them itself: how keys are placed, the store's default bounds, and the hosts not to ask.
    """

    def __init__(self, tables: Tables, route: StoreRoute, bounds: Mapping[str, object]) -> None:
        """Take in what the tables know now. Raises a not-initialised problem before there is an assignment."""
        self._tables, self._route = tables, route
        assignment = assignment_of(tables)
        self._rest: dict[str, object] = {
            "term": assignment.term,
            "epoch": assignment.epoch,
            "lineage": route.lineage,
            "application_id": route.application_id,
            "placement": route.codec.placement,
            "bounds": bounds,
            "encoding": route.encoding,
            "excluded_hosts": [*_excluded_hosts(tables, assignment)],
        }

    def etag(self) -> str:
        """Return the tag of the answer: another one as soon as anything in it is another."""
        holders = sorted(assignment_of(self._tables).holders)
        found = [self._rest, [host_fields(host_of(self._tables, node_id)) for node_id in holders]]
        return f'"{blake2b(orjson.dumps(found, option=orjson.OPT_SORT_KEYS), digest_size=12).hexdigest()}"'

    def pieces(self) -> Iterator[bytes]:
        """Yield the answer as JSON, in pieces: each partition is as it was when its piece was made, term and epoch as
        at the beginning.
        """
        hosts: set[HostInfo] = set()
        yield orjson.dumps({"store": self._route.name})[:-1] + b',"partitions":['
        for partition in range(self._route.partitions):
            found = metadata_of(self._tables, self._route, partition)
            hosts.update(host for host in (found.active_host, *found.standby_hosts) if host is not None)
            described = {
                "partition": found.partition,
                "active_host": host_fields(found.active_host),
                "standby_hosts": [host_fields(host) for host in found.standby_hosts],
            }
            yield b"," * bool(partition) + orjson.dumps(described)
        in_order = sorted(hosts, key=lambda host: (host.host, host.port))
        yield b"]," + orjson.dumps({"hosts": [host_fields(host) for host in in_order], **self._rest})[1:]


def _excluded_hosts(tables: Tables, assignment: Assignment) -> Iterator[dict[str, object]]:
    """Yield the live nodes of the assignment that this router does not read, or reads last, whatever the bound."""
    for node_id in sorted(assignment.holders):
        node = tables.nodes.get(node_id)
        if node is None:
            continue
        beat = node.heartbeat
        reason: str | None = None
        if node_id in tables.forks:
            reason = Reason.FORKED
        elif beat.lineage != assignment.lineage:
            reason = Reason.LINEAGE_CHANGED
        elif beat.partitions not in {None, assignment.partitions}:
            reason = Reason.OTHER_LAYOUT
        elif beat.is_asked_last:
            reason = beat.standing
        if reason is not None:
            yield {"host": beat.endpoint.host, "port": beat.endpoint.port, "reason": reason}
