"""Whom to ask next, and what to say when nobody answered (pure: no I/O, no clock).

One walk is about the keys of one partition. Each candidate is asked at most once per walk; a walk ends with an answer,
with the reader's own mistake, or with every candidate and its reason. Several candidates may be on their way at a time:
who is slow or silent stays in the race, and its answer counts whenever it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import orjson

from understudy_router.routing.candidates import Candidate
from understudy_router.routing.choose import Choice, Exclusion
from understudy_router.routing.explain import described
from understudy_router.transport.hop_replies import OVERLOADED
from understudy_router.transport.node_requests import Delay, HopFailure
from understudy_router.transport.wire import WireError
from understudy_shared.bounds import Bound, Refusal
from understudy_shared.http.problems import Problem, ProblemType, refused

MAX_DETAIL_CHARS = 300


class Step(Enum):
    """What to do when a candidate did not answer, or not yet; and what that costs."""

    FREE = "ask the next candidate"
    RESCUE = "ask the next candidate, for free once per read"
    RETRY = "ask the next candidate, if the budget allows it"
    HEDGE = "ask the next candidate inside the bound too, if the budget allows it"
    STOP = "return it: everybody would say the same"


class Rejection(NamedTuple):
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
_CATALOGUE_OUTDATED = frozenset({ProblemType.OUTDATED_CATALOGUE.slug})
_OUTDATED = _CATALOGUE_OUTDATED | {
    ProblemType.NOT_OWNER.slug,
    ProblemType.UNKNOWN_STORE.slug,
    ProblemType.LINEAGE_CHANGED.slug,
    Refusal.NOT_ACTIVE,
}
_TIME_RAN_OUT = frozenset({WireError.TIMEOUT, ProblemType.DEADLINE.slug})
_PAID = _TIME_RAN_OUT | {OVERLOADED}


def next_step(reason: str) -> Step:
    """The one place that says what a failure, or a delay, costs.

    What is definite is free: each candidate says it at most once, and cheaply. What may be a sign of overload is paid
    for, because asking again would add to it. A silent node did nothing for the read: that is free, once.
    """
    if reason in _READERS_MISTAKES:
        return Step.STOP
    if reason == Delay.SLOW:
        return Step.HEDGE
    if reason == Delay.SILENT:
        return Step.RESCUE
    return Step.RETRY if reason in _PAID else Step.FREE


def is_outdated(reason: str) -> bool:
    """Whether a node's refusal shows that the assignment or the catalogue here may be old."""
    return reason in _OUTDATED


def is_catalogue_outdated(reason: str) -> bool:
    """Whether it shows that what this router encodes and places keys by is not what the nodes serve."""
    return reason in _CATALOGUE_OUTDATED


def rejection_by_failure(failure: HopFailure) -> Rejection:
    """What a hop without outcomes tells."""
    return Rejection(failure.reason, failure.detail)


def rejection_by_problem(body: bytes) -> Rejection:
    """What a node's problem tells; the bound that it could not keep is its reason, when that is what it is about."""
    try:
        problem = orjson.loads(body)
        slug, detail = str(problem["type"]), str(problem["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Rejection(WireError.BAD_REPLY, f"a problem that is none: {body[:80]!r}")
    rejection = Rejection(slug, detail, problem)
    if slug == ProblemType.NO_ACCEPTABLE_REPLICA.slug:
        reason = str(rejection.replica.get("reason") or detail.rpartition(": ")[2])
        if reason in set(Refusal):
            return rejection._replace(reason=reason)
    return rejection


def readers_mistake(rejection: Rejection) -> Problem:
    """The problem of a request that no replica could answer."""
    kind = next(kind for kind in ProblemType if kind.slug == rejection.reason)
    problem = rejection.problem or {}
    return Problem(kind, rejection.detail, str(problem.get("where", "")), str(problem.get("fix", "")))


@dataclass(slots=True)
class _Pending:
    """A candidate that was asked and has not answered; `delay` is the last that was heard of that."""

    candidate: Candidate
    delay: Delay | None = None


class ReplicaPlan:
    """The candidates of one partition, in order; who was asked, and what each said.

    `errand` names what was sent to a candidate: with several errands it is asked for a part of the keys in each.
    """

    def __init__(self, choice: Choice) -> None:
        self._candidates = choice.asked
        self._in_bound = len(choice.order)
        self._exclusions: Sequence[Exclusion] = choice.exclusions
        self.asked: list[tuple[Candidate, Rejection]] = []
        self._pending: dict[Hashable, _Pending] = {}
        self._next = 0
        self._is_rescued = False
        self._not_paid: str | None = None

    def again(self, choice: Choice) -> ReplicaPlan:
        """A new walk of the same reader, by what is known now; who is on the way still is."""
        plan = ReplicaPlan(choice)
        plan._pending = self._pending
        plan._is_rescued = self._is_rescued
        return plan

    def reorder(self, choice: Choice) -> None:
        """Go on by what is known now: others may have turned out to be silent, too."""
        self._candidates, self._in_bound = choice.asked, len(choice.order)
        self._exclusions = choice.exclusions
        self._next = 0

    def next(self) -> Candidate | None:
        """Whom to ask besides those on their way; None when everybody was asked.

        While somebody who is merely slow may still answer, this is a hedge: only inside the bound, because others would
        probably refuse.
        """
        waits = any(pending.delay is not Delay.SILENT for pending in self._pending.values())
        limit = self._in_bound if waits else len(self._candidates)
        while self._next < limit:
            candidate = self._candidates[self._next]
            if not self._was_asked(candidate):
                return candidate
            self._next += 1
        return None

    def after(self, reason: str, may: Callable[[Step], bool]) -> Candidate | None:
        """Whom to ask after a failure or a delay; None: nobody, or nobody that `may` be asked at that cost."""
        if self.is_hopeful:
            return None
        candidate = self.next()
        step = next_step(reason)
        if candidate is None or step is Step.STOP:
            return None
        if step is Step.RESCUE:
            step = Step.RETRY if self._is_rescued else Step.RESCUE
            self._is_rescued = True
        allowed = may(step)
        self._not_paid = None if allowed else reason
        return candidate if allowed else None

    def begin(self, read: Hashable, candidate: Candidate) -> None:
        """`candidate` is asked now."""
        self._pending[read] = _Pending(candidate)

    def waits(self, read: Hashable, delay: Delay) -> None:
        """It has not answered yet."""
        self._pending[read].delay = delay

    def ended(self, read: Hashable, rejection: Rejection | None = None) -> None:
        """It answered, or did not: then `told` is why."""
        candidate = self._pending.pop(read).candidate
        if rejection is not None and all(asked.node_id != candidate.node_id for asked, _ in self.asked):
            self.asked.append((candidate, rejection))

    @property
    def is_over(self) -> bool:
        """Whether nobody is on the way."""
        return not self._pending

    @property
    def is_hopeful(self) -> bool:
        """Whether somebody is on the way of whom no delay was heard."""
        return any(pending.delay is None for pending in self._pending.values())

    @property
    def rest(self) -> list[Candidate]:
        """Who was not asked yet."""
        return [candidate for candidate in self._candidates if not self._was_asked(candidate)]

    @property
    def may_pass(self) -> bool:
        """Whether asking again later can help: versions only go up."""
        below = str(Refusal.BELOW_MIN_POSITION)
        return any(rejection.reason == below for _, rejection in self.asked) or any(
            excluded.reason == below for excluded in self._exclusions
        )

    def refused(self, bound: Bound, *, late: bool, after_ms: float) -> Problem:
        """Why nobody answered. `late`: the deadline passed before everybody was asked."""
        reasons = [rejection.reason for _, rejection in self.asked]
        candidates = [_asked(candidate, rejection) for candidate, rejection in self.asked]
        candidates += [{**described(candidate), "reason": "not-asked"} for candidate in self.rest]
        candidates += [{**described(each.candidate), "reason": str(each.reason)} for each in self._exclusions]
        every = [*reasons, *(str(excluded.reason) for excluded in self._exclusions)]
        if bound.min_position is not None and str(Refusal.LINEAGE_CHANGED) in every:
            return refused(Refusal.LINEAGE_CHANGED, candidates=candidates)
        if late or (reasons and all(reason in _TIME_RAN_OUT for reason in reasons)):
            said = "; ".join(f"{candidate.node_id}: {rejection.reason}" for candidate, rejection in self.asked)
            return Problem(
                ProblemType.DEADLINE,
                f"no node answered within {after_ms:.0f} ms" + (f" ({said})" if said else ""),
                fix="Retry; GET /admin/v1/lag shows how the nodes are",
                extra={"candidates": candidates},
            )
        if self._not_paid == OVERLOADED or (reasons and all(reason == OVERLOADED for reason in reasons)):
            return Problem(
                ProblemType.OVERLOADED,
                "the nodes that may answer are overloaded",
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

    def _was_asked(self, candidate: Candidate) -> bool:
        node_id = candidate.node_id
        return any(asked.node_id == node_id for asked, _ in self.asked) or any(
            pending.candidate.node_id == node_id for pending in self._pending.values()
        )


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


def _asked(candidate: Candidate, rejection: Rejection) -> dict[str, object]:
    """A candidate that was asked: what it says of itself counts more than what was heard of it."""
    return {
        **described(candidate),
        **rejection.replica,
        "report_age_ms": 0 if rejection.replica else candidate.report_age_ms,
        "reason": rejection.reason,
        "detail": rejection.detail[:MAX_DETAIL_CHARS],
    }
