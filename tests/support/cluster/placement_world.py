"""Nodes that may assign: over the bus in this process, by a clock that is moved by hand."""

from __future__ import annotations

from tests.support.bus.local_bus import LocalBus
from tests.support.clock import ManualClock

from understudy_node.cluster.context import MemberId
from understudy_node.cluster.leader import Leadership, TaskSet
from understudy_node.settings import ClusterNodeSettings
from understudy_shared.bus.gossip import AgedHeartbeat, Gossip
from understudy_shared.bus.messages import Applied, Assignment, Heartbeat, NodeEndpoint

BEAT_MS = 1000
DELAY_MS = 30_000
TASKS = TaskSet("l1", 2, ["0_0", "0_1"])


def beat(
    node_id: str,
    *,
    at: tuple[int, int] = (0, 0),
    version: int | None = 9,
    state: str = "serving",
    lineage: str | None = "l1",
    partitions: int | None = 2,
    held: list[str] | None = None,
    exceptions: dict[str, Applied] | None = None,
    leaving: bool = False,
) -> AgedHeartbeat:
    """What a node reported just now; `at` is the (term, epoch) that it follows."""
    return AgedHeartbeat(
        Heartbeat(
            application_id="flights",
            node_id=node_id,
            incarnation="1",
            sequence=1,
            endpoint=NodeEndpoint(host="127.0.0.1", port=7101),
            leaving=leaving,
            state=state,  # type: ignore[arg-type]  # one of the literals
            heartbeat_ms=BEAT_MS,
            lineage=lineage,
            partitions=partitions,
            end_version=9,
            end_age_ms=0,
            applied=Applied(version=version),
            exceptions=exceptions or {},
            held=held,
            term=at[0],
            epoch=at[1],
        ),
        0,
    )


def assigning(**settings: int) -> ClusterNodeSettings:
    """The settings of a node of which only how it assigns matters."""
    return ClusterNodeSettings(checkpoint="unused", redis="redis://unused", **settings)  # type: ignore[arg-type]  # pydantic


class World:
    """One bus, one clock, and nodes that may assign."""

    def __init__(self) -> None:
        self.clock = ManualClock(monotonic_ms=50_000)
        self.bus = LocalBus(self.clock)
        self.gossip = Gossip(self.bus, "flights")
        self.known: dict[str, Assignment] = {}
        """What each node saw last."""

    def placement(self, node_id: str = "a", gossip: Gossip | None = None, *, rebalance_delay_ms: int = 0) -> Leadership:
        return Leadership(
            gossip or self.gossip,
            assigning(lag_refresh_ms=BEAT_MS, acceptable_recovery_lag=3, rebalance_delay_ms=rebalance_delay_ms),
            MemberId(node_id, "1"),
            clock=self.clock,
        )

    async def turn(
        self, placement: Leadership, nodes: list[AgedHeartbeat], *, node: str = "a", tasks: TaskSet | None = TASKS
    ) -> Assignment | None:
        highest = max(((each.heartbeat.term, each.heartbeat.epoch) for each in nodes), default=(0, 0))
        written = await placement.turn(
            nodes=nodes,
            tasks=tasks,
            highest=highest,
            known=self.known.get(node),
            began_ms=self.clock.monotonic_ms(),
        )
        if written is not None:
            self.known[node] = written
        return written

    async def written(self, placement: Leadership, nodes: list[AgedHeartbeat], *, node: str = "a") -> Assignment:
        written = await self.turn(placement, nodes, node=node)
        assert written is not None
        return written

    async def first(self, placement: Leadership, nodes: list[AgedHeartbeat]) -> Assignment:
        """The very first assignment, by node a."""
        assert await self.turn(placement, nodes) is None
        self.clock.advance(BEAT_MS)
        return await self.written(placement, nodes)

    def lose_all(self) -> None:
        """Redis comes back empty: another bus in the place of the first."""
        self.bus.__init__(self.clock)  # type: ignore[misc]  # emptied in place, as FLUSHALL does


async def turns_until_written(
    world: World, placement: Leadership, nodes: list[AgedHeartbeat], *, node: str = "a"
) -> Assignment:
    """Take turns, a heartbeat each, until something is written."""
    for _ in range(2 * DELAY_MS // BEAT_MS):
        written = await world.turn(placement, nodes, node=node)
        if written is not None:
            return written
        world.clock.advance(BEAT_MS)
    raise AssertionError("nothing was written")
