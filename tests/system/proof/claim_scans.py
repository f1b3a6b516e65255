"""Claim (h): a scan has every key of one version once, and what Spark has of it (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import orjson
from tests.system.proof.claim_availability import is_excused, may_refuse
from tests.system.proof.claims import Case, ClaimResult, Tally
from tests.system.proof.history import Scan, Value

MAX_SHOWN = 3
"""How many keys a violation names."""

NEEDED = ("scans", "in pages", "filtered", "of a named version")


def scans_are_the_truth(case: Case) -> ClaimResult:
    """(h) All pages of a scan are of one version, the one that its reader named if he did; it was committed; its rows
    are Spark's state at it, each key once, no more and no fewer than the filter lets through. None fails, and one is
    refused only for a reason that the menu excuses of a fault that was active."""
    tally = Tally(case, "scans", "a scan has every key of one version once, as Spark has it", NEEDED)
    for scan in case.history.scans:
        if scan.outcome == "whole":
            _look(tally, scan)
        for wrong in _wrong_with(case, scan):
            faults = case.faults_at(scan.began_ms, scan.ended_ms)
            tally.accuse_at(scan.began_ms, f"{_name_of(case, scan)}: {wrong}; faults then: {faults}", scan.store)
    return tally.result()


def _look(tally: Tally, scan: Scan) -> None:
    tally.looked("scans", scan.store)
    if scan.pages > 1:
        tally.looked("in pages", scan.store)
    if scan.below is not None:
        tally.looked("filtered", scan.store)
    if scan.asked_version is not None:
        tally.looked("of a named version", scan.store)


def _wrong_with(case: Case, scan: Scan) -> Iterator[str]:
    if scan.outcome == "failed":
        yield f"failed: {scan.detail or scan.problem}"
        return
    if scan.outcome == "refused":
        if not is_excused(scan, may_refuse(case, scan.began_ms, scan.ended_ms)):
            said = ", ".join(f"{node}: {reason}" for node, reason in scan.candidates) or "no candidates"
            yield f"refused after {scan.pages} pages ({scan.problem}; {said}): {scan.detail}"
        return
    if len(scan.versions) != 1:
        yield f"its pages are of versions {scan.versions}"
        return
    (version,) = scan.versions
    if scan.asked_version not in (None, version):
        yield f"version {scan.asked_version} was asked for"
    if case.commits.surely_uncommitted(version, scan.ended_ms):
        yield "the version was not committed yet when its answer had come"
    counted = Counter(key for key, _ in scan.rows)
    if twice := [key for key, times in counted.items() if times > 1]:
        yield f"{len(twice)} keys more than once: {twice[:MAX_SHOWN]}"
    try:
        true = {key: value for key, value in case.truth.state(scan.store, version).items() if _passes(case, scan, key)}
    except LookupError as error:
        yield str(error)
        return
    yield from _differences(dict(scan.rows), true)


def _differences(said: dict[str, Value], true: dict[str, Value]) -> Iterator[str]:
    if lost := sorted(true.keys() - said.keys()):
        yield f"{len(lost)} of {len(true)} keys are missing: {lost[:MAX_SHOWN]}"
    if more := sorted(said.keys() - true.keys()):
        yield f"{len(more)} keys that Spark does not have, or that the filter excludes: {more[:MAX_SHOWN]}"
    if other := [key for key in said.keys() & true.keys() if said[key] != true[key]]:
        key = min(other)
        yield f"{len(other)} values differ; {key} is {said[key]!r:.200}, Spark has {true[key]!r:.200}"


def _passes(case: Case, scan: Scan, key: str) -> bool:
    """Whether a key of the truth is one of the scan: an entry of a map has a name of its own there."""
    columns = orjson.loads(key)
    if case.kinds.get(scan.store) == "map" and len(columns) > 1:
        return False
    return scan.below is None or columns[-1].encode() < scan.below.encode()


def _name_of(case: Case, scan: Scan) -> str:
    asked = "" if scan.asked_version is None else f" at {scan.asked_version}"
    below = "" if scan.below is None else f" below {scan.below}"
    when = f"at {scan.began_ms - case.began_ms:.0f} ms"
    return f"scan {scan.number} of {scan.store}{asked}{below} {when}, {scan.pages} pages, versions {scan.versions}"
