"""What a router keeps for a start without the bus, and when that is out of date."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster.fake_cluster import catalogue
from tests.support.router.tables import APPLICATION, TASK, assigned, beat, expire, port_of, tables_of, task

from understudy_router.cluster import remembering
from understudy_router.cluster.remembering import RouterMemory, is_from_previous_cluster
from understudy_router.cluster.tables import Tables
from understudy_router.serve import main
from understudy_router.settings import RouterSettings
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.plausible import FIRST_SIGHT
from understudy_shared.bus.gossip import digest_of
from understudy_shared.cluster.remembered import Remembered

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
    recalled = await again.recall()
    assert recalled.assignment == latest
    assert recalled.stores is not None
    assert recalled.stores.digest == digest_of(words)
    assert again.hosts == {beat(node).endpoint.host_info() for node in "ab"}
    again.bus_is_there()
    assert again.hosts == frozenset()


async def test_a_catalogue_of_another_history_than_the_assignments_is_not_used(tmp_path: Path) -> None:
    memory = RouterMemory(Remembered(tmp_path, APPLICATION))
    memory.note(assigned({TASK: task("a")}))
    memory.note(catalogue(lineage="another"))
    recalled = await (await written(memory, tmp_path)).recall()
    assert recalled.assignment is not None
    assert recalled.stores is None


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


async def test_how_many_nodes_are_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembering, "MAX_NODES", 3)
    nodes = "abcde"
    memory = RouterMemory(Remembered(tmp_path, APPLICATION))
    memory.note_nodes(tables_of(task("a"), *map(beat, nodes)), APPLICATION)
    again = await written(memory, tmp_path)
    await again.recall()
    assert len(again.hosts) == 3


async def test_without_a_place_nothing_is_remembered_and_nothing_fails() -> None:
    memory = RouterMemory(None)
    memory.note(catalogue())
    memory.note_nodes(Tables(), APPLICATION)
    await memory.flush()
    assert await memory.recall() == (None, None)


@pytest.mark.parametrize("application_id", ["flights", "a/../../b", "..", "a b", "\u00e4" * 200, "x" * 256, "a:b\0c"])
def test_the_folder_is_one_of_its_own_whatever_the_application_is_called(
    application_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = settings(application_id).data_directory
    assert folder.parent == tmp_path / "understudy"
    folder.mkdir(parents=True)
    other = settings(application_id[:-1] + "y").data_directory
    assert other != folder


def test_the_folder_is_the_configured_one(tmp_path: Path) -> None:
    assert settings(data_dir=tmp_path / "here").data_directory == tmp_path / "here"


def test_without_a_home_there_is_a_folder_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert settings().data_directory == Path("/.cache/understudy/router-flights")


def test_a_router_with_an_invalid_seed_does_not_start() -> None:
    with pytest.raises(SettingsError, match="'n1' is not a seed"):
        main({"redis": "redis://unused", "application_id": "flights", "port": 0, "seed": "n1"})
