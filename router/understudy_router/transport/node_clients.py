"""The clients of all nodes, made when first used and closed when idle; and the probes of nodes that are not ok.

One timer serves all clients: it fails late requests, reports delays to readers, and notices silent nodes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping

from understudy_router.cluster.tables import Tables
from understudy_router.transport.client_context import ClientContext, HopCounts
from understudy_router.transport.node_client import NodeClient
from understudy_shared.base.clock import Clock
from understudy_shared.base.words import HostInfo
from understudy_shared.cluster.wire import HopFailure

IDLE_S = 60.0
"""Seconds without a request after which a client is closed: its node may be gone."""

SWEEP_S = 1.0
"""Seconds between two searches for unused clients."""

TICK_MS = 10.0
"""Milliseconds between two checks of the requests: a tenth of what a reader notices."""

LATE_TICKS = 5
"""Number of ticks that a tick must be late to show that this process was paused. Answers may lie unread then, so no
node is called silent.
"""


MAX_PROBES = 16
"""Most probes in flight at the same time, one per node."""

MIN_TICK_MS, MAX_TICK_MS = 10, 250
"""Limits, in ms, of the time between two checks for due probes, which is a quarter of a heartbeat."""


class NodeClients:
    """The clients of the nodes that were used lately, one per node."""

    def __init__(
        self,
        context: ClientContext,
        *,
        suspect_after_ms: float,
        hop_timeout_ms: float,
        allowance: Callable[[float], float],
    ) -> None:
        """Report a node after `suspect_after_ms` of silence. `allowance(now_ms)` is how many keys may be hedged."""
        self._context = context
        self._suspect_after_ms = suspect_after_ms
        self._hop_timeout_ms = hop_timeout_ms
        self._allowance = allowance
        # Closer ticks for a short timeout: a deadline is noticed at most a twentieth late.
        self._tick_ms = min(TICK_MS, max(5.0, hop_timeout_ms / 20))
        self._clock = context.clock
        self._ticked_ms = self._clock.monotonic_ms()
        self._awake_since_ms = self._ticked_ms
        self._clients: dict[tuple[str, str, int], NodeClient] = {}
        self._newest: dict[str, NodeClient] = {}
        self._wanted = asyncio.Event()
        self.is_resting = False
        """Whether no client is in use, so that no time is kept."""
        self.loads: Mapping[str, int] = Loads(self._newest)
        """The number of keys that wait or are in flight, by node id, computed on access."""

    def __repr__(self) -> str:
        return f"NodeClients({list(self._clients.values())})"

    @property
    def counts(self) -> HopCounts:
        """The counters of all clients."""
        return self._context.counts

    def to(self, node_id: str, host: HostInfo) -> NodeClient:
        """Return the client of a node, made on first use."""
        if self.is_resting:
            self._wanted.set()
        place = (node_id, host.host, host.port)
        client = self._clients.get(place)
        if client is None:
            # A node at a new address gets a new client; the old one answers its readers, and is closed when unused.
            client = self._clients[place] = self._newest[node_id] = NodeClient(node_id, host, self._context)
        return client

    def probe(self, node_id: str, host: HostInfo) -> asyncio.Future[float | HopFailure]:
        """Send an empty hop, with the timeout of any hop. The future gets its latency in ms, or the failure."""
        return self.to(node_id, host).probe(self._clock.monotonic_ms() + self._hop_timeout_ms)

    def probe_if_quiet(self, node_id: str, host: HostInfo) -> None:
        """Probe a node that was not used lately. A node is called silent only when another one answered meanwhile;
        where one node serves all reads, the other nodes send no answers unless they are probed.
        """
        client = self.to(node_id, host)
        if not client.is_probed and self._clock.monotonic_ms() - client.heard_ms > self._suspect_after_ms / 2:
            self.probe(node_id, host)

    @property
    def dead(self) -> str | None:
        """The reason why a client's background task died; `None` while all of them live."""
        return next((client.dead for client in self._clients.values() if client.dead), None)

    async def keep_time(self) -> None:
        """Tick for ever, but not while no client is in use; this runs as a background task."""
        while True:
            await asyncio.sleep(self._tick_ms / 1000)
            self.tick(self._clock.monotonic_ms())
            if all(client.is_unused for client in self._clients.values()):
                await self._rest()

    async def _rest(self) -> None:
        """Wait for a request: a process with hundreds of idle applications must not tick for each of them."""
        self.is_resting = True
        self._wanted.clear()
        await self._wanted.wait()
        self.is_resting = False
        self._ticked_ms = self._clock.monotonic_ms()

    async def close_unused(self) -> None:
        """Close unused clients, for ever; this is a task of its own, because closing one may take seconds."""
        while True:
            await asyncio.sleep(SWEEP_S)
            while unused := self._unused(self._clock.monotonic_ms()):  # again after each: a read may use one meanwhile
                place, client = unused[0]
                del self._clients[place]
                # The node may have a newer client, at another address.
                if self._newest.get(client.node_id) is client:
                    del self._newest[client.node_id]
                await client.close()

    def tick(self, now_ms: float) -> None:
        """Fail late requests, and report silence and delays."""
        if now_ms - self._ticked_ms > LATE_TICKS * self._tick_ms:
            self._awake_since_ms = now_ms
        self._ticked_ms = now_ms
        allowance = self._allowance(now_ms) if self._context.patience.hedges else 0.0
        for client in self._clients.values():
            if client.is_unused:
                continue
            client.expire(now_ms)
            silent_ms = 0.0 if client.is_silent else self._silent_ms(client, now_ms)
            if silent_ms >= self._suspect_after_ms:
                client.fall_silent(silent_ms)
            allowance = client.report_delay(now_ms, overdue_ms=self._suspect_after_ms, allowance=allowance)

    def _silent_ms(self, client: NodeClient, now_ms: float) -> float:
        """Return for how many ms a node owes an answer; 0 when no other node answered: the router may be at fault."""
        since_ms = client.quiet_since_ms()
        if since_ms is None or now_ms - since_ms < self._suspect_after_ms:
            return 0.0
        if not any(other.heard_ms > since_ms for other in self._clients.values() if other is not client):
            return 0.0
        # While this process stood still it heard no node: that time counts against none of them.
        return now_ms - max(since_ms, self._awake_since_ms)

    def _unused(self, now_ms: float) -> list[tuple[tuple[str, str, int], NodeClient]]:
        return [
            (place, client)
            for place, client in self._clients.items()
            if now_ms - client.last_used_ms > IDLE_S * 1000 and client.is_unused
        ]

    async def close(self) -> None:
        """Close all clients."""
        clients, self._clients = list(self._clients.values()), {}
        self._newest.clear()
        for client in clients:
            await client.close()


class Loads(Mapping[str, int]):
    """The number of keys that wait or are in flight, by node id."""

    def __init__(self, clients: Mapping[str, NodeClient]) -> None:
        self._clients = clients

    def __getitem__(self, node_id: str) -> int:
        return self._clients[node_id].load

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


class Probing:
    """The probes of suspect and quarantined nodes, so that no reader has to try whether they recovered.

    The result of a probe reaches the tables like any hop's; this class only sends probes and gives them up in time.
    While all nodes are healthy it sends no probes.
    """

    def __init__(self, tables: Tables, clients: NodeClients, *, deadline_ms: float, clock: Clock) -> None:
        self._tables = tables
        self._clients = clients
        self._deadline_ms = deadline_ms
        self._clock = clock
        self._random = random.Random()  # noqa: S311  # jitter
        self._sent: dict[str, tuple[asyncio.Future[float | HopFailure], float]] = {}
        """The probes in flight by node id, and when each is given up, in ms."""

    def __repr__(self) -> str:
        return f"Probing({sorted(self._sent)})"

    async def run(self) -> None:
        """Send due probes for ever; this runs as a background task."""
        while True:
            tick_ms = self._tables.heartbeat_ms(default_ms=MAX_TICK_MS) / 4
            await asyncio.sleep(min(MAX_TICK_MS, max(MIN_TICK_MS, tick_ms)) / 1000)
            self.turn(self._clock.monotonic_ms())

    def turn(self, now_ms: float) -> None:
        """Forget probes that are done or late, and send those that are due."""
        for node_id, (future, until_ms) in list(self._sent.items()):
            if future.done() or now_ms >= until_ms:
                future.cancel()
                del self._sent[node_id]
        for node_id in self._tables.health.due(now_ms):
            if len(self._sent) >= MAX_PROBES:
                return
            if node_id not in self._sent:
                self._send(node_id, now_ms)

    def _send(self, node_id: str, now_ms: float) -> None:
        heartbeat = self._tables.nodes[node_id].heartbeat
        jitter = self._random.uniform(0.8, 1.2)
        self._tables.health.probe_sent(node_id, now_ms, heartbeat_ms=heartbeat.heartbeat_ms, jitter=jitter)
        future = self._clients.probe(node_id, heartbeat.endpoint.host_info())
        self._sent[node_id] = (future, now_ms + self._deadline_ms)
