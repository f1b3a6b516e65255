"""Who may not monitor a service is told nothing of its inside: no paths, no other stores, no reasons."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from understudy_shared.auth.permissions import hidden_store, shown_batch, shown_problem
from understudy_shared.auth.principals import ANONYMOUS, ANYBODY, Action, Grant, Principal
from understudy_shared.http.problems import Problem, ProblemType

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
