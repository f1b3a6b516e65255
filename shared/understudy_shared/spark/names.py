"""Makes column names unique, so that each can be addressed: Spark repeats and generates names.

Pure and deterministic: the same schema gets the same names on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable


def unique_names(names: Iterable[str]) -> tuple[str, ...]:
    """Make names unique: the first of equal names stays, later ones get `_2`, `_3`, ... and skip every name that exists
    already.
    """
    originals = tuple(names)
    taken = set(originals)
    seen: set[str] = set()
    unique: list[str] = []
    for original in originals:
        name = original
        if original in seen:
            suffix = 2
            while (name := f"{original}_{suffix}") in taken:
                suffix += 1
            taken.add(name)
        seen.add(original)
        unique.append(name)
    return tuple(unique)
