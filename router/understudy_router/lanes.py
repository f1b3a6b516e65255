"""The ways to the nodes, made when they are asked for and closed when nobody uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from understudy_router.lane import HopCounts, Lane, Listener
from understudy_shared.clock import Clock
from understudy_shared.words import HostInfo

IDLE_S = 60.0
"""A lane that carried nothing for so long is closed: its node may be gone."""


class Lanes:
    """A lane per node that was asked lately."""

    def __init__(self, *, application_id: str, listener: Listener, tick_ms: float, clock: Clock) -> None:
        self.counts = HopCounts()
        self._application_id = application_id
        self._listener = listener
        self._tick_s = tick_ms / 1000
        self._clock = clock
        self._lanes: dict[tuple[str, str, int], Lane] = {}
        self._newest: dict[str, Lane] = {}
        self.loads: Mapping[str, int] = Loads(self._newest)
        """Keys that wait or travel, by node id; read when it is asked for."""

    def __repr__(self) -> str:
        return f"Lanes({list(self._lanes.values())})"

    def to(self, node_id: str, host: HostInfo) -> Lane:
        """The way to a node, made when it is asked for."""
        place = (node_id, host.host, host.port)
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = Lane(
                node_id,
                host,
                application_id=self._application_id,
                listener=self._listener,
                counts=self.counts,
                clock=self._clock,
            )
            self._newest[node_id] = lane
        return lane

    @property
    def dead(self) -> str | None:
        """The first lane whose background task died."""
        return next((lane.dead for lane in self._lanes.values() if lane.dead), None)

    async def keep_time(self) -> None:
        """End what takes too long, for ever; a background task of its own."""
        while True:
            await asyncio.sleep(self._tick_s)
            now_ms = self._clock.monotonic_ms()
            for place, lane in list(self._lanes.items()):
                lane.expire(now_ms)
                if not lane.load and now_ms - lane.last_used_ms > IDLE_S * 1000:
                    del self._lanes[place]
                    if self._newest.get(lane.node_id) is lane:
                        del self._newest[lane.node_id]
                    await lane.close()

    async def close(self) -> None:
        """Close all of them."""
        lanes, self._lanes = list(self._lanes.values()), {}
        self._newest.clear()
        for lane in lanes:
            await lane.close()


class Loads(Mapping[str, int]):
    """How much is on its way to each node."""

    def __init__(self, lanes: Mapping[str, Lane]) -> None:
        self._lanes = lanes

    def __getitem__(self, node_id: str) -> int:
        return self._lanes[node_id].load

    def __iter__(self) -> Iterator[str]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)


def tick_ms_of(hop_timeout_ms: int) -> float:
    """How often hops are looked after: fine enough for their limit, and no busy loop."""
    return min(50.0, max(5.0, hop_timeout_ms / 20))
