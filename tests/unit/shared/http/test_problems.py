"""Every refusal has one HTTP face: a stable type, its status, what was wrong, where, and what to do."""

from __future__ import annotations

import orjson
import pytest

from understudy_shared.base.errors import (
    BadKeyError,
    CheckpointError,
    CorruptFileError,
    NotACheckpointError,
    UnderstudyError,
    UnknownStoreError,
    UnsupportedError,
    VanishedError,
)
from understudy_shared.http.problems import Problem, ProblemType, problem_of, refused
from understudy_shared.reads.bounds import BadBoundError, Refusal
from understudy_shared.reads.position import BadPositionError, LineageChangedError


def test_types_and_statuses_are_the_documented_ones() -> None:
    assert {kind.slug: kind.status for kind in ProblemType} == {
        "bad-key": 400,
        "bad-bound": 400,
        "bad-request": 400,
        "unauthenticated": 401,
        "cross-site": 403,
        "forbidden": 403,
        "unknown-store": 404,
        "unknown-application": 404,
        "unknown-path": 404,
        "method-not-allowed": 405,
        "request-timeout": 408,
        "ambiguous-key": 409,
        "ambiguous-store": 409,
        "listed-application": 409,
        "lineage-changed": 409,
        "version-gone": 410,
        "too-large": 413,
        "target-too-long": 414,
        "not-json": 415,
        "not-owner": 421,
        "outdated-catalogue": 421,
        "overloaded": 429,
        "rate-limited": 429,
        "headers-too-large": 431,
        "internal": 500,
        "store-error": 502,
        "node-unreachable": 502,
        "bad-reply": 502,
        "not-initialised": 503,
        "no-acceptable-replica": 503,
        "too-many-viewers": 503,
        "deadline": 504,
    }


def test_a_problem_is_the_documented_json() -> None:
    problem = Problem(
        ProblemType.NOT_OWNER,
        "the key belongs to partition 3",
        where="partitions held: 0, 1",
        fix="Ask a router",
        extra={"candidates": [{"host": "node-1", "reason": Refusal.LAG_EXCEEDED}]},
    )
    assert problem.status == 421
    assert orjson.loads(problem.body()) == {
        "type": "not-owner",
        "title": "This host does not hold the key's partition",
        "status": 421,
        "detail": "the key belongs to partition 3",
        "where": "partitions held: 0, 1",
        "fix": "Ask a router",
        "candidates": [{"host": "node-1", "reason": "lag-exceeded"}],
    }
    assert problem.body().endswith(b"}\n")


@pytest.mark.parametrize(
    ("kind", "slug"),
    [
        (BadKeyError, "bad-key"),
        (BadBoundError, "bad-bound"),
        (BadPositionError, "bad-bound"),
        (LineageChangedError, "lineage-changed"),
        (UnknownStoreError, "unknown-store"),
        (CheckpointError, "store-error"),
        (NotACheckpointError, "store-error"),
        (UnsupportedError, "store-error"),
        (CorruptFileError, "store-error"),
        (VanishedError, "store-error"),
        (UnderstudyError, "internal"),
    ],
)
def test_each_error_becomes_its_problem_and_keeps_what_where_and_fix(kind: type[UnderstudyError], slug: str) -> None:
    problem = problem_of(kind("it is wrong", where="here", fix="Do this"))
    assert (problem.type.slug, problem.detail, problem.where, problem.fix) == (slug, "it is wrong", "here", "Do this")


@pytest.mark.parametrize("reason", Refusal)
def test_every_refusal_says_its_reason_its_candidates_and_what_to_do(reason: Refusal) -> None:
    candidates: list[dict[str, object]] = [{"host": "node-1", "reason": reason}]
    members = orjson.loads(refused(reason, candidates=candidates).body())
    kind, status, fix = {
        Refusal.LINEAGE_CHANGED: ("lineage-changed", 409, "Drop the position"),
        Refusal.VERSION_GONE: ("version-gone", 410, "Ask for a newer version"),
        Refusal.VERSION_OPENING: ("not-initialised", 503, "Retry after a second"),
    }.get(reason, ("no-acceptable-replica", 503, "Retry, or "))
    assert (members["type"], members["status"]) == (kind, status)
    assert reason.value in members["detail"]
    assert members["candidates"] == [{"host": "node-1", "reason": reason.value}]
    assert members["fix"].startswith(fix)
