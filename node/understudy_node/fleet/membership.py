"""The part of one application of a process in its cluster: what differs from a process of its own is the shared bus."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from understudy_node.cluster.claim import claim
from understudy_node.cluster.heartbeat import MemberId
from understudy_node.cluster.load import ProcessLoad
from understudy_node.cluster.member import ClusterMember
from understudy_node.cluster.serve import first_heartbeat, new_member_id
from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_node.cluster.waiting import saying
from understudy_node.node import Node
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.clock import Clock
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import Bus, BusError
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.message_auth import MessageAuth
from understudy_shared.cluster.remembered import Remembered

log = logging.getLogger(__name__)

MAX_WHY_CHARS = 500
"""Longest reason in a heartbeat."""


class Membership:
    """The way of one application into its cluster, under the node id and the address of the process."""

    def __init__(
        self,
        settings: ClusterNodeSettings,
        host: HostInfo,
        bus: Bus,
        identity: ClusterIdentity,
        clock: Clock,
        *,
        load: ProcessLoad,
        is_draining: Callable[[], bool],
    ) -> None:
        self.member: ClusterMember | None = None
        self._settings = settings
        self._host = host
        self._bus = bus
        self._identity = identity.within(settings.application)
        self._clock = clock
        self._load = load
        self._is_draining = is_draining

    @asynccontextmanager
    async def waiting(self, why: Callable[[], str]) -> AsyncIterator[None]:
        """Let the cluster hear what this node waits for."""
        member_id = new_member_id(self._settings, self._host)
        async with saying(
            self._gossip(self._auth(member_id)),
            lambda number: first_heartbeat(
                self._settings, self._host, member_id, sequence=number, waits_for=why()[:MAX_WHY_CHARS]
            ),
        ):
            yield

    async def joined(self, node: Node) -> ClusterMember:
        """Claim the node id and return the member, which is not started. Raises UnderstudyError if another process
        uses the id. While the bus is away the claim is skipped.
        """
        member_id = new_member_id(self._settings, self._host)
        auth = self._auth(member_id)
        first = first_heartbeat(self._settings, self._host, member_id, lineage=node.lineage)
        try:
            await claim(self._gossip(auth), first)
        except BusError as error:
            log.warning("%s; waiting for it", error, extra={"action": "bus-lost"})
        self.member = ClusterMember(
            node,
            self._gossip(auth),  # one of its own: the claim's refusals are not counted as the member's
            self._settings,
            member_id,
            clock=self._clock,
            remembered=Remembered(node.settings.data_directory / "cluster", self._settings.application, auth),
            identity=self._identity,
            process_load=self._load,
        )
        self.member.draining = self._is_draining()
        return self.member

    def _auth(self, member_id: MemberId) -> MessageAuth:
        return self._settings.message_auth(self._settings.application, sender=member_id.node_id)

    def _gossip(self, auth: MessageAuth) -> Gossip:
        return Gossip(self._bus, self._settings.application, auth)
