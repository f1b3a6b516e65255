"""A time ago, as people write it: `1m`, `-90s`, `2h` (pure)."""

from __future__ import annotations

import re
from typing import Final

EXAMPLES: Final = "1m, 90s, 2h, 3d or 500ms"
_FORM: Final = re.compile(r"-?([0-9]{1,9})(ms|s|m|h|d)")
_UNITS_US: Final = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def parse_ago(text: str) -> int | None:
    """Return how many microseconds ago a text means, with or without a minus; None for another text."""
    found = _FORM.fullmatch(text)
    return None if found is None else int(found[1]) * _UNITS_US[found[2]]
