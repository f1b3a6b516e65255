"""The choice of the replica to ask next, and the problem to report when no replica answered (pure: no I/O, no clock).

A replica plan covers the keys of one partition. It asks each candidate at most once. It ends with an answer, with the
reader's own mistake, or with every candidate and its reason. Several attempts may be in flight at a time: a slow or
silent candidate stays in the race, and its answer counts whenever it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import orjson

from understudy_router.cluster.candidates import Candidate
from understudy_router.routing.choose import Choice, Exclusion, described
from understudy_router.transport.client_context import OVERLOADED
from understudy_router.transport.node_requests import Delay
from understudy_shared.cluster.node_calls import NodeCallError
from understudy_shared.cluster.wire import HopFailure, WireError
from understudy_shared.http.problems import Problem, ProblemType, refused
from understudy_shared.questions.lookup.hop import OPEN, PROBLEM, HopOutcome, HopOutcomes
from understudy_shared.reads.bounds import Bound, Refusal

Result = HopOutcome | Problem
"""A found or absent outcome, or the problem of a key that has neither."""


class Results:
    """The parts of the outcomes, `kinds`, `bodies` and `tails`, by index of the key. The kind of a key without a result
    is OPEN; the problem of a key of kind PROBLEM is in `problems`.
    """

    __slots__ = ("bodies", "kinds", "problems", "tails")

    def __init__(self, keys: int, problems: Mapping[int, Problem]) -> None:
        """Start without results but for `problems`: those of keys that are not sent to a node, by their index."""
        self.kinds = bytearray((OPEN,)) * keys
        self.bodies: list[bytes] = [b""] * keys
        self.tails: list[bytes] = [b""] * keys
        self.problems = dict(problems)
        for index in problems:
            self.kinds[index] = PROBLEM

    def append(self, others: Results) -> None:
        """Append the results of the keys that follow."""
        first = len(self.kinds)
        self.problems.update({first + index: problem for index, problem in others.problems.items()})
        self.kinds += others.kinds
        self.bodies += others.bodies
        self.tails += others.tails

    @property
    def is_open(self) -> bool:
        """Whether any key has no result yet."""
        return OPEN in self.kinds

    @property
    def is_untouched(self) -> bool:
        """Whether no key has a result yet."""
        return self.kinds.count(OPEN) == len(self.kinds)

    def __getitem__(self, index: int) -> Result:
        kind = self.kinds[index]
        return self.problems[index] if kind == PROBLEM else HopOutcome(kind, self.bodies[index], self.tails[index])

    def keep(self, index: int, outcome: HopOutcome) -> None:
        """Store the outcome of a key, unless it has a result: the first one counts."""
        if self.kinds[index] == OPEN:
            self.kinds[index], self.bodies[index], self.tails[index] = outcome

    def keep_all(self, indexes: Sequence[int], outcomes: HopOutcomes) -> None:
        """Store the outcomes, found and absent, of the keys at these indexes."""
        kinds, bodies, tails = self.kinds, self.bodies, self.tails
        if len(indexes) == len(kinds) and isinstance(indexes, range) and self.is_untouched:
            self.kinds[:], self.bodies[:], self.tails[:] = outcomes.kinds, outcomes.bodies, outcomes.tails
            return
        for index, kind, body, tail in zip(indexes, outcomes.kinds, outcomes.bodies, outcomes.tails, strict=True):
            if kinds[index] == OPEN:
                kinds[index] = kind
                bodies[index] = body
                tails[index] = tail

    def refuse(self, indexes: Sequence[int], problem: Problem) -> None:
        """Store the problem of those of these keys that have no result."""
        for index in indexes:
            if self.kinds[index] == OPEN:
                self.kinds[index] = PROBLEM
                self.problems[index] = problem


MAX_DETAIL_CHARS = 300


class Step(Enum):
    """The step after a failed or delayed attempt, and its cost."""

    FREE = "ask the next candidate"
    RESCUE = "ask the next candidate, for free once per read"
    RETRY = "ask the next candidate, if the budget allows it"
    HEDGE = "ask the next candidate inside the bound too, if the budget allows it"
    WAIT = "ask the same candidate again in a moment: another one would have to do the same work"
    STOP = "return it: every replica would answer the same"


class Rejection(NamedTuple):
    """The reason why a candidate gave no answer, and the problem that it sent, if it sent one that parses."""

    reason: str
    detail: str
    problem: dict[str, Any] | None = None

    @property
    def replica(self) -> dict[str, Any]:
        """The node's own report about its replica."""
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
_MAY_COME = frozenset((Refusal.BELOW_MIN_POSITION, Refusal.VERSION_NOT_YET))
_PAID = _TIME_RAN_OUT | {OVERLOADED}


def next_step(reason: str) -> Step:
    """Decide what a failure or a delay costs; no other place decides it.

    A definite failure is free: each candidate causes at most one, and cheaply. A failure that may mean overload is paid
    from the retry budget, because another request adds to the load. A silent node did no work: the rescue is free,
    once.
    """
    if reason in _READERS_MISTAKES:
        return Step.STOP
    if reason == Delay.SLOW:
        return Step.HEDGE
    if reason == Delay.SILENT:
        return Step.RESCUE
    if reason == Refusal.VERSION_OPENING:
        return Step.WAIT
    return Step.RETRY if reason in _PAID else Step.FREE


def is_outdated(reason: str) -> bool:
    """Whether a node's refusal shows that the assignment or the catalogue here may be old."""
    return reason in _OUTDATED


def is_catalogue_outdated(reason: str) -> bool:
    """Whether a refusal shows another catalogue than that by which this router encodes and places keys."""
    return reason in _CATALOGUE_OUTDATED


def rejection_by(outcome: HopOutcome | HopFailure) -> Rejection:
    """Return the rejection that a failed hop or a node's problem stands for."""
    if isinstance(outcome, HopFailure):
        return Rejection(outcome.reason, outcome.detail)
    return rejection_by_problem(outcome.body)


def rejection_by_error(error: NodeCallError) -> Rejection:
    """Return the rejection that a failed call stands for."""
    return Rejection(error.reason, error.what)


def rejection_by_problem(body: bytes) -> Rejection:
    """Return the rejection that a problem stands for. Its reason is the bound that was not kept, if any."""
    try:
        problem = orjson.loads(body)
        slug, detail = str(problem["type"]), str(problem["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Rejection(WireError.BAD_REPLY, f"unparsable problem+json: {body[:80]!r}")
    rejection = Rejection(slug, detail, problem)
    if slug in {ProblemType.NO_ACCEPTABLE_REPLICA.slug, ProblemType.NOT_INITIALISED.slug}:
        reason = str(rejection.replica.get("reason") or detail.rpartition(": ")[2])
        if reason in set(Refusal):
            return rejection._replace(reason=reason)
    return rejection


def readers_mistake(rejection: Rejection) -> Problem:
    """Return the problem of a request that no replica could answer, because the reader made a mistake."""
    kind = next(kind for kind in ProblemType if kind.slug == rejection.reason)
    problem = rejection.problem or {}
    return Problem(kind, rejection.detail, str(problem.get("where", "")), str(problem.get("fix", "")))


@dataclass(slots=True)
class _AttemptInFlight:
    """An attempt in flight; `delay` is the last delay reported for it."""

    candidate: Candidate
    delay: Delay | None = None


class ReplicaPlan:
    """The candidates of one partition in order, the attempts in flight, and the rejections so far.

    Attempts are opaque keys here. A candidate has several when the keys were split to keep replies small.
    """

    def __init__(self, choice: Choice) -> None:
        self._candidates = choice.asked if choice.doubtful else choice.order
        self._in_bound = len(choice.order)
        self._exclusions: Sequence[Exclusion] = choice.exclusions
        self.asked: list[tuple[Candidate, Rejection]] = []
        self._pending: dict[Hashable, _AttemptInFlight] = {}
        self._next = 0
        self._is_rescued = False
        self._not_paid: str | None = None

    def again(self, choice: Choice) -> ReplicaPlan:
        """Make a plan for the same read from a newer choice; attempts in flight are kept."""
        plan = ReplicaPlan(choice)
        plan._pending = self._pending
        plan._is_rescued = self._is_rescued
        return plan

    def reorder(self, choice: Choice) -> None:
        """Continue with a newer choice: more nodes may have turned out to be silent."""
        self._candidates, self._in_bound = choice.asked, len(choice.order)
        self._exclusions = choice.exclusions
        self._next = 0

    def renew(self, choice: Choice) -> None:
        """Continue with a newer choice when every candidate was tried and it has another one, which took over."""
        if not (self.rest or all(self._was_asked(candidate) for candidate in choice.asked)):
            self.reorder(choice)

    def next(self) -> Candidate | None:
        """Return the next candidate without an attempt; `None` when no candidate is left.

        While a merely slow candidate may still answer, the next attempt is a hedge: it goes only to a candidate inside
        the bound, because the others would probably refuse.
        """
        if not (self.asked or self._pending):  # nearly every first attempt of a read: spare it the search
            return self._candidates[self._next] if self._next < len(self._candidates) else None
        waits = bool(self._pending) and any(pending.delay is not Delay.SILENT for pending in self._pending.values())
        limit = self._in_bound if waits else len(self._candidates)
        while self._next < limit:
            candidate = self._candidates[self._next]
            if not self._was_asked(candidate):
                return candidate
            self._next += 1
        return None

    def after(self, reason: str, may: Callable[[Step], bool]) -> Candidate | None:
        """Return the candidate to ask after a failure or delay; None without one, or where `may` refuses the cost."""
        if self.is_hopeful:
            return None
        candidate = self.next()
        step = next_step(reason)
        if candidate is None or step in {Step.STOP, Step.WAIT}:
            return None
        if step is Step.RESCUE:
            step = Step.RETRY if self._is_rescued else Step.RESCUE
            self._is_rescued = True
        allowed = may(step)
        self._not_paid = None if allowed else reason
        return candidate if allowed else None

    def begin(self, attempt: Hashable, candidate: Candidate) -> None:
        """Note that an attempt at `candidate` begins."""
        self._pending[attempt] = _AttemptInFlight(candidate)

    def waits(self, attempt: Hashable, delay: Delay) -> None:
        """Note that an attempt is delayed."""
        self._pending[attempt].delay = delay

    def ended(self, attempt: Hashable, rejection: Rejection | None = None) -> None:
        """Note that an attempt ended: with an answer, or with a rejection."""
        candidate = self._pending.pop(attempt).candidate
        if rejection is not None and all(asked.node_id != candidate.node_id for asked, _ in self.asked):
            self.asked.append((candidate, rejection))

    @property
    def is_over(self) -> bool:
        """Whether no attempt is in flight."""
        return not self._pending

    @property
    def is_hopeful(self) -> bool:
        """Whether an attempt is in flight for which no delay was reported."""
        return any(pending.delay is None for pending in self._pending.values())

    @property
    def rest(self) -> list[Candidate]:
        """Candidates without an attempt."""
        if not (self.asked or self._pending):
            return list(self._candidates)
        return [candidate for candidate in self._candidates if not self._was_asked(candidate)]

    @property
    def may_pass(self) -> bool:
        """Whether a later attempt can succeed: versions only go up."""
        reasons = [rejection.reason for _, rejection in self.asked]
        return not _MAY_COME.isdisjoint(reasons + [str(excluded.reason) for excluded in self._exclusions])

    @property
    def is_opening(self) -> bool:
        """Whether a candidate opens the version that was asked for."""
        return any(rejection.reason == Refusal.VERSION_OPENING for _, rejection in self.asked)

    @property
    def is_restoring(self) -> bool:
        """Whether every candidate that was asked opens its state, as all do for a moment after a rewind."""
        return bool(self.asked) and all(
            rejection.reason == ProblemType.NOT_INITIALISED.slug for _, rejection in self.asked
        )

    def refused(self, bound: Bound, *, late: bool, after_ms: float) -> Problem:
        """Return the problem to report without an answer. `late`: the deadline passed before all were asked."""
        # One place orders the reasons, the most useful to the reader first: the branches are in order of precedence.
        reasons = [rejection.reason for _, rejection in self.asked]
        candidates = [_asked(candidate, rejection) for candidate, rejection in self.asked]
        candidates += [{**described(candidate), "reason": "not-asked"} for candidate in self.rest]
        candidates += [{**described(each.candidate), "reason": str(each.reason)} for each in self._exclusions]
        every = [*reasons, *(str(excluded.reason) for excluded in self._exclusions)]
        # A position of another lineage is never reached, whatever the other replicas say.
        is_of_a_position = bound.min_position is not None or bound.snapshot is not None
        if is_of_a_position and str(Refusal.LINEAGE_CHANGED) in every:
            return refused(Refusal.LINEAGE_CHANGED, candidates=candidates)
        problem, all_said = partial(Problem, extra={"candidates": candidates}), set(reasons)
        # Those that were not asked in time might have answered: the bound is not to blame.
        if late or (all_said and all_said <= _TIME_RAN_OUT):
            said = "; ".join(f"{candidate.node_id}: {rejection.reason}" for candidate, rejection in self.asked)
            detail = f"no node answered within {after_ms:.0f} ms" + (f" ({said})" if said else "")
            return problem(ProblemType.DEADLINE, detail, fix="Retry; GET /admin/v1/lag shows how the nodes are")
        # Also when the budget refused the retry: others were not asked, to spare them the load.
        if self._not_paid == OVERLOADED or all_said == {OVERLOADED}:
            return problem(
                ProblemType.OVERLOADED, "the nodes that may answer are overloaded", fix="Retry after a second"
            )
        # Only when all agree: one node may not have read the newest schemas yet.
        if all_said == {ProblemType.UNKNOWN_STORE.slug}:
            fix = "GET /v1/stores lists the stores there are"
            return problem(ProblemType.UNKNOWN_STORE, self.asked[0][1].detail, where="path", fix=fix)
        # Only when all agree: how far back a replica can look is its own matter.
        if all_said == {Refusal.VERSION_GONE}:
            return refused(Refusal.VERSION_GONE, candidates=candidates)
        return _nobody(every, candidates)

    def _was_asked(self, candidate: Candidate) -> bool:
        node_id = candidate.node_id
        return any(asked.node_id == node_id for asked, _ in self.asked) or any(
            pending.candidate.node_id == node_id for pending in self._pending.values()
        )


_NEED_MORE = (Refusal.LINEAGE_CHANGED, Refusal.VERSION_GONE)
"""Refusals that concern the history or the versions of one replica alone: they do not hold for the other replicas."""


def _nobody(reasons: Sequence[str], candidates: list[dict[str, object]]) -> Problem:
    for refusal in Refusal:  # the bound that was not kept is the most useful reason
        if refusal not in _NEED_MORE and refusal in reasons:
            return refused(refusal, candidates=candidates)
    said = ", ".join(dict.fromkeys(reasons)) or "no node has this partition"
    return Problem(
        ProblemType.NO_ACCEPTABLE_REPLICA,
        f"no replica may answer: {said}",
        fix="Retry; GET /admin/v1/lag shows how the nodes are",
        extra={"candidates": candidates},
    )


def _asked(candidate: Candidate, rejection: Rejection) -> dict[str, object]:
    """Describe a candidate that was asked: the node's reply replaces the values of its last heartbeat."""
    return {
        **described(candidate),
        **rejection.replica,
        "report_age_ms": 0 if rejection.replica else candidate.report_age_ms,
        "reason": rejection.reason,
        "detail": rejection.detail[:MAX_DETAIL_CHARS],
    }
