"""The claims about scans, exports and reads of several stores find each planted bug."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace

import pytest
from tests.system.proof.checker import check
from tests.system.proof.history import Scan, SnapshotRead
from tests.system.proof.http_talk import HttpReply
from tests.system.proof.scanning import MAX_TURNED_AWAY, Scanning, ScanQuestion
from tests.unit.proof.model import Model

GOOD = Model(7)

SPOILT: dict[str, Callable[[Scan], Scan]] = {
    "a key twice": lambda scan: replace(scan, rows=(*scan.rows, scan.rows[0])),
    "a key lost": lambda scan: replace(scan, rows=scan.rows[1:]),
    "another value": lambda scan: replace(scan, rows=((scan.rows[0][0], {"count": -1}), *scan.rows[1:])),
    "a page of another version": lambda scan: replace(scan, versions=(scan.versions[0], scan.versions[0] + 1)),
    "another version than was asked for": lambda scan: replace(scan, asked_version=scan.versions[0] + 1),
    "a version that says another": lambda scan: replace(scan, versions=(1,), asked_version=None),
    "a filter that is ignored": lambda scan: replace(scan, below="k1" if scan.rows[-1][0] > '["k1"]' else "k0"),
    "a failure": lambda scan: replace(scan, outcome="failed", detail="no page"),
    "a refusal without cause": lambda scan: replace(scan, outcome="refused", problem="version-gone"),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
def test_a_planted_bug_in_one_scan_is_found(spoil: Callable[[Scan], Scan]) -> None:
    place = next(place for place, scan in enumerate(GOOD.history.scans) if len(scan.rows) > 4 and not scan.below)
    scans = [*GOOD.history.scans]
    scans[place] = spoil(scans[place])
    history = copy(GOOD.history)
    history.scans = scans
    claim = check(history, GOOD.truth).claims["scans"]
    assert claim.found, "the bug was not seen"
    assert {violation.at_ms for violation in claim.violations} == {scans[place].began_ms}


def with_first(read: SnapshotRead, *, version: int | None, value: object, problem: str = "") -> SnapshotRead:
    store, key, *_ = read.results[0]
    return replace(read, results=((store, key, version, value, problem), *read.results[1:]))  # type: ignore[arg-type]


SPOILT_READS: dict[str, Callable[[SnapshotRead], SnapshotRead]] = {
    "a result of another version": lambda read: with_first(read, version=1, value=read.results[0][3]),
    "another value": lambda read: with_first(read, version=read.version, value={"count": -1}),
    "a problem without cause": lambda read: with_first(read, version=None, value=None, problem="version-gone"),
    "another version than was asked for": lambda read: replace(read, asked_version=(read.version or 0) + 1),
    "a failure": lambda read: replace(read, outcome="failed", detail="no answer", results=()),
    "a refusal without cause": lambda read: replace(read, outcome="refused", problem="version-gone", results=()),
}


@pytest.mark.parametrize("spoil", SPOILT_READS.values(), ids=SPOILT_READS.keys())
def test_a_planted_bug_in_one_read_of_several_stores_is_found(
    spoil: Callable[[SnapshotRead], SnapshotRead],
) -> None:
    read, *others = GOOD.history.snapshots
    history = copy(GOOD.history)
    history.snapshots = [spoil(read), *others]
    claim = check(history, GOOD.truth).claims["snapshots"]
    assert claim.found, "the bug was not seen"
    assert {violation.at_ms for violation in claim.violations} == {read.began_ms}


def test_a_page_that_an_overloaded_service_refuses_is_asked_for_again_a_bounded_number_of_times() -> None:
    scanning = Scanning(1, ScanQuestion("op0", 3), 0.0)
    refusal = HttpReply(429, "application/problem+json", b'{"type": "overloaded", "detail": "full"}')
    for _ in range(MAX_TURNED_AWAY):
        assert scanning.took(1.0, refusal, {}) is None
    ended = scanning.took(1.0, refusal, {})
    assert ended is not None
    assert (ended.outcome, ended.problem) == ("refused", "overloaded")
    page = HttpReply(200, "application/json", b'{"version": 1, "rows": [], "next_cursor": "c"}')
    assert scanning.took(1.0, page, {}) is None
    assert scanning.turned_away == 0
