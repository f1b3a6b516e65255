"""Parts of a document that are kept as they were while only noise changes in them (pure)."""

from __future__ import annotations

import math
from typing import NamedTuple

import orjson

FRESH_MS = 2_000
"""Milliseconds below which ages and lags count as equal: a heartbeat is up to a second old when all is well."""

MINUTE_MS = 60_000

KEPT_MS = 5_000
"""Most milliseconds for which a small section may show an age that was true when it was made."""


class Kept(NamedTuple):
    """A part as JSON, and the input of which it was made, without noise."""

    shape: object
    text: bytes
    made_ms: float = 0.0


def settled(before: Kept | None, shape: object, document: object, now_ms: float, *, keep_ms: float = math.inf) -> Kept:
    """Return the present part: the one before while its shape is the same, for `keep_ms` at most."""
    if before is not None and before.shape == shape and now_ms - before.made_ms < keep_ms:
        return before
    return Kept(shape, orjson.dumps(document), now_ms)


def settled_ms(ms: int | None) -> int | None:
    """Return the step of an age: one step for all fresh ages, then steps of a second, after a minute ever longer
    ones.
    """
    if ms is None:
        return None
    if ms < FRESH_MS:
        return 0
    return ms // 1000 if ms < MINUTE_MS else 60 + (ms // MINUTE_MS).bit_length()
