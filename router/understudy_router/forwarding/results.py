"""The results of a read's keys, as columns in the order of the keys: no object is made per key of a batch (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from understudy_shared.http.problems import Problem
from understudy_shared.questions.lookup.hop_columns import OPEN, PROBLEM, HopOutcome, HopOutcomes

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
