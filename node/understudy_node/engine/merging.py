"""Merges ordered layers of one store into one ordered stream. Pure: iterators in, an iterator out.

The rule: for a key that both layers have, the newer layer wins, also with a delete (None).
"""

from __future__ import annotations

from collections.abc import Iterator


def newer_over_older(
    newer: Iterator[tuple[bytes, bytes | None]], older: Iterator[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Merge two streams in key order; keeps deletes, because they may hide records of a lower layer."""
    above = next(newer, None)
    if above is None:
        yield from older
        return
    for record in older:
        while above is not None and above[0] < record[0]:
            yield above
            above = next(newer, None)
        if above is None:
            yield record
            break
        if above[0] == record[0]:
            yield above
            above = next(newer, None)
        else:
            yield record
    if above is not None:
        yield above
        yield from newer
    else:
        yield from older


def without_deletes(records: Iterator[tuple[bytes, bytes | None]]) -> Iterator[tuple[bytes, bytes]]:
    return ((key, value) for key, value in records if value is not None)
