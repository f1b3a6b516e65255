"""Patterns of names (pure): `*` stands for any characters, or for no character; every other character for itself."""

from __future__ import annotations

EVERY = "*"


def matches(pattern: str, name: str) -> bool:
    """Whether a name is of a pattern. It takes time in proportion to their lengths, whatever the pattern."""
    first, *others = pattern.split(EVERY)
    if not others:
        return name == pattern
    *middle, last = others
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
