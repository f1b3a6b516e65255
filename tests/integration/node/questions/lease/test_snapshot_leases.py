"""Snapshot leases at a node: one version of all tasks, kept while batches commit, within bounds.

The checkpoint is made by hand: at version V each word was counted V times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import Reply, Served, ServedNode, served_node
from tests.support.oracle.scanned import pages, scanned
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_node.replica import past_versions, pinned_versions
from understudy_shared.questions.lease import service
from understudy_shared.reads.tokens import LEASE_PREFIX

STORE = "/v1/stores/op0"
LAST = 6


@pytest.fixture
def checkpoint(tmp_path: Path) -> HandmadeCheckpoint:
    return HandmadeCheckpoint(tmp_path / "checkpoint").create().add(*range(1, LAST + 1))


@pytest.fixture
def node(checkpoint: HandmadeCheckpoint, tmp_path: Path) -> Iterator[ServedNode]:
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.wait_for_version(LAST)
        yield served


def lease(served: Served, **members: object) -> dict[str, Any]:
    reply = asked(served, **members)
    assert reply.status == 201, reply
    return reply.body


def asked(served: Served, **members: object) -> Reply:
    return served.post("/v1/snapshots", json.dumps(members).encode())


def look_up(served: Served, token: str, word: str = WORDS[0]) -> Reply:
    return served.get(f"{STORE}/keys/{quote(word)}?snapshot={token}")


def assert_reads(served: Served, token: str, version: int) -> None:
    for word in WORDS:
        reply = look_up(served, token, word)
        value: Any = reply.body["value"]
        assert (reply.status, reply.body["version"], value["count"]) == (200, version, version), reply


def listed(served: Served) -> list[dict[str, Any]]:
    found: Any = served.get("/admin/v1/snapshots").body["snapshots"]
    return list(found)


def test_leases_that_wait_for_a_version_hold_up_no_other(
    node: ServedNode, checkpoint: HandmadeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = service.MAX_GRANTING
    monkeypatch.setattr(service, "MAX_WAITING", most)
    with ThreadPoolExecutor(most + 1) as readers:
        waiting = [readers.submit(asked, node, version=LAST + 1, wait_ms=20_000) for _ in range(most + 1)]
        wait_until(lambda: any(each.done() for each in waiting), what="one more than may wait")
        assert lease(node)["version"] == LAST
        checkpoint.add(LAST + 1)
        assert sorted(each.result().status for each in waiting) == [*[201] * most, 429]


def test_a_lease_is_of_the_newest_version_and_every_read_goes_on_at_it_while_batches_commit(
    node: ServedNode, checkpoint: HandmadeCheckpoint
) -> None:
    held = lease(node)
    assert held["snapshot"].startswith(LEASE_PREFIX)
    assert (held["version"], held["newest_version"], held["held_back_by"]) == (LAST, LAST, None)
    assert (held["ttl_s"], held["stores"]) == (60, ["op0"])
    checkpoint.add(*range(LAST + 1, LAST + 6))
    node.wait_for_version(LAST + 5)
    assert_reads(node, held["snapshot"], LAST)
    assert_reads(node, held["position"], LAST)
    assert node.node.past.opened == 0, "what was on show is kept, and not opened again"
    rows = scanned(node, "op0", limit=2, snapshot=held["snapshot"])
    assert {row["key"]["word"]: row["value"]["count"] for row in rows} == checkpoint.counts(LAST)
    results = node.look_up_all([[word] for word in WORDS], snapshot=held["snapshot"])
    assert {each["version"] for each in results} == {LAST}
    reads = {"reads": [{"store": "op0", "keys": [[WORDS[0]]]}], "snapshot": held["snapshot"]}
    assert node.post("/v1/read", json.dumps(reads).encode()).body["version"] == LAST


def test_a_lease_of_an_older_version_opens_it_for_all_tasks_before_it_is_read(node: ServedNode) -> None:
    for name, value in (("version", 2), ("snapshot", look_up_position(node, 2))):
        held = lease(node, **{name: value})
        assert (held["version"], held["newest_version"]) == (2, 2)
    wait_until(lambda: node.node.past.opened == 2, what="both partitions to be opened")
    assert_reads(node, held["snapshot"], 2)
    assert node.node.past.opened == 2


def look_up_position(served: Served, version: int) -> object:
    return served.get(f"{STORE}/keys/{quote(WORDS[0])}?version={version}").body["position"]


def test_an_unused_lease_ends_by_itself_and_memory_and_files_go_back(
    node: ServedNode, checkpoint: HandmadeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q65: its reader is killed."""
    pins = node.node.pinned
    newest, old = lease(node, ttl_s=900), lease(node, version=2, ttl_s=900)
    monkeypatch.setattr(pinned_versions, "HOLD_MS", 1)
    checkpoint.add(*range(LAST + 1, LAST + 4))
    node.wait_for_version(LAST + 3)
    folder = node.node._around.disk.root / past_versions.PAST_FOLDER
    wait_until(lambda: len(pins) == 4, what="two versions of two tasks, and no others, to be kept")
    for held in (newest, old):
        assert_reads(node, held["snapshot"], held["version"])
    assert node.node.past.opened == 2, "what is leased stays, however short the usual time is"
    for entry in node.node.leases._held.values():
        entry.until_ms -= 900_000
    wait_until(lambda: not listed(node), what="the leases to end")
    wait_until(lambda: not len(pins) and not list(folder.iterdir()), what="memory and files to go back")
    assert node.node.leases.counts["expired"] == 2
    assert_reads(node, newest["snapshot"], LAST)
    assert_reads(node, old["snapshot"], 2)


def test_the_use_of_a_lease_renews_it_and_brings_back_one_that_the_node_has_forgotten(
    checkpoint: HandmadeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(LAST)
        held = lease(node, ttl_s=900)
        (entry,) = node.node.leases._held.values()
        assert_reads(node, held["snapshot"], LAST)
        counts = node.node.leases.counts
        assert counts["renewed"] == 0, "it was granted a moment ago"
        entry.until_ms -= 500_000
        assert_reads(node, held["snapshot"], LAST)
        assert counts["renewed"] == 1, "once in a third of its time"
        for reads in (
            lambda: list(pages(node, "op0", snapshot=held["snapshot"])),
            lambda: node.look_up_all([[WORDS[0]]], snapshot=held["snapshot"]),
        ):
            before, entry.until_ms = counts["renewed"], entry.until_ms - 500_000
            reads()
            assert counts["renewed"] == before + 1
    checkpoint.add(LAST + 1)
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(LAST + 1)
        assert listed(node) == []
        assert_reads(node, held["snapshot"], LAST)
        (back,) = listed(node)
        assert back["version"] == LAST


def test_a_lease_above_the_limits_is_refused_with_a_time_to_retry_and_the_others_go_on(
    node: ServedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.node.leases, "_max_leases", 3)
    granted = [lease(node, ttl_s=30) for _ in range(3)]
    refused = asked(node)
    assert (refused.status, refused.problem) == (429, "overloaded")
    assert 1 <= int(str(refused.body["retry_after_s"])) <= 30
    monkeypatch.setattr(node.node.leases, "_max_leases", 100)
    monkeypatch.setattr(node.node.leases, "_max_versions", 2)
    assert lease(node, version=2)["version"] == 2
    assert asked(node, version=3).problem == "overloaded"
    assert lease(node, version=2)["version"] == 2, "of a version that is held"
    assert_reads(node, granted[0]["snapshot"], LAST)


def test_a_lease_that_is_given_back_is_listed_no_more_and_its_token_still_reads(node: ServedNode) -> None:
    held = lease(node)
    assert [each["version"] for each in listed(node)] == [LAST]
    assert node.delete(f"/v1/snapshots/{held['snapshot']}").status == 204
    assert listed(node) == []
    assert node.delete(f"/v1/snapshots/{held['snapshot']}").status == 204, "it is gone, as was asked"
    assert_reads(node, held["snapshot"], LAST)


def test_the_listing_says_what_a_lease_holds_beyond_what_is_shown(
    node: ServedNode, checkpoint: HandmadeCheckpoint
) -> None:
    held = lease(node, ttl_s=600)
    (entry,) = listed(node)
    assert (entry["ttl_s"], entry["version"]) == (600, LAST)
    assert (entry["tasks"], entry["extra_bytes"]) == (2, 0), "what is shown costs nothing"
    assert entry["lineage"] == held["lineage"]
    checkpoint.add(*range(LAST + 1, LAST + 30))
    node.wait_for_version(LAST + 29)
    (entry,) = listed(node)
    assert entry["extra_bytes"] == node.node.pinned.extra_bytes
    metrics = node.text("/metrics")
    assert "understudy_snapshot_leases 1.0" in metrics
    assert f"understudy_snapshot_lease_extra_bytes {float(entry['extra_bytes'])}" in metrics
    assert 'understudy_snapshot_lease_changes_total{change="granted"} 1.0' in metrics


def test_a_body_that_is_no_object_is_refused_and_an_empty_one_asks_for_the_newest(node: ServedNode) -> None:
    for body in (b"[]", b"{", b'"x"'):
        assert node.post("/v1/snapshots", body).problem == "bad-request"
    assert node.post("/v1/snapshots", b"").status == 201
    assert node.post("/v1/snapshots", b"{" + b" " * 70_000 + b"}").problem == "too-large"
