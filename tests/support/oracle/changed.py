"""The changes of each version against what Spark's reader has before and after it, for every kind of state."""

from __future__ import annotations

from typing import Any

from tests.support.cluster.served_node import Served
from tests.support.oracle.custom_state import in_order
from tests.support.oracle.json import as_text
from tests.support.oracle.kinds import KindsCheckpoint, KindStore
from tests.support.services.changes import changes_of, changes_target


def assert_changed(served: Served, oracle: KindsCheckpoint) -> int:
    """Every key that came or went is among the changes, and each changed key holds what Spark has. Return how many."""
    count = 0
    has_changelogs = oracle.state_format.provider == "hdfs" or oracle.state_format.changelog
    for store in oracle.stores.values():
        if store.kind == "join-side" or not has_changelogs:
            reply = served.get(changes_target(oracle.versions[1], store=store.name))
            assert (reply.status, reply.problem) == (400, "bad-bound"), store.operator
            continue
        changed = changes_of(served, oracle.versions[1], store=store.name)
        assert changed.end["to"] == oracle.last
        for before, version in zip(oracle.versions, oracle.versions[1:], strict=False):
            found = _keys(changed.of(version))
            kept, kept_before = _kept(store, version), _kept(store, before)
            assert kept.keys() ^ kept_before.keys() <= found.keys(), f"{store.operator} at version {version}"
            assert found == {key: kept.get(key) for key in found}, f"{store.operator} at version {version}"
            count += len(found)
    return count


def _keys(changes: list[dict[str, Any]]) -> dict[str, str | None]:
    """What changed keys hold; None for those that are gone."""
    found = {as_text(list(each["key"].values())): _said(each) if each["found"] else None for each in changes}
    assert len(found) == len(changes), "a key twice"
    return found


def _kept(store: KindStore, version: int) -> dict[str, str]:
    return {as_text(kept.key): _said(kept.said) for kept in store.kept[version]}


def _said(members: dict[str, Any]) -> str:
    left_out = {"key", "found", "next_cursor", "version", "partition"}
    return as_text(in_order({name: each for name, each in members.items() if name not in left_out}))
