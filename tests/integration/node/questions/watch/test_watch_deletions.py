"""Deletions through the Python client, each with what is known of it: a removed key, or one that has expired."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.integration.node.questions.watch.test_prefix_watches import FIRST, TENANT, MovingOrders
from tests.support.checkpoint.handmade_sessions import SESSIONS, VISITORS, HandmadeSessions
from tests.support.cluster.served_node import served_node

from understudy import Client


def test_a_key_that_a_version_removes_is_told_by_watches_and_changes(tmp_path: Path) -> None:
    """Q29: a tombstone, which does not say who wrote it."""
    orders = MovingOrders(tmp_path / "orders", of_a=5)
    orders.create()
    orders.add(*range(1, FIRST + 1))
    with served_node(orders.path, tmp_path / "data") as node, Client(f"http://127.0.0.1:{node.port}") as client:
        node.wait_for_version(FIRST)
        store, key = client.store("op0"), {"tenant": TENANT, "n": 1000 + FIRST}
        with store.watch(key) as watch, store.watch(prefix=[TENANT, 1000 + FIRST]) as of_prefix:
            assert [next(each).found for each in (watch, of_prefix)] == [True, True]
            orders.add(FIRST + 1)
            told = [next(watch), next(of_prefix)]
        told += [each for each in store.changes(FIRST + 1, prefix=[TENANT]) if each.key == key]
        assert [(each.deleted, each.expired, each.key, each.version) for each in told] == [
            (True, None, key, FIRST + 1),
        ] * 3


def test_a_key_of_which_all_has_expired_is_told_as_such_where_that_is_hidden(tmp_path: Path) -> None:
    """Q29: what the watermark has outlived, and Spark has not removed."""
    sessions = HandmadeSessions(tmp_path / "sessions")
    sessions.create()
    sessions.add(1)
    with served_node(sessions.path, tmp_path / "data") as node, Client(f"http://127.0.0.1:{node.port}") as client:
        node.wait_for_version(1)
        store = client.store("op0")
        with (
            store.watch(VISITORS[0], include_expired=False) as hidden,
            store.watch(VISITORS[0], include_expired=True) as shown,
        ):
            assert [next(each).found for each in (hidden, shown)] == [True, True]
            replace(sessions, watermark_ms=(SESSIONS + 1) * 1000).add(2)
            gone, seen = next(hidden), next(shown)
            assert (gone.deleted, gone.expired, gone.version) == (True, True, 2)
            assert (seen.kind, len(seen.elements), {each["expired"] for each in seen.elements}) == (
                *("value", SESSIONS, {True}),
            )
