"""Which node is probed and when: with tables filled by hand, and a sender that only remembers its probes."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.clock import ManualClock
from tests.support.router.tables import beat, expire, port_of, tables_of, task

from understudy_router.cluster.health import MAX_BAD_IN_A_ROW, Health
from understudy_router.cluster.tables import Tables
from understudy_router.transport.node_clients import MAX_PROBES, Probing
from understudy_shared.base.words import HostInfo
from understudy_shared.cluster.wire import HopFailure

DEADLINE_MS = 1000


class ProbeSender:
    """Keeps the probes that it was asked to send; the test sets their results."""

    def __init__(self) -> None:
        self.probes: list[tuple[str, HostInfo]] = []
        self.futures: list[asyncio.Future[float | HopFailure]] = []

    def probe(self, node_id: str, host: HostInfo) -> asyncio.Future[float | HopFailure]:
        self.probes.append((node_id, host))
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]

    @property
    def names(self) -> list[str]:
        return [node_id for node_id, _ in self.probes]


def probing(tables: Tables) -> tuple[Probing, ProbeSender]:
    sender: Any = ProbeSender()
    return Probing(tables, sender, deadline_ms=DEADLINE_MS, clock=ManualClock()), sender


async def test_a_suspect_is_probed_where_it_listens_about_once_per_heartbeat() -> None:
    tables = tables_of(task("a", "b"), beat("a"), beat("b"))
    tables.hop_failed("b", 0, "reset")
    turns, sender = probing(tables)
    for now_ms in range(0, 10_000, 50):
        turns.turn(now_ms)
        for future in sender.futures:
            if not future.done():
                future.set_result(1.0)
    assert set(sender.probes) == {("b", HostInfo("127.0.0.1", port_of("b")))}
    assert 8 <= len(sender.probes) <= 13, "between 0.8 and 1.2 heartbeats"


async def test_a_node_is_not_probed_again_before_its_probe_is_answered_or_late() -> None:
    tables = tables_of(task("a"), beat("a", heartbeat_ms=100))
    tables.hop_failed("a", 0, "reset")
    turns, sender = probing(tables)
    for now_ms in (0, 300, 600, DEADLINE_MS - 1):
        turns.turn(now_ms)
    assert len(sender.probes) == 1
    turns.turn(DEADLINE_MS)
    assert sender.futures[0].cancelled()
    assert len(sender.probes) == 2


async def test_probes_on_their_way_are_bounded_and_the_others_have_their_turn() -> None:
    names = [f"n{number:02}" for number in range(2 * MAX_PROBES)]
    tables = tables_of(task(*names), *(beat(name) for name in names))
    for name in names:
        tables.hop_failed(name, 0, "reset")
    turns, sender = probing(tables)
    turns.turn(1)
    turns.turn(2)
    assert len(sender.probes) == MAX_PROBES
    for future in sender.futures:
        future.set_result(HopFailure("timeout", ""))
    turns.turn(3)
    assert sorted(sender.names) == names


async def test_a_node_that_died_meanwhile_is_not_probed() -> None:
    tables = tables_of(task("a"), beat("a"))
    for number in range(MAX_BAD_IN_A_ROW):
        tables.hop_failed("a", 100 * number, "reset")
    assert tables.health.of("a").health is Health.QUARANTINED
    expire(tables, 3001)
    turns, sender = probing(tables)
    turns.turn(100_000)
    assert sender.probes == []
