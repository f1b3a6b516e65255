"""The documents that a router keeps for a start without the bus, and when they are out of date; and a pause of the
process told from a bus that hangs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.bus.local_bus import LocalBus
from tests.support.clock import ManualClock
from tests.support.cluster.fake_cluster import catalogue
from tests.support.router.tables import APPLICATION, TASK, assigned, beat, expire, port_of, tables_of, task

from understudy_router.cluster.watching import RouterMemory, is_from_previous_cluster
from understudy_router.router import Router
from understudy_router.settings import RouterSettings
from understudy_shared.base.plausible import FIRST_SIGHT
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.gossip import digest_of
from understudy_shared.cluster.without_bus import Remembered

ORDERS = st.tuples(st.integers(0, 3), st.integers(0, 3))


def settings(application_id: str = "flights", **options: object) -> RouterSettings:
    return RouterSettings(redis="redis://unused", application_id=application_id, **options)  # type: ignore[arg-type]


async def written(memory: RouterMemory, folder: Path) -> RouterMemory:
    """The memory of another process, which reads what this one kept."""
    await memory.flush()
    return RouterMemory(Remembered(folder, APPLICATION))


@given(ORDERS, st.lists(ORDERS))
def test_what_is_remembered_is_of_a_past_life_only_if_all_that_follow_anything_are_before_it(
    remembered: tuple[int, int], orders: list[tuple[int, int]]
) -> None:
    beats = [beat(f"n{number}", term=term, epoch=epoch) for number, (term, epoch) in enumerate(orders)]
    following = [order for order in orders if order != (0, 0)]
    found = is_from_previous_cluster(assigned({TASK: task("a")}, order=remembered), beats)
    assert found == (len(following) > 0 and all(order < remembered for order in following))


def test_an_order_that_cannot_be_does_not_keep_the_assignment_of_a_past_life() -> None:
    beats = [beat("forged", term=FIRST_SIGHT, epoch=1), beat("a", term=2, epoch=1)]
    assert is_from_previous_cluster(assigned({TASK: task("a")}, order=(5, 7)), beats)


async def test_assignment_catalogue_and_nodes_are_recalled_and_no_heartbeat_is(tmp_path: Path) -> None:
    memory = RouterMemory(Remembered(tmp_path, APPLICATION))
    latest, words = assigned({TASK: task("a", "b")}), catalogue(lineage="l1")
    memory.note(latest)
    memory.note(words)
    memory.note_nodes(tables_of(task("a", "b"), beat("a"), beat("b")), APPLICATION)
    again = await written(memory, tmp_path)
    assignment, stores = await again.recall()
    assert assignment == latest
    assert stores is not None
    assert stores.digest == digest_of(words)
    assert again.hosts == {beat(node).endpoint.host_info() for node in "ab"}
    again.bus_is_there()
    assert again.hosts == frozenset()


async def test_a_catalogue_of_another_history_than_the_assignments_is_not_used(tmp_path: Path) -> None:
    memory = RouterMemory(Remembered(tmp_path, APPLICATION))
    memory.note(assigned({TASK: task("a")}))
    memory.note(catalogue(lineage="another"))
    assignment, stores = await (await written(memory, tmp_path)).recall()
    assert assignment is not None
    assert stores is None


async def test_a_catalogue_that_this_release_cannot_read_is_not_used(tmp_path: Path) -> None:
    words = catalogue()
    odd = words.stores[0].model_copy(update={"key_schema": "of tomorrow"})
    memory = RouterMemory(Remembered(tmp_path, APPLICATION))
    memory.note(words.model_copy(update={"stores": [odd]}))
    assert await (await written(memory, tmp_path)).recall() == (None, None)


async def test_nodes_that_were_remembered_and_not_heard_are_kept_until_the_bus_names_the_members(
    tmp_path: Path,
) -> None:
    memory = RouterMemory(Remembered(tmp_path, APPLICATION))
    memory.note_nodes(tables_of(task("a"), beat("a")), APPLICATION)
    second = await written(memory, tmp_path)
    await second.recall()
    second.note_nodes(tables_of(task("b"), beat("b")), APPLICATION)
    third = await written(second, tmp_path)
    await third.recall()
    assert {host.port for host in third.hosts} == {port_of("a"), port_of("b")}
    third.bus_is_there()
    third.note_nodes(tables_of(task("b"), beat("b")), APPLICATION)
    fourth = await written(third, tmp_path)
    await fourth.recall()
    assert {host.port for host in fourth.hosts} == {port_of("b")}


async def test_a_node_that_died_lately_is_remembered(tmp_path: Path) -> None:
    tables = tables_of(task("a"), beat("a"))
    expire(tables, 1e9)
    assert list(tables.dead) == ["a"]
    memory = RouterMemory(Remembered(tmp_path, APPLICATION))
    memory.note_nodes(tables, APPLICATION)
    again = await written(memory, tmp_path)
    await again.recall()
    assert {host.port for host in again.hosts} == {port_of("a")}


TURNS = 60
HANG_MS = 1002


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the duty for some turns; each sleep takes so much longer. Returns how often it read the keys."""

    def run(*, late_ms: float) -> int:
        clock, turns, reads = ManualClock(), 0, 0
        settings = RouterSettings(redis="redis://unused", application_id=APPLICATION)
        watcher = Router(settings, LocalBus(), host=HostInfo("127.0.0.1", 1), clock=clock).watcher

        async def sleep(seconds: float) -> None:
            nonlocal turns
            turns += 1
            if turns > TURNS:
                raise asyncio.CancelledError
            clock.advance(seconds * 1000 + late_ms)

        async def hang() -> None:
            nonlocal reads
            reads += 1
            clock.advance(HANG_MS)
            watcher.bus_lost_why = "it hangs"  # as the real one does when the bus did not answer

        watcher.bus_lost_why = None
        monkeypatch.setattr(asyncio, "sleep", sleep)
        monkeypatch.setattr(watcher.cluster, "read", hang)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(watcher._keep())
        return reads

    return run


def test_a_redis_that_hangs_is_no_pause_of_the_process(
    kept: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        reads = kept(late_ms=0)
    assert reads == 1
    assert "paused" not in caplog.text


def test_a_pause_of_the_process_is_logged_and_the_keys_are_read_again(
    kept: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        reads = kept(late_ms=1500)
    assert reads == TURNS
    assert "this process paused for 1500 ms" in caplog.text
