"""The ways to the nodes, made when they are asked for and closed when nobody uses them.

One clock tick for all of them: it ends what is late, tells readers that they still wait, and notices silent nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from understudy_router.asks import HopFailure
from understudy_router.hop_replies import HopCounts, Listener
from understudy_router.lane import Lane
from understudy_router.patience import Patience
from understudy_shared.clock import Clock
from understudy_shared.words import HostInfo

IDLE_S = 60.0
"""A lane that carried nothing for so long is closed: its node may be gone."""

TICK_MS = 10.0
"""How often asks are looked after: a tenth of what a reader notices."""

LATE_TICKS = 5
"""A tick that comes so late says that this process stood still, and nothing of nodes: their answers may lie unread."""


class Lanes:
    """A lane per node that was asked lately."""

    def __init__(
        self,
        *,
        application_id: str,
        listener: Listener,
        patience: Patience,
        suspect_after_ms: float,
        hop_timeout_ms: float,
        allowance: Callable[[float], float],
        clock: Clock,
    ) -> None:
        """`suspect_after_ms` of silence while others answer are told; `allowance(now_ms)` keys may be hedged now."""
        self.counts = HopCounts()
        self._application_id = application_id
        self._listener = listener
        self._patience = patience
        self._suspect_after_ms = suspect_after_ms
        self._hop_timeout_ms = hop_timeout_ms
        self._allowance = allowance
        self._tick_ms = min(TICK_MS, max(5.0, hop_timeout_ms / 20))
        self._clock = clock
        self._ticked_ms = clock.monotonic_ms()
        self._awake_since_ms = self._swept_ms = self._ticked_ms
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
                patience=self._patience,
                clock=self._clock,
            )
            self._newest[node_id] = lane
        return lane

    def probe(self, node_id: str, host: HostInfo) -> asyncio.Future[float | HopFailure]:
        """Whether a node answers: how long an empty hop takes in ms, within the time of any hop, or why none came."""
        return self.to(node_id, host).probe(self._clock.monotonic_ms() + self._hop_timeout_ms)

    def ask_whether_others_answer(self, node_id: str, host: HostInfo) -> None:
        """Probe a node that nobody asked lately. A node is called silent only when another one answered meanwhile, and
        where one node serves everything no other is asked anything.
        """
        lane = self.to(node_id, host)
        if not lane.is_probed and self._clock.monotonic_ms() - lane.heard_ms > self._suspect_after_ms / 2:
            self.probe(node_id, host)

    @property
    def dead(self) -> str | None:
        """The first lane whose background task died."""
        return next((lane.dead for lane in self._lanes.values() if lane.dead), None)

    async def keep_time(self) -> None:
        """Tick for ever; a background task of its own."""
        while True:
            await asyncio.sleep(self._tick_ms / 1000)
            now_ms = self._clock.monotonic_ms()
            self.tick(now_ms)
            for place, lane in self._unused(now_ms):
                del self._lanes[place]
                if self._newest.get(lane.node_id) is lane:
                    del self._newest[lane.node_id]
                await lane.close()

    def tick(self, now_ms: float) -> None:
        """End what is late, tell of silence, hand over what waits for long."""
        if now_ms - self._ticked_ms > LATE_TICKS * self._tick_ms:
            self._awake_since_ms = now_ms
        self._ticked_ms = now_ms
        allowance = self._allowance(now_ms) if self._patience.hedges else 0.0
        for lane in self._lanes.values():
            if lane.is_unused:
                continue
            lane.expire(now_ms)
            silent_ms = 0.0 if lane.is_silent else self._silent_ms(lane, now_ms)
            if silent_ms >= self._suspect_after_ms:
                lane.fall_silent(silent_ms)
            allowance = lane.hand_over(now_ms, overdue_ms=self._suspect_after_ms, allowance=allowance)

    def _silent_ms(self, lane: Lane, now_ms: float) -> float:
        """How long a node owes an answer; 0 when no other node answered meanwhile: it may be this router's fault."""
        since_ms = lane.quiet_since_ms()
        if since_ms is None or now_ms - since_ms < self._suspect_after_ms:
            return 0.0
        if not any(other.heard_ms > since_ms for other in self._lanes.values() if other is not lane):
            return 0.0
        return now_ms - max(since_ms, self._awake_since_ms)

    def _unused(self, now_ms: float) -> list[tuple[tuple[str, str, int], Lane]]:
        """Looked for once a second."""
        if now_ms - self._swept_ms < 1000:
            return []
        self._swept_ms = now_ms
        return [
            (place, lane)
            for place, lane in self._lanes.items()
            if now_ms - lane.last_used_ms > IDLE_S * 1000 and lane.is_unused
        ]

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
