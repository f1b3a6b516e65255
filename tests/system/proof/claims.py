"""What a claim is: a pure function of a run, which counts what it examined and names what breaks it.

A claim that examined nothing of what it is about fails, too: nothing was shown. So does one that examined nothing of it
in the answers of some kind of state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.system.proof.base_counts import BaseCounts
from tests.system.proof.commit_times import CommitTimes
from tests.system.proof.fault_windows import FaultWindows
from tests.system.proof.history import History, Read
from tests.system.proof.kinds_keys import SCATTERED
from tests.system.proof.truth_of_state import Truth

MAX_VIOLATIONS = 100
"""Kept of each claim; all are counted."""

END_EXPIRY_MS = 10_000
"""The default of the nodes' setting of that name."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run is held to beyond correctness.

    `settle_ms`: how long after its healing a fault may still explain what a reader gets. `slowest_read_ms` holds
    always, `slowest_by_fault_ms` while that fault lasts; a reader's own `wait_ms` is not counted.
    """

    settle_ms: float = 5_000.0
    slowest_read_ms: float | None = None
    slowest_by_fault_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Violation:
    """`text` names the read, what was claimed, what was true, and the faults that were active then."""

    claim: str
    at_ms: float
    text: str


@dataclass(frozen=True, slots=True)
class OfKind:
    """What a claim examined of one kind of state, by aspect, and how much of it was wrong."""

    examined: dict[str, int]
    found: int


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """`examined` counts by aspect; each of `needed` has to be above 0, in all and in each of `kinds`. `violations` are
    the first of `found`.
    """

    name: str
    says: str
    examined: dict[str, int]
    needed: tuple[str, ...]
    violations: tuple[Violation, ...]
    found: int
    kinds: dict[str, OfKind]
    needs_each_kind: bool = True
    """Whether the evidence is needed of every kind of state, and not of any."""

    @property
    def vacuous(self) -> tuple[str, ...]:
        """The kinds of evidence that the claim needs and that were never examined."""
        never = [aspect for aspect in self.needed if not self.examined.get(aspect)]
        never += [
            f"{aspect} of {kind}"
            for kind, seen in self.kinds.items()
            for aspect in self.needed
            if self.needs_each_kind and aspect not in never and not seen.examined.get(aspect)
        ]
        return tuple(never)

    @property
    def holds(self) -> bool:
        return not self.found and not self.vacuous


class Case:
    """A run as the claims see it: what was recorded, the truth, and what follows from both. Nothing in it changes."""

    def __init__(self, history: History, truth: Truth, limits: Limits) -> None:
        self.history, self.truth, self.limits = history, truth, limits
        self.commits = CommitTimes(history.commits, history.watched_until_ms)
        self.faults = FaultWindows(history.faults, settle_ms=limits.settle_ms)
        self.end_expiry_ms = float(history.meta.settings.get("end_expiry_ms", END_EXPIRY_MS))
        self.bases = BaseCounts(history.bases)
        self.needs_late_bases = bool(history.meta.settings.get("short_lived_bases"))
        self.kinds = history.meta.kinds
        self.is_scattered = SCATTERED in self.kinds.values()
        """Whether Spark may have put each key into any partition."""
        self.began_ms = min((read.began_ms for read in history.reads), default=0.0)

    def answers(self) -> Sequence[Read]:
        return [read for read in self.history.reads if read.answered]

    def name_of(self, read: Read) -> str:
        """A name that is enough to find a read in the history."""
        via = f"{read.router} -> {read.node} ({read.role})" if read.node else read.router
        when = f"at {read.began_ms - self.began_ms:.0f} ms"
        return f"read {read.session}/{read.seq} of {read.store} {read.key} {when}, {via}, version {read.version}"

    def faults_at(self, from_ms: float, until_ms: float) -> str:
        return ", ".join(map(str, self.faults.during(from_ms, until_ms))) or "none"


class Tally:
    """Counts what one claim examined, and keeps what breaks it; of claims about stores by kind of state, too."""

    def __init__(
        self,
        case: Case,
        name: str,
        says: str,
        needed: Sequence[str],
        *,
        is_of_stores: bool = True,
        needs_each_kind: bool = True,
    ) -> None:
        self._case, self._name, self._says, self._needed = case, name, says, tuple(needed)
        self._needs_each_kind = needs_each_kind
        self._kinds = case.kinds if is_of_stores else {}
        self._examined: Counter[str] = Counter()
        self._examined_of: Counter[tuple[str, str]] = Counter()
        self._violations: list[Violation] = []
        self._found = 0
        self._found_of: Counter[str] = Counter()

    def looked(self, aspect: str, store: str = "") -> None:
        """Count one more of an aspect, in an answer of `store`."""
        self._examined[aspect] += 1
        if kind := self._kinds.get(store):
            self._examined_of[kind, aspect] += 1

    def accuse(self, read: Read, text: str) -> None:
        """Record that this read breaks the claim."""
        faults = self._case.faults_at(read.began_ms, read.ended_ms)
        self.accuse_at(read.began_ms, f"{self._case.name_of(read)}: {text}; faults then: {faults}", read.store)

    def accuse_at(self, at_ms: float, text: str, store: str = "") -> None:
        self._found += 1
        if kind := self._kinds.get(store):
            self._found_of[kind] += 1
        if len(self._violations) < MAX_VIOLATIONS:
            self._violations.append(Violation(self._name, at_ms, text))

    def result(self) -> ClaimResult:
        of_kind = {
            kind: OfKind({aspect: self._examined_of[kind, aspect] for aspect in self._examined}, self._found_of[kind])
            for kind in dict.fromkeys(self._kinds.values())
        }
        violations = tuple(self._violations)
        return ClaimResult(
            self._name,
            self._says,
            dict(self._examined),
            self._needed,
            violations,
            self._found,
            of_kind,
            self._needs_each_kind,
        )
