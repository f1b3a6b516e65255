"""A router: its tables, clients and state. There is one object for each application of the process.

`start` and `stop` run on the event loop of the service. Before `start` the router knows nothing, and answers reads
accordingly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from understudy_router.cluster.catalogue import CatalogueStores
from understudy_router.cluster.readiness import NeighbourApplications, bus_document, causes_of
from understudy_router.cluster.tables import Tables
from understudy_router.cluster.watching import ClusterWatcher, RouterMemory
from understudy_router.forwarding.context import ReadContext
from understudy_router.questions.lookup.forward import Forwarder
from understudy_router.questions.moments import Moments, SnapshotLeases
from understudy_router.routing.choose import Choices
from understudy_router.settings import RouterSettings
from understudy_router.transport.client_context import ClientContext, HopReports, IdleConnections, NodeConnections
from understudy_router.transport.node_clients import NodeClients, Probing
from understudy_router.transport.node_requests import Patience
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.base.background import Supervisor
from understudy_shared.base.clock import Clock
from understudy_shared.base.masking import masked
from understudy_shared.base.throttles import RetryBudget
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.base import Bus
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.message_auth import MessageAuth
from understudy_shared.cluster.node_calls import BadNodeReplyError, NodeCallError, NodeCalls
from understudy_shared.cluster.without_bus import Remembered, parse_seeds
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.server.settings import HttpService

log = logging.getLogger(__name__)

PROBE_HOPS = 2
"""Hop timeouts after which a probe is forgotten; the node client ends it after one, and reports it."""


class Router(HttpService):
    """The router of the lookups of one application."""

    settings: RouterSettings

    def __init__(
        self,
        settings: RouterSettings,
        bus: Bus,
        *,
        host: HostInfo,
        clock: Clock,
        remembered: Remembered | None = None,
        auth: MessageAuth | None = None,
        identity: ClusterIdentity | None = None,
        shared: NodeConnections | None = None,
    ) -> None:
        """Make a router. `remembered` stores what it needs to start without the bus; `None`: it stores nothing. `auth`
        judges messages; without it signatures are not checked. `identity` is shown to the nodes.

        `shared`: connections to nodes that the routers of a process share, as they do the bus; this router closes
        neither then.

        Raises SettingsError for malformed seeds.
        """
        self.settings = settings
        self.host = host
        self.clock = clock
        self.gossip = Gossip(bus, settings.application_id, auth)
        self.tables = Tables(
            end_expiry_ms=settings.end_expiry_ms,
            suspect_after_ms=settings.suspect_after_ms,
            refuse=self.gossip.refuse,
        )
        kept = None if shared is None else shared.kept
        self.nodes = NodeCalls(settings.application_id, identity, kept)
        self.watcher = ClusterWatcher(
            self.gossip,
            self.tables,
            self.nodes,
            RouterMemory(remembered, parse_seeds(settings.seed)),
            clock=clock,
        )
        self.leases = SnapshotLeases(settings.application_id, self.tables, self.nodes, clock=clock)
        """The leases of snapshots that readers hold."""
        self.moments = Moments(self.tables, self.nodes, self.leases, deadline_ms=settings.deadline_ms)
        self._neighbours = NeighbourApplications(
            self.gossip, self.tables, self.watcher, where=masked(settings.redis), clock=clock
        )
        context = self._read_context(IdleConnections() if shared is None else shared.idle)
        self.clients = context.clients
        """The clients of the nodes."""
        self.served = context.served
        """The counts of what readers got."""
        self.forwarder = Forwarder(context)
        self._own_bus = bus if shared is None else None
        self._tasks = Supervisor()
        self._when_leaving: list[Callable[[], None]] = []
        self._leaving = False

    def _read_context(self, idle: IdleConnections) -> ReadContext:
        settings, clock = self.settings, self.clock
        budget = RetryBudget(percent=settings.retry_percent, per_s=settings.retry_per_s, now_ms=clock.monotonic_ms())
        clients = NodeClients(
            ClientContext(
                application_id=settings.application_id,
                listener=HopReports(self.tables, self.watcher, clock),
                patience=Patience(hedge_after_ms=settings.hedge_after_ms),
                clock=clock,
                identity=self.nodes.identity,
                idle=idle,
            ),
            suspect_after_ms=settings.suspect_after_ms,
            hop_timeout_ms=settings.hop_timeout_ms,
            allowance=budget.balance,
        )
        choices = Choices(self.tables, self.watcher, load=clients.loads, clock=clock)
        return ReadContext(clients, choices, self.watcher, budget, settings=settings, clock=clock)

    def __repr__(self) -> str:
        return f"Router({self.settings.application_id}, {self.not_ready() or 'ready'}, {self.clients})"

    def start(self, *others: Callable[[Supervisor], None]) -> None:
        """Begin to follow the bus and to keep time, on the loop that runs now. `others` start tasks of their own."""
        self.watcher.start(self._tasks)
        self._tasks.start("look for other applications", self._neighbours.run())
        self._tasks.start("keep the hops' time", self.clients.keep_time())
        self._tasks.start("close unused clients", self.clients.close_unused())
        self._tasks.start("renew snapshot leases that are used", self.leases.run())
        deadline_ms = PROBE_HOPS * self.settings.hop_timeout_ms
        probing = Probing(self.tables, self.clients, deadline_ms=deadline_ms, clock=self.clock)
        self._tasks.start("probe nodes that are not well", probing.run())
        for start in others:
            start(self._tasks)

    async def learn(self, within_ms: int) -> None:
        """Wait until reads can be routed, for `within_ms` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_ms / 1000):
                await self.watcher.catalogue.has_learned.wait()

    async def leave(self) -> None:
        """Announce that the router stops, while it still answers: load balancers poll /readyz."""
        self._leaving = True
        for callback in self._when_leaving:
            callback()
        log.info("stopping", extra={"action": "leaving"})

    def when_leaving(self, callback: Callable[[], None]) -> None:
        """Call back when the router announces that it stops, so that endless streams end then."""
        self._when_leaving.append(callback)

    async def stop(self) -> None:
        """Stop, in this order: the tasks that follow the bus, the clients of the nodes, the bus if it has it alone."""
        await self._tasks.stop()
        await self.watcher.stop()
        await self.clients.close()
        await self.nodes.close()
        if self._own_bus is not None:
            await self._own_bus.close()

    @property
    def dead(self) -> str | None:
        """The reason why this process must end, `None` while it runs."""
        return self._tasks.dead or self.clients.dead

    @property
    def degraded(self) -> str | None:
        """The faults that leave lookups working, `None` without such faults."""
        return "; ".join(self.causes().values()) or None

    def causes(self) -> Mapping[str, str]:
        """Return the faults that leave lookups working, by cause."""
        watcher, catalogue = self.watcher, self.watcher.catalogue
        found = causes_of(
            self.tables,
            bus_lost_why=watcher.bus_lost_why,
            unheard=watcher.silent_nodes.unheard(),
            no_catalogue_why=catalogue.unusable or catalogue.last_error,
            now_ms=self.now_ms(),
        )
        return {**found, **self.gossip.auth.causes()}

    def not_ready(self) -> list[str]:
        """Return why this router should get no readers. Lag and a lost bus are never reasons."""
        unheard = self._neighbours.reason()
        return self._lacks() + ([] if unheard is None else [unheard])

    def _lacks(self) -> list[str]:
        reasons = [self.dead] if self.dead else []
        if self._leaving:
            reasons.append("stopping: it answers for a moment more")
        if self.watcher.catalogue.stores is None:
            reasons.append("no catalogue is known yet")
        if self.tables.assignment is None:
            reasons.append("no assignment is known yet")
        return reasons

    def stores(self) -> CatalogueStores:
        """Return the stores that can be read. Raises a not-initialised ProblemError while they are unknown."""
        stores = self.watcher.catalogue.stores
        if stores is None or self.tables.assignment is None:
            why = "; ".join([*self._lacks(), *self.causes().values()])
            unheard = self._neighbours.fix()
            fix = "Retry when /readyz says so" if unheard is None else f"{unheard}; retry when /readyz says so"
            raise ProblemError(Problem(ProblemType.NOT_INITIALISED, why, fix=fix))
        return stores

    async def drain(self, node_id: str, *, drain: bool) -> dict[str, object]:
        """Forward a drain to its node. Return the JSON object of the reply, and whether the bus carries it to the node
        that assigns. Raises ProblemError when the node refuses.
        """
        node = self.tables.nodes.get(node_id)
        if node is None:
            known = ", ".join(sorted(self.tables.nodes)) or "none"
            raise ProblemError(
                Problem(ProblemType.UNKNOWN_PATH, f"there is no node {node_id!r}", "path", f"Nodes heard of: {known}")
            )
        log.warning("asking %s to drain: %s", node_id, drain, extra={"action": "drain", "node": node_id})
        try:
            status, document = await self.nodes.drain(node.heartbeat.endpoint.host_info(), drain=drain)
        except BadNodeReplyError as error:
            fix = "Look at that node: it may be another service, or of another release"
            raise ProblemError(Problem(ProblemType.BAD_REPLY, error.what, error.where, fix)) from None
        except NodeCallError as error:
            raise ProblemError(Problem(ProblemType.NODE_UNREACHABLE, error.what, error.where, "Retry")) from None
        if status >= 400:
            what = f"the node refuses with {status}: {document.get('detail', 'no reason')!s:.200}"
            raise ProblemError(Problem(ProblemType.BAD_REPLY, what, node_id, "Look at that node and its log"))
        return {**document, "bus": bus_document(self.watcher.bus_lost_why or self.watcher.silent_nodes.unheard())}

    def now_ms(self) -> float:
        """Return the time of the monotonic clock that the tables use."""
        return self.clock.monotonic_ms()
