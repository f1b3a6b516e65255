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
from understudy_shared.http.problems import problem_of, refused
from understudy_shared.reads.bounds import BadBoundError, Refusal
from understudy_shared.reads.tokens import BadPositionError, LineageChangedError


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
