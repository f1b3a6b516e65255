"""Whom to ask next, and what to say when nobody answered (pure: no I/O, no clock).

One walk is about the keys of one partition. Each candidate is asked at most once per walk; a walk ends with an answer,
with the reader's own mistake, or with every candidate and its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import orjson

from understudy_router.asks import HopFailure
from understudy_router.candidates import Candidate
from understudy_router.choose import Choice, Exclusion
from understudy_router.explain import described
from understudy_router.lane import OVERLOADED
from understudy_router.wire import WireError
from understudy_shared.bounds import Bound, Refusal
from understudy_shared.problems import Problem, ProblemType, refused

MAX_DETAIL_CHARS = 300


class Step(Enum):
    """What to do after a candidate did not answer."""

    NEXT = "ask the next candidate"
    STOP = "return it: everybody would say the same"


class Told(NamedTuple):
    """Why a candidate did not answer. `problem` is its own, None when it said nothing that could be understood."""

    reason: str
    detail: str
    problem: dict[str, Any] | None = None

    @property
    def replica(self) -> dict[str, Any]:
        """What the node said of its own replica."""
        replicas = (self.problem or {}).get("candidates")
        return replicas[0] if isinstance(replicas, list) and replicas and isinstance(replicas[0], dict) else {}


_READERS_MISTAKES = frozenset(
    {ProblemType.BAD_KEY.slug, ProblemType.BAD_BOUND.slug, ProblemType.BAD_REQUEST.slug, ProblemType.TOO_LARGE.slug}
)
_OUTDATED = frozenset(
    {ProblemType.NOT_OWNER.slug, ProblemType.UNKNOWN_STORE.slug, ProblemType.LINEAGE_CHANGED.slug, Refusal.NOT_ACTIVE}
)
_TIME_RAN_OUT = frozenset({WireError.TIMEOUT, ProblemType.DEADLINE.slug})


def next_step(reason: str) -> Step:
    """The one place that says what a failure costs. Today every other candidate is asked at once and for free."""
    return Step.STOP if reason in _READERS_MISTAKES else Step.NEXT


def is_outdated(reason: str) -> bool:
    """Whether a node's refusal shows that the assignment or the catalogue here may be old."""
    return reason in _OUTDATED


def told_by_failure(failure: HopFailure) -> Told:
    """What a hop without outcomes tells."""
    return Told(failure.reason, failure.detail)


def told_by_problem(body: bytes) -> Told:
    """What a node's problem tells; the bound that it could not keep is its reason, when that is what it is about."""
    try:
        problem = orjson.loads(body)
        slug, detail = str(problem["type"]), str(problem["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Told(WireError.BAD_REPLY, f"a problem that is none: {body[:80]!r}")
    told = Told(slug, detail, problem)
    if slug == ProblemType.NO_ACCEPTABLE_REPLICA.slug:
        reason = str(told.replica.get("reason") or detail.rpartition(": ")[2])
        if reason in set(Refusal):
            return told._replace(reason=reason)
    return told


def readers_mistake(told: Told) -> Problem:
    """The problem of a request that no replica could answer."""
    kind = next(kind for kind in ProblemType if kind.slug == told.reason)
    problem = told.problem or {}
    return Problem(kind, told.detail, str(problem.get("where", "")), str(problem.get("fix", "")))


class Walk:
    """The candidates of one partition, in order; who was asked, and what each said."""

    def __init__(self, choice: Choice) -> None:
        self._candidates = choice.asked
        self._exclusions: Sequence[Exclusion] = choice.exclusions
        self.asked: list[tuple[Candidate, Told]] = []
        self._next = 0

    def next(self) -> Candidate | None:
        """Whom to ask now; None when everybody was asked."""
        while self._next < len(self._candidates):
            candidate = self._candidates[self._next]
            self._next += 1
            if all(asked.node_id != candidate.node_id for asked, _ in self.asked):
                return candidate
        return None

    def failed(self, candidate: Candidate, told: Told) -> None:
        """`candidate` did not answer."""
        self.asked.append((candidate, told))

    @property
    def may_pass(self) -> bool:
        """Whether asking again later can help: versions only go up."""
        below = str(Refusal.BELOW_MIN_POSITION)
        return any(told.reason == below for _, told in self.asked) or any(
            excluded.reason == below for excluded in self._exclusions
        )

    def refused(self, bound: Bound, *, late: bool, after_ms: float) -> Problem:
        """Why nobody answered. `late`: the deadline passed before everybody was asked."""
        reasons = [told.reason for _, told in self.asked]
        candidates = [_asked(candidate, told) for candidate, told in self.asked]
        candidates += [{**described(candidate), "reason": "not-asked"} for candidate in self._candidates[self._next :]]
        candidates += [{**described(each.candidate), "reason": str(each.reason)} for each in self._exclusions]
        every = [*reasons, *(str(excluded.reason) for excluded in self._exclusions)]
        if bound.min_position is not None and str(Refusal.LINEAGE_CHANGED) in every:
            return refused(Refusal.LINEAGE_CHANGED, candidates=candidates)
        if late or (reasons and all(reason in _TIME_RAN_OUT for reason in reasons)):
            said = "; ".join(f"{candidate.node_id}: {told.reason}" for candidate, told in self.asked)
            return Problem(
                ProblemType.DEADLINE,
                f"no node answered within {after_ms:.0f} ms" + (f" ({said})" if said else ""),
                fix="Retry; GET /admin/v1/lag shows how the nodes are",
                extra={"candidates": candidates},
            )
        if reasons and all(reason == OVERLOADED for reason in reasons):
            return Problem(
                ProblemType.OVERLOADED,
                "every node that may answer is overloaded",
                fix="Retry after a second",
                extra={"candidates": candidates},
            )
        if reasons and all(reason == ProblemType.UNKNOWN_STORE.slug for reason in reasons):
            return Problem(
                ProblemType.UNKNOWN_STORE,
                self.asked[0][1].detail,
                where="path",
                fix="GET /v1/stores lists the stores there are",
                extra={"candidates": candidates},
            )
        return _nobody(every, candidates)


def _nobody(reasons: Sequence[str], candidates: list[dict[str, object]]) -> Problem:
    for refusal in Refusal:  # the bound that could not be kept says best what to do
        if refusal is not Refusal.LINEAGE_CHANGED and refusal in reasons:
            return refused(refusal, candidates=candidates)
    said = ", ".join(dict.fromkeys(reasons)) or "nobody has this partition"
    return Problem(
        ProblemType.NO_ACCEPTABLE_REPLICA,
        f"no replica may answer: {said}",
        fix="Retry; GET /admin/v1/lag shows how the nodes are",
        extra={"candidates": candidates},
    )


def _asked(candidate: Candidate, told: Told) -> dict[str, object]:
    """A candidate that was asked: what it says of itself counts more than what was heard of it."""
    return {
        **described(candidate),
        **told.replica,
        "report_age_ms": 0 if told.replica else candidate.report_age_ms,
        "reason": told.reason,
        "detail": told.detail[:MAX_DETAIL_CHARS],
    }
