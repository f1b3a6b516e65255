"""Parts of a document that stay as they were while nothing in them changed that anybody wants to see (pure)."""

from __future__ import annotations

import math
from typing import NamedTuple

import orjson

FRESH_MS = 2_000
"""Ages and lags below it are alike: a heartbeat is up to a second old when all is well."""

MINUTE_MS = 60_000

KEPT_MS = 5_000
"""How long a small section may show an age that was true when it was made."""


class Kept(NamedTuple):
    """A part as JSON, and what it was made of, but for noise."""

    shape: object
    text: bytes
    made_ms: float = 0.0


def settled(before: Kept | None, shape: object, document: object, now_ms: float, *, keep_ms: float = math.inf) -> Kept:
    """The part of now: the one before while its shape is the same, for `keep_ms` at most."""
    if before is not None and before.shape == shape and now_ms - before.made_ms < keep_ms:
        return before
    return Kept(shape, orjson.dumps(document), now_ms)


def settled_ms(ms: int | None) -> int | None:
    """The step that an age is in: one for all that is fresh, then a second each, after a minute ever longer ones."""
    if ms is None:
        return None
    if ms < FRESH_MS:
        return 0
    return ms // 1000 if ms < MINUTE_MS else 60 + (ms // MINUTE_MS).bit_length()
