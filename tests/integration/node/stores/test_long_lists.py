"""Long lists come in pages of one version, at a node, through a router, in batches and on the command line.

The checkpoint is made by hand: each session says the version that it is of. What Spark writes is paged in
test_oracle_of_kinds.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade_sessions import SESSIONS, VISITORS, HandmadeSessions
from tests.support.cluster.in_process import cluster
from tests.support.cluster.served_node import Reply, Served, ServedNode, served_node
from tests.support.services.openapi import judge

from understudy_node.stores import finder
from understudy_shared.reads.tokens import PageCursor, decode_cursor

STORE = "/v1/stores/op0"
NUMBERS = list(range(SESSIONS))
PATIENT = {"hop_timeout_ms": 10_000, "deadline_ms": 25_000}
"""A router on a busy machine."""


@pytest.fixture
def checkpoint(tmp_path: Path) -> HandmadeSessions:
    made = HandmadeSessions(tmp_path / "checkpoint", watermark_ms=3_000).create()
    made.add(1)
    return made


@pytest.fixture
def node(checkpoint: HandmadeSessions, tmp_path: Path) -> Iterator[ServedNode]:
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.wait_for_version(1)
        yield served


def page(served: Served, visitor: str = VISITORS[0], **selection: object) -> Reply:
    query = "&".join(f"{name}={quote(str(value))}" for name, value in selection.items() if value is not None)
    return served.get(f"{STORE}/keys/{visitor}?{query}")


def numbers_of(answer: dict[str, Any]) -> list[int]:
    """Which sessions a page has: each begins at the second of its number."""
    return [int(each["start"][17:19]) for each in answer["sessions"]]


def pages(served: Served, visitor: str = VISITORS[0], **selection: object) -> list[dict[str, Any]]:
    """All pages of a key, one after the other."""
    found: list[dict[str, Any]] = []
    cursor: object = None
    while not found or cursor is not None:
        reply = page(served, visitor, cursor=cursor, **selection)
        assert reply.status == 200, reply
        found.append(reply.body)
        cursor = reply.body["next_cursor"]
    return found


def test_all_pages_are_of_the_version_of_the_first_while_newer_ones_are_shown(
    node: ServedNode, checkpoint: HandmadeSessions
) -> None:
    first = page(node, limit=2).body
    for version in (2, 3):
        checkpoint.add(version)
        node.wait_for_version(version)
    second = page(node, limit=2, cursor=first["next_cursor"]).body
    third = page(node, limit=2, cursor=second["next_cursor"]).body
    parts: list[Any] = [first, second, third]
    assert {each["version"] for each in parts} == {1}
    assert [each["value"]["count"] for part in parts for each in part["sessions"]] == [1] * SESSIONS
    assert parts[1]["lag"]["offset_lag"] == 2, "an older version says that it is older"
    assert page(node, limit=2).body["version"] == 3
    refused = page(node, cursor=first["next_cursor"], max_lag=1)
    assert (refused.status, refused.problem) == (503, "no-acceptable-replica")


class _CountedTwice(HandmadeSessions):
    """Sessions that change at version 3 only."""

    def _records(self, version: int, partition: int) -> list[spark.Record]:
        return super()._records(3 if version >= 3 else 1, partition)


def test_the_history_of_a_long_list_has_an_entry_only_where_the_list_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "MAX_PAGE_BYTES", 1)
    checkpoint = _CountedTwice(tmp_path / "checkpoint", watermark_ms=3_000)
    checkpoint.create()
    for version in range(1, 6):
        checkpoint.add(version)
    with served_node(checkpoint.path, tmp_path / "data") as node:
        node.wait_for_version(5)
        found: Any = node.get(f"{STORE}/history/{VISITORS[0]}?from=1").body["versions"]
        assert [each["version"] for each in found if each["next_cursor"]] == [1, 3]


def test_a_version_that_is_gone_is_said_to_be_gone_and_another_is_never_taken_for_it(
    node: ServedNode, checkpoint: HandmadeSessions
) -> None:
    first = page(node, limit=2).body
    cursor = decode_cursor(first["next_cursor"])
    checkpoint.add(2)
    node.wait_for_version(2)
    drop_pins(node)
    second = page(node, limit=2, cursor=first["next_cursor"])
    assert (second.status, second.body["version"]) == (200, 1), "a version that no page holds is opened again"
    assert numbers_of(second.body) == [2, 3]
    drop_pins(node)
    (checkpoint.path / "commits" / "0").unlink()
    committed_otherwise = PageCursor(cursor.store, cursor.lineage, cursor.key, 2, 7, cursor.offset).encode()
    for token in (first["next_cursor"], committed_otherwise):
        reply = page(node, cursor=token)
        assert (reply.status, reply.problem) == (410, "version-gone"), reply
        assert "begin again" in reply.text
        document = node.get("/openapi.json").body
        judge_reply(document, "GET /v1/stores/{store}/keys/{key}", reply)
    assert page(node, cursor=first["next_cursor"]).body["retained_versions"] == [2, 2]
    not_there_yet = PageCursor(cursor.store, cursor.lineage, cursor.key, 9, None, cursor.offset).encode()
    reply = page(node, cursor=not_there_yet)
    assert (reply.status, "version-not-yet" in reply.text) == (503, True)


def drop_pins(node: ServedNode) -> None:
    """Drop what is pinned, and what is known of the commits, as a restart of the node does."""
    generation = node.node.generation
    assert generation is not None
    for replica in generation.replicas:
        replica._pinned.release(replica)
    node.node.history._records.clear()


def judge_reply(document: dict[str, object], call: str, reply: Reply) -> None:
    judge(document, call, reply.status, reply.content_type, json.dumps(reply.body).encode())


def _bad(node: ServedNode) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Selections that are refused, and what the refusal says."""
    cursor = str(page(node, limit=2).body["next_cursor"])
    known = decode_cursor(cursor)

    def other(**fields: Any) -> str:
        values = {name: getattr(known, name) for name in PageCursor.__dataclass_fields__} | fields
        return PageCursor(**values).encode()

    return {
        "another key": ({"cursor": other(key="00")}, ["another key"]),
        "cut": ({"cursor": cursor[:-2]}, ["not a cursor", "next_cursor"]),
        "limit 0": ({"limit": 0}, ["limit='0'", "from 1 to 1000"]),
        "include_expired": ({"include_expired": "perhaps"}, ["include_expired='perhaps'", "true or false"]),
    }


def _assert_all_refused(served: Served, node: ServedNode) -> None:
    for name, (selection, says) in _bad(node).items():
        reply = page(served, **selection)
        assert (reply.status, reply.problem) == (400, "bad-bound"), (name, reply)
        text = reply.text.replace('"', "'")
        assert [part for part in says if part not in text] == [], (name, text)
    cursor = page(node, limit=2).body["next_cursor"]
    other_key = page(served, VISITORS[1], cursor=cursor)
    assert (other_key.status, other_key.problem) == (400, "bad-bound")
    body = json.dumps({"keys": [[VISITORS[0]]], "bounds": {"cursor": cursor}}).encode()
    batch = served.post(f"{STORE}/lookup", body)
    assert (batch.status, batch.problem) == (400, "bad-bound")
    assert "a batch takes no cursor" in batch.text


def test_a_bad_selection_is_refused_with_what_is_wrong(node: ServedNode) -> None:
    _assert_all_refused(node, node)


def _assert_batches(served: Served, compact: str) -> None:
    for bounds, first in (({"limit": 2}, [0, 1]), ({"limit": 1, "include_expired": False}, [3])):
        body = json.dumps({"keys": [[visitor] for visitor in VISITORS], "bounds": bounds}).encode()
        results: Any = served.post(f"{STORE}/lookup?compact={compact}", body).body["results"]
        for visitor, result in zip(VISITORS, results, strict=True):
            assert (result["status"], numbers_of(result)) == (200, first)
            rest = page(served, visitor, cursor=result["next_cursor"], **{**bounds, "limit": 1000})
            assert numbers_of(rest.body) == NUMBERS[first[-1] + 1 :]


def test_a_key_of_which_everything_has_expired_is_absent_with_the_reason(tmp_path: Path, redis: RedisServer) -> None:
    made = HandmadeSessions(tmp_path / "checkpoint", watermark_ms=60_000).create().add(1)
    bounds = tmp_path / "bounds.toml"
    bounds.write_text("[op0]\ninclude_expired = false\n")
    with cluster(made.path, tmp_path, redis.url, nodes=1, routers=0) as known:
        known.start_router(**PATIENT)
        router = known.start_router(store_bounds=bounds, **PATIENT)
        known.wait_to_rest(copies=1, version=1)
        for served in (known.nodes["n1"], known.router, router):
            reply = page(served, include_expired="false")
            assert (reply.status, reply.body["found"], reply.body["expired"]) == (404, False, True)
            body = json.dumps({"keys": [[VISITORS[0]]], "bounds": {"include_expired": False}}).encode()
            for query in ("", "?compact=true"):
                found: Any = served.post(f"{STORE}/lookup{query}", body).body["results"]
                assert (found[0]["status"], found[0]["found"], found[0]["expired"]) == (404, False, True)
        judge_reply(router.get("/openapi.json").body, "GET /v1/stores/{store}/keys/{key}", reply)
        assert page(router).status == 404, "the default of the store"
        assert page(router, include_expired="true").status == 200
        assert page(router, include_expired="none").status == 200
        described: Any = router.get(STORE).body["bounds"]
        assert described == {"include_expired": False}


def test_through_a_router_pages_batches_and_refusals_are_those_of_the_node(
    checkpoint: HandmadeSessions, tmp_path: Path, redis: RedisServer
) -> None:
    with cluster(checkpoint.path, tmp_path, redis.url, nodes=2, routers=0) as known:
        known.start_router(**PATIENT)
        known.wait_to_rest(copies=2, version=1)
        router, some = known.router, next(iter(known.nodes.values()))
        for limit in (1, 2, 1000):
            found = pages(router, limit=limit)
            assert [number for each in found for number in numbers_of(each)] == NUMBERS
        _assert_batches(router, "true")
        _assert_all_refused(router, some)
        first = page(router, limit=2).body
        explained = router.explain([VISITORS[0]], bounds=f"limit=2&cursor={first['next_cursor']}&include_expired=false")
        assert explained["bounds"] == {"limit": 2, "include_expired": False}
        checkpoint.add(2)
        known.wait_to_rest(copies=2, version=2)
        rest = page(router, cursor=first["next_cursor"])
        assert (rest.status, rest.body.get("version")) == (200, 1), "another node is asked when one has not pinned it"
        assert numbers_of(rest.body) == NUMBERS[2:]
        (checkpoint.path / "commits" / "0").unlink()
        for each in known.nodes.values():
            drop_pins(each)
        gone = page(router, cursor=first["next_cursor"])
        assert (gone.status, gone.problem) == (410, "version-gone"), gone
        candidates: Any = gone.body["candidates"]
        assert [each["reason"] for each in candidates] == ["version-gone", "version-gone"]
