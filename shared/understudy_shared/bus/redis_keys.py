"""Keys of a Redis as SCAN takes and returns them (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

READ_AT_ONCE = 1000


def batched(keys: Iterable[str]) -> Iterator[list[str]]:
    """Yield the keys in groups that one round trip reads."""
    waiting = iter(keys)
    while few := list(islice(waiting, READ_AT_ONCE)):
        yield few


def pattern_of(prefix: str) -> str:
    """Return the pattern of SCAN for keys that begin with `prefix`."""
    return re.sub(r"([*?\[\]\\^-])", r"\\\1", prefix) + "*"


def decoded(keys: Iterable[bytes | str]) -> list[str]:
    """Return keys as text."""
    return [key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key) for key in keys]
