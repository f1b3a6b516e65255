"""A verdict for people and for programs (pure)."""

from __future__ import annotations

from typing import Any

import orjson
from tests.system.proof.checker import Verdict
from tests.system.proof.claims import ClaimResult
from tests.system.proof.fault_windows import FaultWindows
from tests.system.proof.history import History

SHOWN_VIOLATIONS = 5
"""How many the text shows of each claim; the JSON has all that were kept."""


def as_text(history: History, verdict: Verdict) -> str:
    """Claims, what they examined of each kind of state, latencies by phase, faults; then what is wrong."""
    parts = [_claims(verdict), _kinds(history, verdict), _latencies(verdict), _faults(history)]
    parts += [_wrong(claim) for claim in verdict.claims.values() if not claim.holds]
    parts.append("every claim holds" if verdict.holds else f"BROKEN (seed {history.meta.seed})")
    return "\n\n".join(part for part in parts if part) + "\n"


def as_json(history: History, verdict: Verdict) -> str:
    """All of it, indented."""
    return orjson.dumps(_document(history, verdict), option=orjson.OPT_INDENT_2).decode()


def _document(history: History, verdict: Verdict) -> dict[str, Any]:
    return {
        "holds": verdict.holds,
        "meta": history.meta,
        "claims": [
            {
                "name": claim.name,
                "says": claim.says,
                "holds": claim.holds,
                "examined": claim.examined,
                "never_examined": claim.vacuous,
                "found": claim.found,
                "kinds": claim.kinds,
                "violations": claim.violations,
            }
            for claim in verdict.claims.values()
        ],
        "latencies": verdict.latencies,
        "faults": history.faults,
    }


def _claims(verdict: Verdict) -> str:
    rows: list[tuple[str, ...]] = [("claim", "", "examined", "violations")]
    for claim in verdict.claims.values():
        examined = ", ".join(f"{count} {aspect}" for aspect, count in claim.examined.items()) or "nothing"
        rows.append((claim.name, "holds" if claim.holds else "BROKEN", examined, str(claim.found)))
    return _table(rows)


def _kinds(history: History, verdict: Verdict) -> str:
    """A line for each kind of state, where there are several."""
    kinds = sorted(set(history.meta.kinds.values()))
    claims = [claim for claim in verdict.claims.values() if claim.kinds]
    rows: list[tuple[str, ...]] = [("kind", *(claim.name for claim in claims), "violations")]
    for kind in kinds:
        of_kind = [claim.kinds[kind] for claim in claims]
        counts = [
            " + ".join(str(each.examined.get(aspect, 0)) for aspect in claim.needed)
            for each, claim in zip(of_kind, claims, strict=True)
        ]
        rows.append((kind, *counts, str(sum(each.found for each in of_kind))))
    return _table(rows) if len(kinds) > 1 else ""


def _latencies(verdict: Verdict) -> str:
    rows: list[tuple[str, ...]] = [
        ("phase", "reads", "refused", "failed", "p50 ms", "p99 ms", "p99.9 ms", "slowest ms")
    ]
    for phase in verdict.latencies:
        times = (phase.p50, phase.p99, phase.p999, phase.slowest)
        counts = (phase.reads, phase.refused, phase.failed)
        rows.append((phase.phase, *map(str, counts), *(f"{time_ms:.1f}" for time_ms in times)))
    return _table(rows)


def _faults(history: History) -> str:
    began_ms = min((read.began_ms for read in history.reads), default=0.0)
    rows: list[tuple[str, ...]] = [("fault", "target", "from s", "to s", "")]
    for window in FaultWindows(history.faults, settle_ms=0).windows:
        from_s, until_s = ((edge - began_ms) / 1000 for edge in (window.from_ms, window.until_ms))
        rows.append((window.fault, window.target, f"{from_s:.1f}", f"{until_s:.1f}", ""))
    rows += [
        (each.fault, each.target, "skipped", "", each.detail) for each in history.faults if each.phase == "skipped"
    ]
    return _table(rows) if len(rows) > 1 else "no faults"


def _wrong(claim: ClaimResult) -> str:
    lines = [f"{claim.name}: {claim.says}"]
    lines += [f"  nothing was examined of: {aspect}" for aspect in claim.vacuous]
    lines += [f"  {violation.text}" for violation in claim.violations[:SHOWN_VIOLATIONS]]
    more = claim.found - min(len(claim.violations), SHOWN_VIOLATIONS)
    return "\n".join([*lines, *([f"  and {more} more"] if more else [])])


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
