"""\"Did you mean ...?\": the known name that a mistyped one is closest to (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

MAX_KNOWN = 1000
"""Names that are compared: a checkpoint with more stores than that gets no hint, rather than a slow refusal."""
MAX_WORD_CHARS = 100


def closest(word: str, known: Iterable[str]) -> str | None:
    """Find the known name that `word` was probably meant to be; None when no name is close."""
    if len(word) > MAX_WORD_CHARS:
        return None
    names = {name.lower(): name for name in islice(known, MAX_KNOWN)}
    from difflib import get_close_matches  # noqa: PLC0415  # costs 3 ms to import: only mistakes pay

    found = get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return names[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return text to put before a fix: `Did you mean 'aircraft'? `, or nothing."""
    name = closest(word, known)
    return "" if name is None else f"Did you mean {name!r}? "
