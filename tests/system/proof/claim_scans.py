"""Claims (h) and (i): scans, and reads of several stores, are of one version, and what Spark has of it (pure; Q63)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import orjson
from tests.system.proof.claim_availability import is_excused, may_not_open
from tests.system.proof.claims import Case, ClaimResult, Tally
from tests.system.proof.history import Scan, SnapshotRead, Value

MAX_SHOWN = 3
"""How many keys a violation names."""

NEEDED = ("scans", "in pages", "exports", "filtered", "of a named version")


def scans_are_the_truth(case: Case) -> ClaimResult:
    """(h) All pages of a scan are of one version, the one that its reader named if he did; it was committed; its rows
    are Spark's state at it, each key once, no more and no fewer than the filter lets through. None fails, and one is
    refused only where its version cannot be opened because of a fault of the store."""
    tally = Tally(
        case, "scans", "a scan has every key of one version once, as Spark has it", NEEDED, needs_each_kind=False
    )
    for scan in case.history.scans:
        if scan.outcome == "whole":
            _look(tally, scan)
        for wrong in _wrong_with(case, scan):
            faults = case.faults_at(scan.began_ms, scan.ended_ms)
            tally.accuse_at(scan.began_ms, f"{_name_of(case, scan)}: {wrong}; faults then: {faults}", scan.store)
    return tally.result()


def snapshots_agree(case: Case) -> ClaimResult:
    """(i) A read of several stores states one version, the one that its reader named if he did, and every result is
    Spark's state at it. It is refused, as a whole or of a key, only where its version
    cannot be opened because of a fault of the store."""
    needed = ("found", "absent", "leases", "of a named version")
    tally = Tally(
        case, "snapshots", "reads of several stores are of one version, and true", needed, needs_each_kind=False
    )
    for read in case.history.snapshots:
        if read.is_lease:
            tally.looked("leases")
        for store, *_, value, problem in read.results:
            tally.looked("refused" if problem else "absent" if value is None else "found", store)
            if read.asked_version is not None:
                tally.looked("of a named version", store)
        for wrong in _wrong_snapshot(case, read):
            when = f"at {read.began_ms - case.began_ms:.0f} ms"
            faults = case.faults_at(read.began_ms, read.ended_ms)
            text = f"snapshot read {read.number} {when}, version {read.version}: {wrong}; faults then: {faults}"
            tally.accuse_at(read.began_ms, text)
    return tally.result()


def _wrong_snapshot(case: Case, read: SnapshotRead) -> Iterator[str]:
    if read.outcome == "failed":
        yield f"failed: {read.detail or read.problem}"
        return
    excused = may_not_open(case, read.began_ms, read.ended_ms)
    if read.outcome == "refused" or read.version is None:
        if not is_excused(read, excused):
            said = ", ".join(f"{node}: {reason}" for node, reason in read.candidates) or "no candidates"
            yield f"refused ({read.problem}; {said}): {read.detail}"
        return
    if read.asked_version not in (None, read.version):
        yield f"version {read.asked_version} was asked for"
    if case.commits.surely_uncommitted(read.version, read.ended_ms):
        yield "the version was not committed yet when its answer had come"
    for store, key, version, value, problem in read.results:
        if problem and problem not in excused:
            yield f"{store} {key} was refused: {problem}"
        elif not problem and version != read.version:
            yield f"{store} {key} is of version {version}"
        elif not problem:
            yield from _wrong_value(case, store, key, read.version, value)


def _wrong_value(case: Case, store: str, key: str, version: int, value: Value | None) -> Iterator[str]:
    try:
        true = case.truth.at(store, key, version)
    except LookupError as error:
        yield str(error)
        return
    if value != true:
        yield f"{store} {key} is {value!r:.200}, Spark has {true!r:.200}"


def _look(tally: Tally, scan: Scan) -> None:
    tally.looked("scans", scan.store)
    if scan.is_export:
        tally.looked("exports", scan.store)
    if scan.pages > 1:
        tally.looked("exports that went on" if scan.is_export else "in pages", scan.store)
    if scan.below is not None:
        tally.looked("filtered", scan.store)
    if scan.asked_version is not None:
        tally.looked("of a named version", scan.store)


def _wrong_with(case: Case, scan: Scan) -> Iterator[str]:
    if scan.outcome == "failed":
        yield f"failed: {scan.detail or scan.problem}"
        return
    if scan.outcome == "refused":
        if not is_excused(scan, may_not_open(case, scan.began_ms, scan.ended_ms)):
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
    what = "export" if scan.is_export else "scan"
    return f"{what} {scan.number} of {scan.store}{asked}{below} {when}, {scan.pages} pages, versions {scan.versions}"
