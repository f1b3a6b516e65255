"""The way of one application into its cluster: it says what it waits for, claims its node id, and becomes a member.

Heartbeats of two processes with one id would replace each other, so the id is claimed before the node serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from understudy_node.cluster.heartbeat import MemberId
from understudy_node.cluster.load import ProcessLoad
from understudy_node.cluster.member import ClusterMember
from understudy_node.node import Node
from understudy_node.settings import ClusterNodeSettings, NodeSettings
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.background import Supervisor
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.masking import masked_location
from understudy_shared.base.words import HostInfo, Lineage
from understudy_shared.bus.base import Bus, BusError
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS, Gossip
from understudy_shared.bus.message_auth import MessageAuth
from understudy_shared.bus.messages import Applied, Endpoint, Farewell, Heartbeat
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.cluster.saved_documents import Remembered

log = logging.getLogger(__name__)

MAX_WHY_CHARS = 500
"""Longest reason in a heartbeat."""


class IdentityError(UnderstudyError):
    """Another process of the cluster uses this node's id."""


class Clusters:
    """The part of a process in the clusters of its applications."""

    def __init__(self, settings: ClusterNodeSettings, bus: Bus | None = None) -> None:
        self.bus = bus or RedisBus(settings.redis_url)
        self.load = ProcessLoad() if settings.is_fleet else None
        """The load of several applications; None: there is one, whose member closes the bus."""
        self.draining = False
        """Whether all applications drain, those that come later, too."""

    def membership(self, settings: NodeSettings, host: HostInfo, identity: ClusterIdentity, clock: Clock) -> Membership:
        """Return the part of one application."""
        assert isinstance(settings, ClusterNodeSettings), "as those of the process"
        return Membership(settings, host, self, identity, clock)


class Membership:
    """The part of one application in its cluster, under the node id and the address of the process. What happens on
    another loop than the member's gets a bus of its own.
    """

    def __init__(
        self,
        settings: ClusterNodeSettings,
        host: HostInfo,
        clusters: Clusters,
        identity: ClusterIdentity,
        clock: Clock,
    ) -> None:
        self.member: ClusterMember | None = None
        self.settings = settings
        self._host = host
        self._clusters = clusters
        self._claimed = self._new_id()
        self._identity = identity.within(settings.application)
        self._clock = clock

    @asynccontextmanager
    async def waiting(self, why: Callable[[], str], bus: Bus | None = None) -> AsyncIterator[None]:
        """Send heartbeats that report what this node waits for, and a farewell at the end."""
        member_id = self._new_id()
        gossip = self._gossip(self._auth(member_id), bus)
        tasks = Supervisor()
        tasks.start("say what is waited for", self._say(gossip, member_id, why))
        try:
            yield
        finally:
            await tasks.stop()
            farewell = Farewell(
                application_id=self.settings.application,
                node_id=member_id.node_id,
                incarnation=member_id.incarnation,
            )
            with contextlib.suppress(BusError, TimeoutError):
                async with asyncio.timeout(1):
                    await gossip.leave(farewell)

    def other_bus(self) -> Bus:
        """Return a bus for another loop. The caller closes it."""
        return RedisBus(self.settings.redis_url)

    async def claim(self, node: Node, bus: Bus | None = None) -> None:
        """Take the node id for a new incarnation. Raises IdentityError when another process keeps using it: the entry
        of one that died expires by itself. While Redis is away the claim is skipped.
        """
        self._claimed = self._new_id()
        gossip = self._gossip(self._auth(self._claimed), bus)
        first = self._heartbeat(self._claimed, lineage=node.lineage)
        try:
            for _ in range(EXPIRY_HEARTBEATS + 2):
                if await gossip.beat(first):
                    return
                await asyncio.sleep(first.heartbeat_ms / 1000)
        except BusError as error:
            log.warning("%s; waiting for it", error, extra={"action": "bus-lost"})
            return
        raise IdentityError(
            f"another process of the cluster uses node id {first.node_id}",
            where=f"application {first.application_id}",
            fix="Give each node an id of its own with --node-id, or stop the other process",
        )

    def join(self, node: Node) -> ClusterMember:
        """Return the member, which is not started, with the id that was claimed."""
        auth = self._auth(self._claimed)
        self.member = ClusterMember(
            node,
            self._gossip(auth),  # one of its own: the claim's refusals are not counted as the member's
            self.settings,
            self._claimed,
            clock=self._clock,
            remembered=Remembered(node.settings.data_directory / "cluster", self.settings.application, auth),
            identity=self._identity,
            process_load=self._clusters.load,
        )
        self.member.draining = self._clusters.draining
        return self.member

    async def _say(self, gossip: Gossip, member_id: MemberId, why: Callable[[], str]) -> None:
        """Send heartbeats. While Redis is away they are lost, and the next one is tried."""
        number = 0
        while True:
            number += 1
            heartbeat = self._heartbeat(member_id, sequence=number, waits_for=why()[:MAX_WHY_CHARS])
            try:
                if not await gossip.beat(heartbeat):
                    log.error(
                        "another process of the cluster uses node id %s",
                        heartbeat.node_id,
                        extra={"action": "identity-conflict"},
                    )
            except BusError as error:
                log.debug("a heartbeat is lost: %s", error)
            await asyncio.sleep(heartbeat.heartbeat_ms / 1000)

    def _heartbeat(
        self, member_id: MemberId, *, sequence: int = 0, lineage: Lineage | None = None, waits_for: str | None = None
    ) -> Heartbeat:
        """Return the heartbeat of a node that holds nothing yet."""
        settings = self.settings
        return Heartbeat(
            application_id=settings.application,
            node_id=member_id.node_id,
            incarnation=member_id.incarnation,
            sequence=sequence,
            endpoint=Endpoint(host=self._host.host, port=self._host.port),
            zone=settings.zone or None,
            state="starting",
            heartbeat_ms=settings.lag_refresh_ms,
            lineage=lineage,
            end_version=0,
            end_age_ms=None,
            applied=Applied(version=None, state="CREATED"),
            term=0,
            epoch=0,
            checkpoint=masked_location(settings.checkpoint),
            waits_for=waits_for,
        )

    def _new_id(self) -> MemberId:
        return MemberId(self.settings.node_id or f"{self._host.host}-{self._host.port}", uuid.uuid4().hex)

    def _auth(self, member_id: MemberId) -> MessageAuth:
        return self.settings.message_auth(self.settings.application, sender=member_id.node_id)

    def _gossip(self, auth: MessageAuth, bus: Bus | None = None) -> Gossip:
        return Gossip(bus or self._clusters.bus, self.settings.application, auth)
