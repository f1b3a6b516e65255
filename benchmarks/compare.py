"""Compares two reports of one benchmark, or of whole runs, and names what got slower by more than the noise.

    python -m benchmarks.compare BEFORE.json AFTER.json

A change is more than noise when no round of one report lies within the rounds of the other, and the medians differ by
more than 3 %. Exits with 1 when anything got slower.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import Rounds, rounds_of

MIN_CHANGE = 0.03
MORE_IS_BETTER = frozenset({"per_second", "keys_per_second"})
"""All other figures are costs: less is better."""


class Verdict(StrEnum):
    """The verdict on a change."""

    SLOWER = "slower"
    FASTER = "faster"
    NOISE = "within the noise"


class Change(NamedTuple):
    """One figure of one subject: medians before and after."""

    subject: str
    figure: str
    before: float
    after: float
    verdict: Verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    before, after = (json.loads(path.read_text()) for path in (options.before, options.after))
    for what in ("commit", "machine", "versions"):
        if before.get(what) != after.get(what):
            print(f"{what}: {before.get(what)} -> {after.get(what)}")
    old, new = rounds_of(before), rounds_of(after)
    changes = list(changes_between(old, new))
    for change in changes:
        ratio = change.after / change.before if change.before else float("inf")
        middle = f"{change.before:12.3f}{change.after:12.3f}{ratio:8.2f} x"
        print(f"{change.subject:48}{change.figure:26}{middle}  {change.verdict}")
    for name in sorted(set(old) ^ set(new)):
        print(f"{name}: in one of the reports only")
    return int(any(change.verdict is Verdict.SLOWER for change in changes))


def changes_between(before: Rounds, after: Rounds) -> Iterator[Change]:
    """Yield every figure that both reports have."""
    for subject in before:
        for figure in before[subject][0] if subject in after else ():
            old = [each[figure] for each in before[subject]]
            new = [each[figure] for each in after[subject] if figure in each]
            if new:
                verdict = judged(old, new, more_is_better=figure in MORE_IS_BETTER)
                yield Change(subject, figure, statistics.median(old), statistics.median(new), verdict)


def judged(before: Sequence[float], after: Sequence[float], *, more_is_better: bool) -> Verdict:
    """Judge the change between two series of rounds."""
    old, new = statistics.median(before), statistics.median(after)
    overlap = min(before) <= max(after) and min(after) <= max(before)
    if overlap or abs(new - old) <= MIN_CHANGE * abs(old):
        return Verdict.NOISE
    return Verdict.FASTER if (new > old) == more_is_better else Verdict.SLOWER


if __name__ == "__main__":
    sys.exit(main())
