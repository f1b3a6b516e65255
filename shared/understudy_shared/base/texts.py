"""Texts from people and for people: made safe to show, compared with known names, and read as sizes and times (pure).

Units of sizes are binary, as in Spark's and the JVM's settings: `10m` is 10 MiB. A renamed setting counts under both of
its names, as in KIP-770's `StreamsConfigUtils`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final, TypeVar

from understudy_shared.base.errors import UnderstudyError


def printable(text: str) -> str:
    """Return `text` with everything that is not printable as `\\uXXXX`."""
    return text if text.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in text)


def clipped(value: object) -> str:
    """Print a wrong value for an error: text is cut; of a list or an object, which may be deep and long, only its type
    is shown.
    """
    if isinstance(value, str):
        return repr(value if len(value) <= 80 else value[:80] + "...")
    is_small = not value or isinstance(value, (bool, int, float))
    return repr(value) if is_small else f"a {type(value).__name__}"


def named(names: Iterable[str], most: int = 3, between: str = ", ") -> str:
    """Return the first names, and how many more there are."""
    known = list(names)
    return between.join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")


def _escape(char: str) -> str:
    number = ord(char)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


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


_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SIZE = re.compile(r"([0-9]{1,18}) *([kmgt]?)(?:i?b)?")


class BadSizeError(UnderstudyError):
    """The text is not a size."""


def parse_size(text: str) -> int:
    """Parse a size in bytes: `67108864`, `64MiB`, `64mb`, `64m`; case does not matter. Raises BadSizeError."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise BadSizeError(f"{text!r} is not a size", fix="Write whole bytes, or a unit of 1024: 512k, 64MiB, 2g")
    return int(match[1]) << _SHIFTS[match[2]]


def size_text(size_bytes: int) -> str:
    """Return the shortest text that `parse_size` reads back as the same size: 10485760 is `10MiB`."""
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{unit}"
    return str(size_bytes)


EXAMPLES_OF_AGO: Final = "1m, 90s, 2h, 3d or 500ms"
_AGO: Final = re.compile(r"-?([0-9]{1,9})(ms|s|m|h|d)")
_UNITS_US: Final = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def parse_ago(text: str) -> int | None:
    """Return how many microseconds ago a text means, with or without a minus; None for another text."""
    found = _AGO.fullmatch(text)
    return None if found is None else int(found[1]) * _UNITS_US[found[2]]


def duration_text(ms: int) -> str:
    """Print milliseconds in a unit that fits."""
    if ms < 10_000:
        return f"{ms} ms"
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 3 * size_ms:
            return f"{ms / size_ms:.1f} {unit}"
    return f"{ms / 1000:.1f} s"


T = TypeVar("T")


def renamed_option(new_name: str, new: T | None, old_name: str, old: T | None) -> tuple[T | None, str | None]:
    """Return the value that counts, and a warning; None is "not set", so `(None, None)` leaves the default.

    A value is set when it was given, whatever the default is: callers pass None for what was not given. The new name
    wins, and it is worth a warning only when the two differ. The old name alone counts, with a warning.
    """
    if old is None:
        return new, None
    if new is None:
        return old, f"{old_name} is deprecated: use {new_name}"
    if new == old:
        return new, None
    return new, f"{new_name} and the deprecated {old_name} are both set and differ; {new_name} is used"
