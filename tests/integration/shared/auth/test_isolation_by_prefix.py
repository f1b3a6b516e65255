"""A role of some keys learns nothing of the others: its answers are the same, whether they exist or not (Q62)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade_orders import CODEC, HandmadeOrders
from tests.support.cluster.in_process import APPLICATION, cluster_node, cluster_router
from tests.support.cluster.served_node import Reply, Served
from tests.support.oracle.scanned import scan_target
from tests.support.services.guarded import Keys
from tests.support.spark.queries import wait_until

from understudy_shared.questions.scan import service as scans
from understudy_shared.questions.scan.question import ScanCursor, ScanQuestion, decode_scan_cursor

VERSION, TENANT = 3, "b"
GRANTS = '{stores = ["op0"], actions = ["scan", "point"], key_prefix = ["b"]}'
SERVICES = ("node", "router")


@contextmanager
def guarded(folder: Path, keys: Keys, of_a: int) -> Iterator[dict[str, Served]]:
    """A node and a router whose store has so many keys of another tenant."""
    secret = folder / "secret"
    secret.write_text("c" * 40)
    common: dict[str, Any] = {"credentials_file": keys.path, "cluster_secret_file": secret}
    orders = HandmadeOrders(folder / "orders", of_a=of_a).create().add(*range(1, VERSION + 1))
    with (
        redis_server() as server,
        cluster_router(server.url, **common) as router,
        cluster_node(orders.path, folder / "n1", server.url, node_id="n1", **common) as node,
    ):
        served: dict[str, Served] = {"node": node, "router": router}
        for each in served.values():
            each.key = keys["tenant"]

            def answers(each: Served = each) -> bool:
                return each.get(scan_target("op0", "count", prefix=[TENANT])).status == 200

            wait_until(answers, what="an answer", limit_s=60)
        yield served


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Served], ...]]:
    """Two that differ in the keys of others alone."""
    keys = Keys(tmp_path_factory.mktemp("keys") / "credentials.toml")
    keys.role("tenant", GRANTS)
    keys.add("tenant", "tenant")
    with ExitStack() as stack:
        yield tuple(stack.enter_context(guarded(tmp_path_factory.mktemp("w"), keys, of_a)) for of_a in (0, 120))


def cursor(position: Served, after: bytes | None, *, partition: int = 0, **question: Any) -> str:
    """A cursor that its sender has made: the digest of the question and its own name are all that it needs."""
    page = position.get(scan_target("op0", prefix=[TENANT], limit=1)).body
    issued = decode_scan_cursor(page["next_cursor"])
    digest = ScanQuestion(prefix=(TENANT,), **question).digest("tenant ")
    made = ScanCursor(APPLICATION, issued.lineage, "op0", VERSION, issued.committed_at_us, partition, after, digest)
    return made.encode()


OTHERS = [["a", 0], ["a", 7], ["a", 10**6], ["c", 0]]
"""Keys of others; some exist in one of the two worlds."""

ABOUT_OTHERS: list[tuple[str, dict[str, Any]]] = [
    (call, members)
    for call in ("scan", "count")
    for members in (
        {},
        {"prefix": ["a"]},
        {"prefix": ["a", 7]},
        {"prefix": [None]},
        {"where": [["tenant", "=", TENANT]]},
        {"partition": 0},
        {"partition": 1, "where": [["tenant", "=", "a"]]},
        {"version": "1"},
        {"at": "2000-01-01T00:00:00Z"},
        {"explain": True},
    )
]

OWN: list[tuple[str, dict[str, Any]]] = [
    ("scan", {"prefix": [TENANT]}),
    ("scan", {"prefix": [TENANT], "explain": True, "limit": 3}),
    ("scan", {"prefix": [TENANT], "partition": 1, "limit": 1}),
    ("scan", {"prefix": [TENANT], "where": [["count", ">", 4]], "explain": True}),
    ("scan", {"prefix": [TENANT], "where": [["n", "=", 10**6]]}),
    ("scan", {"prefix": [TENANT, 7], "explain": True}),
    ("scan", {"prefix": [TENANT, 99], "explain": True}),
    ("scan", {"prefix": [TENANT], "version": "1"}),
    ("count", {"prefix": [TENANT], "explain": True}),
    ("count", {"prefix": [TENANT], "where": [["count", "<", 0]], "explain": True}),
    ("count", {"estimate": True}),
    ("count", {"estimate": True, "partition": 0}),
    ("count", {"estimate": True, "prefix": [TENANT]}),
]


def told(reply: Reply) -> tuple[int, Any]:
    """Status and content, without the times of commits, which differ between two checkpoints."""
    return reply.status, without_times(reply.body)


def without_times(body: Any) -> Any:
    match body:
        case dict():
            found = {name: without_times(each) for name, each in body.items() if name not in TIMES}
            if isinstance(body.get("next_cursor"), str):
                token = decode_scan_cursor(body["next_cursor"])
                found["next_cursor"] = (token.partition, token.after, token.counted)
            return found
        case list():
            return [without_times(each) for each in body]
        case _:
            return body


TIMES = ("committed_at", "position", "snapshot", "lag", "served_by", "time_lag_ms")


@pytest.mark.parametrize("service", SERVICES)
def test_scans_and_counts_of_other_keys_are_refused_and_tell_nothing(
    worlds: tuple[dict[str, Served], ...], service: str
) -> None:
    for call, members in ABOUT_OTHERS:
        replies = [world[service].get(scan_target("op0", call, **members)) for world in worlds]
        assert [each.problem for each in replies] == ["forbidden"] * 2, (call, members)
        assert told(replies[0]) == told(replies[1]), (call, members)


@pytest.mark.parametrize("service", SERVICES)
def test_answers_about_own_keys_do_not_depend_on_the_keys_of_others(
    worlds: tuple[dict[str, Served], ...], service: str
) -> None:
    for call, members in OWN:
        of_none, of_many = (world[service].get(scan_target("op0", call, **members)) for world in worlds)
        assert told(of_none) == told(of_many), (call, members)
    for target in ("/v1/stores", "/v1/stores?estimate=true", "/v1/stores/op0"):
        assert told(worlds[0][service].get(target)) == told(worlds[1][service].get(target))
    listed: Any = worlds[1][service].get("/v1/stores?estimate=true").body
    assert [store["estimated_keys"] for store in listed["stores"]] == [None]


@pytest.mark.parametrize("service", SERVICES)
def test_a_cursor_that_was_made_up_leads_to_own_keys_only(worlds: tuple[dict[str, Served], ...], service: str) -> None:
    places = [None, b"", b"\xff" * 8, CODEC.encode(("a", 50)), CODEC.encode(("b", 3)), CODEC.encode(("a", 119))[:9]]
    for partition in (0, 1):
        for after in places:
            answers = []
            for world in worlds:
                token = cursor(world[service], after, partition=partition)
                reply = world[service].get(scan_target("op0", prefix=[TENANT], cursor=token, limit=4, explain=True))
                assert reply.status == 200, reply
                page: Any = reply.body
                assert {row["key"]["tenant"] for row in page["rows"]} <= {TENANT}
                answers.append(told(reply))
            assert answers[0] == answers[1], (partition, after)


@pytest.mark.parametrize("service", SERVICES)
def test_keys_of_others_are_refused_by_every_call_whether_they_exist_or_not(
    worlds: tuple[dict[str, Served], ...], service: str, caplog: pytest.LogCaptureFixture
) -> None:
    for world in worlds:
        caplog.clear()
        served = world[service]
        for key in OTHERS:
            exact = quote(json.dumps(key), safe="")
            for call in ("lookup", "history", *(("metadata",) if service == "router" else ())):
                for more in ("", "&version=1", "&at=2000-01-01T00:00:00Z"):
                    if call == "lookup" or not more:
                        reply = served.get(f"/v1/stores/op0/{call}?key={exact}{more}")
                        assert reply.problem == "forbidden", (call, key, more)
            assert served.get(f"/v1/stores/op0/history/{key[0]}/{key[1]}?from=1&to=2").problem == "forbidden"
        results = served.look_up_all([*OTHERS, [TENANT, 1]])
        assert [each["status"] for each in results] == [403] * 4 + [200]
        body = {"reads": [{"store": "op0", "keys": [*OTHERS, [TENANT, 1]]}], "version": 1}
        answer: Any = served.post("/v1/read", json.dumps(body).encode()).body
        (read,) = answer["reads"]
        assert [each["status"] for each in read["results"]] == [403] * 4 + [200]
        logged = {vars(record)["route"] for record in caplog.records if "route" in vars(record)}
        assert logged >= {"/v1/read", "/v1/stores/{store}/lookup", "/v1/stores/{store}/history"}, "who was refused"


@pytest.mark.parametrize("service", SERVICES)
def test_a_page_with_own_keys_ends_at_the_last_of_them_when_its_time_is_over(
    worlds: tuple[dict[str, Served], ...], service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with a problem: only a page that has found nothing has no place to end at that tells of no other key."""
    monkeypatch.setattr(scans, "CONFINED_MS", -1)
    served = worlds[0][service]
    seen: list[int] = []
    members: dict[str, Any] = {"prefix": [TENANT]}
    while True:
        page = served.get(scan_target("op0", **members))
        assert page.status == 200, page
        seen += [row["key"]["n"] for row in page.body["rows"]]  # type: ignore[attr-defined]
        if page.body["next_cursor"] is None:
            break
        members["cursor"] = page.body["next_cursor"]
    assert sorted(seen) == list(range(10))
