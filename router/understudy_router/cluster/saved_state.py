"""The documents that a router keeps on disk for a start without the bus: the assignment, the nodes' addresses, and the
catalogue.

It keeps no heartbeats: a node's old position is worthless after a restart. So the lag of a node that is only remembered
is unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import NamedTuple

from pydantic import Field

from understudy_router.cluster.catalogue import Stores, stores_of
from understudy_router.cluster.tables import Tables
from understudy_shared.base.plausible import highest_plausible
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.gossip import digest_of
from understudy_shared.bus.messages import Assignment, Catalogue, Endpoint, Heartbeat, Message
from understudy_shared.cluster.without_bus import Memory, Remembered

log = logging.getLogger(__name__)

MAX_NODES = 10_000
"""Most nodes that are remembered: ten times the largest planned cluster."""


class KnownNodes(Message):
    """The addresses of an application's nodes, by node id."""

    nodes: dict[str, Endpoint] = Field(max_length=MAX_NODES)


class Recalled(NamedTuple):
    """The remembered documents that can be used."""

    assignment: Assignment | None
    stores: Stores | None


class RouterMemory(Memory):
    """The memory of one router. `hosts` are the seeds, and after `recall` the remembered nodes as well."""

    def __init__(self, remembered: Remembered | None, seeds: Collection[HostInfo] = ()) -> None:
        super().__init__(remembered)
        self.hosts = self._seeds = frozenset(seeds)
        self._nodes: dict[str, Endpoint] = {}
        self._is_recalled = False

    def note_nodes(self, tables: Tables, application_id: str) -> None:
        """Keep the addresses of live nodes, of nodes that died lately, and of remembered nodes without a heartbeat."""
        known = {**self._nodes}
        known |= {node_id: dead.heartbeat.endpoint for node_id, dead in tables.dead.items()}
        known |= {node_id: node.heartbeat.endpoint for node_id, node in tables.nodes.items()}
        strangers_first = sorted(known.items(), key=lambda each: each[0] in tables.holders)
        newest = dict(strangers_first[-MAX_NODES:])
        self.note(KnownNodes(application_id=application_id, nodes=newest))

    async def recall(self) -> Recalled:
        """Read the remembered documents, once, unless the bus was there: it has newer ones. A catalogue of another
        lineage than the assignment's is dropped.
        """
        if self._is_recalled:
            return Recalled(None, None)
        self._is_recalled = True
        assignment, catalogue = await self.load(Assignment), await self.load(Catalogue)
        nodes = await self.load(KnownNodes)
        if nodes is not None:
            self._nodes = dict(nodes.nodes)
            self.hosts |= {endpoint.host_info() for endpoint in nodes.nodes.values()}
        if catalogue is not None and assignment is not None and catalogue.lineage != assignment.lineage:
            catalogue = None
        stores = None if catalogue is None else _stores(catalogue)
        log.info(
            "remembered: %s, %s stores, %d nodes",
            "no assignment" if assignment is None else "assignment {}.{}".format(*assignment.order),
            "no" if stores is None else len(stores.by_name),
            len(self._nodes),
            extra={"action": "recalled"},
        )
        return Recalled(assignment, stores)

    def bus_is_there(self) -> None:
        """Forget the remembered nodes: the bus names all nodes now, and a node that is not on it is gone."""
        self._nodes, self.hosts, self._is_recalled = {}, self._seeds, True


def is_from_previous_cluster(remembered: Assignment, heartbeats: Iterable[Heartbeat]) -> bool:
    """Whether nodes follow only assignments from before the remembered one (pure).

    (term, epoch) never decreases while any node or Redis knows it. So the remembered assignment then belongs to a
    cluster that is gone: while this router was away, its nodes lost their disks and Redis lost its keys.
    """
    orders = ((heartbeat.term, heartbeat.epoch) for heartbeat in heartbeats)
    return (0, 0) < highest_plausible(orders, remembered.order) < remembered.order


def _stores(catalogue: Catalogue) -> Stores | None:
    try:
        return stores_of(catalogue, digest_of(catalogue))
    except Exception as error:  # written by a later release, or altered
        log.warning("the remembered catalogue cannot be used: %s", error, extra={"action": "no-catalogue"})
        return None
