"""A router in front of nodes made by hand: answers, fallbacks and refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.bus.documents import eventually
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.fake_cluster import LARGE_BUDGET, NO_BUDGET, STORE, UNHURRIED, Cluster, cluster, until
from tests.support.cluster.fake_node import RESET, A, Answer, B, C, Hang, Raw, found, problem, refusal, says, status
from tests.support.cluster.served_node import served_node
from tests.support.spark.queries import wait_until

from understudy_router.forwarding.fallback import Step
from understudy_shared.http.problems import ProblemType
from understudy_shared.questions.lookup.hop import HopKey, HopOutcome, HopReply, encode_reply
from understudy_shared.reads.bounds import Refusal


async def test_a_found_key_is_the_head_of_the_router_and_the_rest_of_the_node() -> None:
    async with cluster(A, B, **UNHURRIED) as known:
        reply = await known.get(f"{STORE}/keys/x")
        assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
        assert reply.json() == {
            "store": "words",
            "key": {"word": "x"},
            "found": True,
            "value": {"by": "a"},
            "version": 7,
        }
        assert known.nodes[1].hops == []


async def test_a_hop_says_what_is_asked_for_and_what_this_router_knows() -> None:
    async with cluster(A, partitions=8) as known:
        await known.get(f"{STORE}/keys/x?max_lag=2")
        (hop,) = known.nodes[0].hops
        (group,) = hop.groups
        assert (hop.application_id, hop.end_version, hop.term, hop.epoch) == ("flights", 7, 1, 1)
        assert 0 < hop.deadline_ms <= known.router.settings.deadline_ms
        assert (group.store, group.lineage, group.partitions, group.bound.max_lag) == ("words", "l1", 8, 2)
        codec = known.router.stores().get("words").codec
        assert group.keys == [HopKey(codec.partition(("x",), 8), codec.encode(("x",)))]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (RESET, "reset"),
        (says(problem(ProblemType.NOT_OWNER)), "not-owner"),
        (says(problem(ProblemType.NOT_INITIALISED)), "not-initialised"),
        (says(problem(ProblemType.INTERNAL)), "internal"),
        (says(refusal(Refusal.LAG_EXCEEDED)), "lag-exceeded"),
        (says(HopOutcome(2, b"no problem")), "bad-reply"),
        (Raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "bad-reply"),
        (status(200, b"not a hop"), "bad-reply"),
        (status(200, encode_reply(HopReply(1, 1, 7, []))), "bad-reply"),
        (status(500, b"oops"), "bad-reply"),
        (Raw(b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"), "bad-reply"),
    ],
)
async def test_what_one_node_cannot_answer_the_next_one_does_for_free(answer: Answer | Raw, reason: str) -> None:
    async with cluster(answer, B, hop_timeout_ms=10_000, deadline_ms=30_000, **NO_BUDGET) as known:
        reply = await known.get(f"{STORE}/keys/x")
        assert (reply.status_code, reply.json()["value"]) == (200, {"by": "b"})
        assert known.router.forwarder.context.fallbacks == {reason: 1}
        assert known.router.forwarder.context.steps == {Step.FREE: 1}
        assert known.nodes[0].keys == [1]


def patience(answer: Answer | Raw | Hang) -> dict[str, Any]:
    """How long a node may take: long enough for a busy machine, and no longer than that for one that never answers."""
    return {
        "hop_timeout_ms": 500 if isinstance(answer, Hang) else 10_000,
        "deadline_ms": 30_000,
        "suspect_after_ms": 30_000,
    }


MAY_BE_OVERLOAD = [
    (says(problem(ProblemType.DEADLINE)), "deadline", 504),
    (status(429, b"{}"), "overloaded", 429),
    (Hang(), "timeout", 504),
]


@pytest.mark.parametrize(("answer", "reason"), [case[:2] for case in MAY_BE_OVERLOAD])
async def test_what_may_be_overload_goes_to_the_next_node_while_the_budget_lasts(
    answer: Answer | Raw | Hang, reason: str
) -> None:
    async with cluster(answer, B, hedge_after_ms=0, **patience(answer), **LARGE_BUDGET) as known:
        reply = await known.get(f"{STORE}/keys/x")
        assert (reply.status_code, reply.json()["value"]) == (200, {"by": "b"})
        assert known.router.forwarder.context.fallbacks == {reason: 1}
        assert known.router.forwarder.context.steps == {Step.RETRY: 1}
        assert known.router.forwarder.context.budget.spent == 1


@pytest.mark.parametrize(("answer", "reason", "code"), MAY_BE_OVERLOAD)
async def test_what_may_be_overload_is_reported_to_the_reader_once_the_budget_is_spent(
    answer: Answer | Raw | Hang, reason: str, code: int
) -> None:
    async with cluster(answer, B, **patience(answer), **NO_BUDGET) as known:
        reply = await known.get(f"{STORE}/keys/x")
        assert (reply.status_code, reply.headers.get("retry-after")) == (code, "1" if code == 429 else None)
        assert [each["reason"] for each in reply.json()["candidates"]] == [reason, "not-asked"]
        assert known.nodes[1].hops == []
        assert (known.router.forwarder.context.not_paid, known.router.forwarder.context.budget.spent) == (1, 0)


async def test_an_active_that_is_killed_before_it_answers_is_replaced_by_its_standby() -> None:
    async with cluster(A, B, hop_timeout_ms=10_000, deadline_ms=30_000, **UNHURRIED) as known:
        active = known.nodes[0]
        assert (await known.get(f"{STORE}/keys/x")).json()["value"] == {"by": "a"}
        active.held = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(known.get(f"{STORE}/keys/{number}")) for number in range(20)]
            await until(lambda: sum(active.keys) == 21, what="the lookups to be at the active")
            await active.kill()
        replies = [reader.result() for reader in readers]
        assert [(reply.status_code, reply.json()["value"]) for reply in replies] == [(200, {"by": "b"})] * 20
        assert set(known.router.forwarder.context.fallbacks) == {"refused"}  # reset, and refused on a fresh connection


async def test_a_connection_that_went_stale_is_replaced_without_asking_anybody_else() -> None:
    async with cluster(A, B, **UNHURRIED) as known:
        active = known.nodes[0]
        await known.get(f"{STORE}/keys/x")
        active.once = RESET  # it closes while the next request is on its way: no byte of a reply comes back
        assert (await known.get(f"{STORE}/keys/x")).json()["value"] == {"by": "a"}
        assert (active.accepted, known.router.clients.counts.retried) == (2, 1)
        assert not known.router.forwarder.context.fallbacks


async def test_a_connection_whose_hop_timed_out_is_not_used_again() -> None:
    async with cluster(Hang(), hop_timeout_ms=50, deadline_ms=200) as known:
        node = known.nodes[0]
        assert (await known.get(f"{STORE}/keys/x")).status_code == 504
        await until(lambda: not node.connections, what="the connection to be closed")
        node.answer = A

        async def is_answered() -> bool:
            return (await known.get(f"{STORE}/keys/x")).status_code == 200

        await eventually(is_answered, what="an answer by another connection")
        assert node.accepted > 1


async def test_one_request_too_many_is_429_and_those_before_are_answered() -> None:
    async with cluster(A, max_in_flight=3, hop_timeout_ms=10_000, deadline_ms=30_000) as known:
        known.nodes[0].held = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(known.get(f"{STORE}/keys/{number}")) for number in range(3)]
            await until(lambda: sum(known.nodes[0].keys) == 3)
            late = await known.get(f"{STORE}/keys/late")
            batch = await known.http.post(f"{STORE}/lookup", json={"keys": [["x"]]})
            known.nodes[0].held.set()
        assert (late.status_code, late.json()["type"], late.headers["retry-after"]) == (429, "overloaded", "1")
        assert batch.status_code == 429
        assert [reader.result().status_code for reader in readers] == [200, 200, 200]
        assert (await known.get(f"{STORE}/keys/x")).status_code == 200


async def test_the_deadline_ends_a_lookup_before_everybody_was_asked() -> None:
    settings = {
        **LARGE_BUDGET,
        "hop_timeout_ms": 500,
        "deadline_ms": 950,
        "suspect_after_ms": 5000,
        "hedge_after_ms": 0,
    }
    async with cluster(Hang(), Hang(), Hang(), **settings) as known:
        reply = await known.get(f"{STORE}/keys/x")
        assert (reply.status_code, reply.json()["type"]) == (504, "deadline")
        reasons = [each["reason"] for each in reply.json()["candidates"]]
        assert reasons == ["timeout", "timeout", "not-asked"]


@pytest.mark.parametrize(
    ("target", "code", "kind"),
    [
        (f"{STORE}/keys/x?max_lga=5", 400, "bad-bound"),
        (f"{STORE}/keys/a/b", 400, "bad-key"),
        ("/v1/stores/nowhere/keys/x", 404, "unknown-store"),
        ("/v1/stores/nowhere/metadata", 404, "unknown-store"),
        ("/nowhere", 404, "unknown-path"),
        (f"{STORE}/keys/{'x' * 20_000}", 413, "too-large"),
    ],
)
async def test_a_request_for_nothing_there_is_asks_no_node(target: str, code: int, kind: str) -> None:
    async with cluster(A) as known:
        reply = await known.get(target)
        assert (reply.status_code, reply.json()["type"]) == (code, kind)
        assert reply.headers["content-type"] == "application/problem+json"
        assert known.nodes[0].hops == []


def hosts(known: Cluster, *numbers: int) -> list[dict[str, object]]:
    return [{"host": "127.0.0.1", "port": known.nodes[number].port} for number in numbers]


async def test_metadata_names_the_hosts_of_a_key_and_explains_the_choice() -> None:
    async with cluster(A, B, C) as known:
        for target in (f"{STORE}/metadata/x?max_lag=5", f"{STORE}/metadata?key=%5B%22x%22%5D&max_lag=5"):
            body = (await known.get(target)).json()
            assert (body["key"], body["bounds"]) == ({"word": "x"}, {"max_lag": 5})
            assert [body["active_host"]] == hosts(known, 0)
            assert body["standby_hosts"] == hosts(known, 1, 2)
            assert body["choice"][0]["node_id"] == "a"
        first = await known.get(f"{STORE}/metadata")
        assert [each["active_host"] for each in first.json()["partitions"]] == hosts(known, 0)
        tag = {"if-none-match": first.headers["etag"]}
        again = await known.http.get(f"{STORE}/metadata", headers=tag)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        assert [node.hops for node in known.nodes] == [[], [], []]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "bounds.toml"
    path.write_text("[words]\nmax_lag = 4\n\n[op0]\nmax_lag = 1\n")
    return path


async def test_a_router_sends_the_stores_bound_along_with_every_kind_of_lookup(file: Path) -> None:
    async with cluster(lambda _group, _key: found("a"), store_bounds=file) as known:
        await known.get(f"{STORE}/keys/x")
        await known.get(f"{STORE}/keys/x?max_lag=2")
        await known.get(f"{STORE}/keys/x?max_lag=none")
        await known.http.post(f"{STORE}/lookup", content=orjson.dumps({"keys": [["x"]]}))
        await known.http.post(f"{STORE}/lookup", content=orjson.dumps({"keys": [["x"]], "bounds": {"max_lag": None}}))
        assert [hop.groups[0].bound.max_lag for hop in known.nodes[0].hops] == [4, 2, None, 4, None]
        described = (await known.get(STORE)).json()
        assert described["bounds"] == {"max_lag": 4}


def test_a_node_that_is_asked_itself_keeps_the_stores_bound(tmp_path: Path, file: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(*range(1, 6))
    with served_node(checkpoint.path, tmp_path / "data", store_bounds=file) as served:
        wait_until(lambda: served.look_up(["word-0"]).status == 200, what="the first answer")
        served.node.hold_at(5)
        checkpoint.add(6, 7, 8)
        wait_until(lambda: served.node.end.version == 8, what="the end")
        assert served.look_up(["word-0"]).problem == "no-acceptable-replica"
        assert served.look_up(["word-0"], bounds="max_lag=3").status == 200
        assert served.look_up(["word-0"], bounds="max_lag=none").status == 200
