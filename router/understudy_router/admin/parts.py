"""Parts of the overview: each is kept while only noise changes in it, and knows when it last changed (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import orjson

FRESH_MS = 2_000
"""Milliseconds below which ages and lags count as equal: a heartbeat is up to a second old when all is well."""

MINUTE_MS = 60_000

KEPT_MS = 5_000
"""Most milliseconds for which a small section may show an age that was true when it was made."""

K = TypeVar("K")


class DocumentPart(NamedTuple):
    """A part as JSON, the input of which it was made, without noise, and the tick at which its text last changed."""

    shape: object
    text: bytes
    tick: int
    made_ms: float = 0.0


class Now(NamedTuple):
    """The tick and the time at which parts are made, and the oldest tick since which a viewer may ask for changes."""

    tick: int
    ms: float
    oldest: int = 0

    def part(
        self, before: DocumentPart | None, shape: object, document: object, *, keep_ms: float = math.inf
    ) -> DocumentPart:
        """Return the present part: the one before while its shape is the same, for `keep_ms` at most."""
        if before is not None and before.shape == shape and self.ms - before.made_ms < keep_ms:
            return before
        return self.joined(before, shape, orjson.dumps(document))

    def joined(self, before: DocumentPart | None, shape: object, text: bytes) -> DocumentPart:
        """Return the present part, made anew. Its tick is that of the one before if the text is."""
        is_same = before is not None and before.text == text
        return DocumentPart(shape, text, before.tick if before is not None and is_same else self.tick, self.ms)


def changed(parts: Mapping[K, DocumentPart], tick: int) -> dict[K, bytes]:
    """Return the texts that changed after a tick."""
    return {key: part.text for key, part in parts.items() if part.tick > tick}


def members(texts: Mapping[str, bytes]) -> bytes:
    """Return the members of a JSON object, without its braces."""
    return b",".join(b'"%b":%b' % (name.encode(), text) for name, text in texts.items())


def settled_ms(ms: int | None) -> int | None:
    """Return the step of an age: one step for all fresh ages, then steps of a second, after a minute ever longer
    ones.
    """
    if ms is None:
        return None
    if ms < FRESH_MS:
        return 0
    return ms // 1000 if ms < MINUTE_MS else 60 + (ms // MINUTE_MS).bit_length()
