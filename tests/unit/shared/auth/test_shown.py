"""Who may not monitor a service is told nothing of its inside: no paths, no other stores, no reasons."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from understudy_shared.auth.needs import hidden_store
from understudy_shared.auth.principals import ANONYMOUS, ANYBODY, Action, Grant, KeyScope, Principal
from understudy_shared.auth.shown import (
    require_printed_key,
    shown_batch,
    shown_problem,
    shown_status,
    shown_stores,
)
from understudy_shared.http.problems import Problem, ProblemError, ProblemType

READER = Principal("r", [Grant(frozenset({Action.POINT}), frozenset({"seen"}))])
READER_OF_ALL = Principal("r", [Grant(frozenset({Action.POINT}), frozenset({"*"}))])
MONITOR = Principal("m", [Grant(frozenset({Action.MONITOR}), frozenset({"*"}))])
ABSENT = Problem(ProblemType.UNKNOWN_STORE, "there is no store 'x'", "path", "Stores here: hidden, seen.")
INSIDE = [
    Problem(ProblemType.STORE_ERROR, "cannot read /data/state/1.sst", "/data/state/1.sst", "look at /data"),
    Problem(ProblemType.NOT_INITIALISED, "/data/commits cannot be read", fix="Retry"),
    Problem(ProblemType.INTERNAL, "KeyError: '/data'", fix="Report it"),
]


def test_a_store_that_is_not_there_reads_like_one_that_is_hidden() -> None:
    assert shown_problem(READER, ABSENT).as_dict() == hidden_store("x").as_dict()
    assert shown_problem(ANONYMOUS, ABSENT).as_dict() == hidden_store("x").as_dict()


@pytest.mark.parametrize("principal", [READER_OF_ALL, MONITOR, ANYBODY], ids=repr)
def test_who_sees_every_store_is_told_their_names(principal: Principal) -> None:
    assert shown_problem(principal, ABSENT) is ABSENT


@pytest.mark.parametrize("problem", INSIDE, ids=lambda problem: problem.type.slug)
def test_a_problem_of_the_inside_names_no_file_to_readers_and_everything_to_operators(problem: Problem) -> None:
    for reader in (READER, READER_OF_ALL, ANONYMOUS):
        shown = shown_problem(reader, problem)
        assert shown.type is problem.type
        assert "/data" not in str(shown.as_dict())
        assert shown.fix
    assert shown_problem(MONITOR, problem) is problem
    assert shown_problem(ANYBODY, problem) is problem


@pytest.mark.parametrize("problem", INSIDE, ids=lambda problem: problem.type.slug)
def test_the_same_holds_for_the_items_of_a_batch(problem: Problem) -> None:
    found = {"status": 200, "key": {"k": problem.type.slug}, "found": True, "value": {"n": 2**63 - 1, "d": 0.1}}
    body = orjson.dumps({"results": [problem.as_dict(), found]}) + b"\n"
    shown: Any = orjson.loads(shown_batch(READER, body))
    assert "/data" not in str(shown)
    assert shown["results"][0]["type"] == problem.type.slug
    assert shown["results"][1] == found
    assert shown_batch(MONITOR, body) is body


def test_what_a_node_said_when_it_was_asked_is_for_operators() -> None:
    candidates: list[dict[str, object]] = [
        {"node_id": "n1", "reason": "store-error", "detail": "cannot read /data/1.sst"}
    ]
    problem = Problem(ProblemType.NO_ACCEPTABLE_REPLICA, "no replica may answer", extra={"candidates": candidates})
    for shown in (
        shown_problem(READER, problem).as_dict(),
        orjson.loads(shown_batch(READER, orjson.dumps({"results": [problem.as_dict()]})))["results"][0],
    ):
        assert shown["candidates"] == [{"node_id": "n1", "reason": "store-error"}]
        assert shown["type"] == "no-acceptable-replica"
    assert shown_problem(MONITOR, problem).as_dict()["candidates"] == candidates


def test_a_batch_without_such_items_stays_as_it_is() -> None:
    body = b'{"results":[{"status":404,"key":{},"found":false}]}\n'
    assert shown_batch(READER, body) is body


def test_a_probe_says_whether_to_everybody_and_why_to_operators() -> None:
    ready = {"ready": False, "reasons": ["/data is gone", "0_1 is CREATED"], "degraded": "the bus is away: secret"}
    for reader in (READER, ANONYMOUS):
        shown = shown_status(reader, ready)
        assert shown["ready"] is False
        assert len(shown["reasons"]) == 1
        assert shown["degraded"]
        assert "data" not in str(shown)
        assert "secret" not in str(shown)
    assert shown_status(MONITOR, ready) == ready
    well = {"ready": True, "reasons": [], "degraded": None}
    assert shown_status(ANONYMOUS, well) == well


def test_only_stores_that_are_seen_are_listed() -> None:
    stores: list[dict[str, object]] = [{"store": "seen"}, {"store": "hidden"}]
    left_out = [{"operator_id": 3, "reason": "unsupported"}]
    assert shown_stores(READER, stores, left_out) == {"stores": [{"store": "seen"}], "not_served": []}
    assert shown_stores(READER_OF_ALL, stores, left_out) == {"stores": stores, "not_served": left_out}


def test_a_key_outside_of_the_scope_is_forbidden_and_not_looked_for() -> None:
    scope = KeyScope(((b'"t"',),))
    require_printed_key(scope, b'{"tenant":"t","id":1}')
    require_printed_key(KeyScope(), b"not even JSON")
    with pytest.raises(ProblemError) as caught:
        require_printed_key(scope, b'{"tenant":"u","id":1}')
    assert caught.value.problem.type is ProblemType.FORBIDDEN
