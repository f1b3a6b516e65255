"""The applications that a router serves, by patterns of their ids (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from understudy_shared.auth.patterns import matches
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.printable import clipped
from understudy_shared.fleet.choosing import require_id

MAX_APPLICATIONS = 1000


def parse_patterns(text: str) -> tuple[str, ...]:
    """Parse patterns that are separated by commas. Raises SettingsError."""
    patterns = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(patterns):
        fix = "Write patterns such as '*' or 'orders-*,flights'"
        raise SettingsError(f"{clipped(text)} has a pattern without a character", where="applications", fix=fix)
    return patterns


class Wanted(NamedTuple):
    """The applications that are to be served and are not yet, in order. There is no room for those `left_out`."""

    new: list[str]
    left_out: list[str]


def wanted(heard: Iterable[str], patterns: Sequence[str], served: Collection[str]) -> Wanted:
    """Choose the applications that are heard and to be served, but are not yet; up to MAX_APPLICATIONS in all."""
    found = sorted(name for name in heard if name not in served and _is_usable(name))
    matching = [name for name in found if any(matches(pattern, name) for pattern in patterns)]
    room = max(0, MAX_APPLICATIONS - len(served))
    return Wanted(matching[:room], matching[room:])


def _is_usable(application_id: str) -> bool:
    try:
        require_id(application_id)
    except SettingsError:
        return False
    return True
