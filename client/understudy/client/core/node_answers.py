"""Answers of nodes that were asked directly: which of them are used (pure).

A node may be a stranger that got its address, follow another history, or just begin to restore. A router would know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from understudy.client.core.placement import Placement

Answer = Mapping[str, Any]

Found = dict[int, tuple[Answer, Answer]]
"""The results of a batch by the places of their keys, each with the read that it shares with others."""


class BatchAnswer(NamedTuple):
    """The answer to a compact batch: what its results share, and the results."""

    reads: Sequence[Answer]
    results: Sequence[Answer]


def lookup_of(document: Any, store: str) -> Answer | None:
    """Return a document if it is the answer to a lookup in that store."""
    if (
        type(document) is dict
        and document.get("store") == store
        and type(document.get("found")) is bool
        and type(document.get("key")) is dict
        and type(document.get("position")) is str
    ):
        return document
    return None


def batch_of(document: Any, store: str, number: int) -> BatchAnswer | None:
    """Return a document if it is the answer to a compact batch of so many keys of that store."""
    match document:
        case {"store": str(name), "reads": [*reads], "results": [*results]} if name == store and len(results) == number:
            if {*map(type, reads), *map(type, results)} <= {dict}:
                return BatchAnswer(reads, results)
    return None


def usable_results(answer: BatchAnswer, places: Sequence[int], placement: Placement) -> tuple[Found, Sequence[Answer]]:
    """Return the results that can be used, and the reads that they share."""
    reads, results = answer
    trusted = [is_trusted(each, placement) for each in reads]
    shared: list[Any] = [
        each.get("read") if type(each.get("found")) is bool and "key" in each else None for each in results
    ]
    if all(trusted) and {*map(type, shared)} == {int} and min(shared) >= 0 and max(shared) < len(reads):
        return dict(zip(places, zip(results, map(reads.__getitem__, shared), strict=True), strict=True)), reads
    found: Found = {}
    for place, result, at in zip(places, results, shared, strict=True):
        if type(at) is int and 0 <= at < len(reads) and trusted[at]:
            found[place] = result, reads[at]
    return found, [each for each, is_used in zip(reads, trusted, strict=True) if is_used]


def is_trusted(read: Answer, placement: Placement) -> bool:
    """Whether an answer is of the history that is known, by a replica that runs and knows its lag. A router prefers
    another replica to one that is restored, or cut off from the checkpoint.
    """
    by, lag = read.get("served_by"), read.get("lag")
    return (
        type(by) is dict
        and by.get("state") == "RUNNING"
        and type(lag) is dict
        and isinstance(lag.get("offset_lag"), int)
        and placement.is_of_history(read.get("position"))
    )


def is_by_active(read: Answer) -> bool:
    """Whether the active replica gave an answer that is trusted; another one has become active if not."""
    return bool(read["served_by"].get("role") == "active")
