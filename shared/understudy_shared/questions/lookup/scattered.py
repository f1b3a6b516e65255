"""Keys of scattered stores, which Spark may have put into any partition (pure): asked of all, answered as one.

Two partitions may both have a key, where the plan of the query changed over the years. Which of them Spark goes on with
depends on its plan of today, so that is a problem, and never a choice made here.

Partitions that were read at different versions cannot say together that a key is absent: the one that is ahead may have
lost it since, and the one that is behind may not have got it yet. Such a key is unsettled until all are asked at one
version, the oldest of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.lookup.hop_columns import ABSENT, FOUND, HopOutcome
from understudy_shared.reads.bounds import Bound, bound_at, version_of
from understudy_shared.reads.tokens import Position, decode_position

NOT_FOUND: Final = b'"found":false,'
"""The members for an absent key. A key of which everything has expired has others, and is there."""

_PLACE = re.compile(rb'"partition":(\d+),"version":(\d+),')
"""The beginning of every tail."""

_POSITION = re.compile(rb'"position":"([^"]+)"')


class Unsettled(NamedTuple):
    """A key that each partition lacks, at different versions. `oldest` is the position to ask all of them at."""

    oldest: Position


def ambiguous_key(store: str, partitions: Sequence[int]) -> Problem:
    """Return the problem of a key that several partitions have."""
    return Problem(
        ProblemType.AMBIGUOUS_KEY,
        f"partitions {' and '.join(map(str, partitions))} of {store} have this key: the query placed its keys in"
        " another way before, and which of the values it goes on with depends on its plan",
        where="key",
        fix='Scan with the key as prefix, which shows both; see docs/troubleshooting.md, "ambiguous-key"',
        extra={"partitions": list(partitions)},
    )


def answer_of(store: str, parts: Sequence[HopOutcome | Problem]) -> HopOutcome | Problem | Unsettled:
    """Return the answer for a key by the answers of all partitions, the first partition first.

    It takes an answer of each: what one partition lacks another may have.
    """
    there: list[int] = []
    absent: list[tuple[int, int]] = []
    for partition, part in enumerate(parts):
        if isinstance(part, Problem):
            return in_partition(part, partition)
        if part.kind == FOUND or part.body != NOT_FOUND:
            there.append(partition)
        elif not there:
            absent.append((_version(part.tail), partition))
    if len(there) > 1:
        return ambiguous_key(store, there)
    if there:
        only = parts[there[0]]
        assert isinstance(only, HopOutcome), "problems were returned"
        return only
    oldest = parts[min(absent)[1]]
    assert isinstance(oldest, HopOutcome), "problems were returned"
    if min(absent)[0] != max(absent)[0]:
        return Unsettled(_position(oldest.tail))
    return HopOutcome(ABSENT, NOT_FOUND, nowhere(oldest.tail))


def at_one_version(oldest: Position, bound: Bound) -> Bound:
    """Return the bound by which an unsettled key is asked again. The bounds of lag held for that version already."""
    version = version_of(oldest.version, oldest.committed_at_us)
    at = bound_at(oldest.application_id, oldest.lineage, version)
    return replace(at, require_active=bound.require_active, wait_ms=bound.wait_ms, selection=bound.selection)


def history_of(store: str, pages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the history of a key by a page of each partition. It ends with the shortest of them. Raises the problem of
    a key that several partitions had.
    """
    last = min(page["to"] if page["next_from"] is None else page["next_from"] - 1 for page in pages)
    for page in pages:
        page["versions"] = [each for each in page["versions"] if each["version"] <= last]
    there = [page for page in pages if any(each["found"] or "expired" in each for each in page["versions"])]
    if len(there) > 1:
        raise ProblemError(ambiguous_key(store, [page["partition"] for page in there]))
    found = there[0] if there else min(pages, key=lambda page: int(page["to"]))
    if not there:
        versions = [{**each, "partition": None} for each in found["versions"]]
        found = {**found, "partition": None, "from": max(page["from"] for page in pages), "versions": versions}
    return {**found, "next_from": last + 1 if last < found["to"] else None}


def in_partition(problem: Problem, partition: int) -> Problem:
    """Return the problem of a key that this partition cannot answer, which says so."""
    where = f"partition {partition}; {problem.where}" if problem.where else f"partition {partition}"
    return replace(problem, where=where, extra={"partition": partition, **problem.extra})


def nowhere(tail: bytes) -> bytes:
    """Return a tail without its partition, of a key that no partition has."""
    return _PLACE.sub(rb'"partition":null,"version":\2,', tail, count=1)


def _position(tail: bytes) -> Position:
    found = _POSITION.search(tail)
    assert found is not None, "every answer has its position"
    return decode_position(found[1].decode())


def _version(tail: bytes) -> int:
    place = _PLACE.match(tail)
    return 0 if place is None else int(place[2])
