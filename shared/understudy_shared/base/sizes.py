"""Sizes as people write them, in bytes (pure).

Units are binary, as in Spark's and the JVM's settings: `10m` is 10 MiB.
"""

from __future__ import annotations

import re

from understudy_shared.base.errors import UnderstudyError

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
