"""Claim (f): every read is answered, unless its own bound forbids it; and how long reads took (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from tests.system.proof.claims import Case, ClaimResult, Tally
from tests.system.proof.history import Bounds, Read
from tests.system.proof.schedule import MENU

QUIET = "quiet"
ALL = "all"


def reads_are_answered(case: Case) -> ClaimResult:
    """(f) No read fails. A read is refused only where its reader's bound left no candidate, where the active that it
    wants is away, or where the version that it names cannot be opened because of a fault of the store; and each is as
    quick as the limits say."""
    tally = Tally(case, "availability", "every read is answered, or refused by its own bound", ("reads",))
    for read in case.history.reads:
        tally.looked("reads", read.store)
        if read.outcome == "failed":
            tally.accuse(read, f"failed: {read.detail or read.problem or read.status}")
        elif read.outcome == "refused":
            tally.looked("refusals", read.store)
            names_version = read.bounds.version is not None
            excused = may_not_open(case, read.began_ms, read.ended_ms) if names_version else frozenset[str]()
            if not is_excused(read, excused) and not _waited_for_the_active(case, read):
                said = ", ".join(f"{node}: {reason}" for node, reason in read.candidates) or "no candidates"
                tally.accuse(read, f"refused ({read.status} {read.problem}; {said}) with {read.bounds}")
        limit_ms = _slowest_ms(case, read)
        if limit_ms is not None and read.took_ms - read.bounds.wait_ms > limit_ms:
            tally.accuse(read, f"took {read.took_ms:.0f} ms, the limit is {limit_ms:.0f} ms")
    return tally.result()


class Refused(Protocol):
    """What a refusal has that is judged."""

    @property
    def bounds(self) -> Bounds: ...

    @property
    def problem(self) -> str: ...

    @property
    def candidates(self) -> tuple[tuple[str, str], ...]: ...


def is_excused(read: Refused, excused: frozenset[str]) -> bool:
    """Whether a refusal is one that the reader's bound asked for, or has an excuse.

    The bound explains it when at least one candidate was kept from answering by the bound alone; the others may be gone
    for any reason. Without that, the problem or every candidate's reason has to be among the excused ones.
    """
    reasons = [reason for _, reason in read.candidates]
    by_bound = reasons_of(read.bounds)
    if any(reason in by_bound for reason in reasons):
        return True
    return read.problem in excused or (bool(reasons) and all(reason in excused for reason in reasons))


def _waited_for_the_active(case: Case, read: Read) -> bool:
    """Whether a read that only the active may answer ended by its client's deadline while a node was away."""
    if not read.bounds.require_active or read.problem != "deadline" or read.candidates:
        return False
    active = case.faults.during(read.began_ms, read.ended_ms)
    return any(each.fault in MENU and MENU[each.fault].takes_replica for each in active)


def reasons_of(bounds: Bounds) -> frozenset[str]:
    """The reasons with which a replica refuses because of these bounds."""
    found = set()
    if bounds.limits_lag:
        found.add("lag-exceeded")
    if not bounds.serves_unknown_lag:
        found.add("lag-unknown")
    if bounds.min_version is not None:
        found.add("below-min-position")
    if bounds.require_active:
        found.add("not-active")
    return frozenset(found)


def may_not_open(case: Case, began_ms: float, ended_ms: float) -> frozenset[str]:
    """The reasons and problems that the faults of a time excuse of reads that open a version."""
    active = case.faults.during(began_ms, ended_ms)
    return frozenset(reason for each in active if each.fault in MENU for reason in MENU[each.fault].may_not_open)


def _slowest_ms(case: Case, read: Read) -> float | None:
    limits = case.limits
    active = {each.fault for each in case.faults.during(read.began_ms, read.ended_ms)}
    given = [limits.slowest_by_fault_ms[fault] for fault in active if fault in limits.slowest_by_fault_ms]
    if limits.slowest_read_ms is not None:
        given.append(limits.slowest_read_ms)
    return min(given, default=None)


@dataclass(frozen=True, slots=True)
class Latencies:
    """How the reads of one phase went: `all`, `quiet` (no fault active or settling), or a fault's name. Times in ms."""

    phase: str
    reads: int
    refused: int
    failed: int
    p50: float
    p99: float
    p999: float
    slowest: float


def latencies(case: Case) -> list[Latencies]:
    """Percentiles over all reads, over the quiet ones, and for each fault over those that met it."""
    phases: defaultdict[str, list[Read]] = defaultdict(list)
    for read in case.history.reads:
        active = {each.fault for each in case.faults.during(read.began_ms, read.ended_ms)}
        for phase in (ALL, *(active or {QUIET})):
            phases[phase].append(read)
    first = [phase for phase in (ALL, QUIET) if phase in phases]
    return [_latencies(phase, phases[phase]) for phase in (*first, *sorted(phases.keys() - {ALL, QUIET}))]


def _latencies(phase: str, reads: Sequence[Read]) -> Latencies:
    took_ms = sorted(read.took_ms for read in reads)
    return Latencies(
        phase,
        reads=len(reads),
        refused=_count(read.outcome == "refused" for read in reads),
        failed=_count(read.outcome == "failed" for read in reads),
        p50=percentile(took_ms, 50),
        p99=percentile(took_ms, 99),
        p999=percentile(took_ms, 99.9),
        slowest=took_ms[-1],
    )


def _count(found: Iterable[bool]) -> int:
    return sum(found)


def percentile(rising: Sequence[float], percent: float) -> float:
    """Nearest rank: the smallest value that `percent` % of the values do not exceed."""
    return rising[max(0, ceil(len(rising) * percent / 100) - 1)]
