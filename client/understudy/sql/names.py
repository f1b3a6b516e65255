"""Names as SQL writes them (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def identifier(name: str, reserved: Collection[str] = ()) -> str:
    """Return a name of a table or a column as a statement has it: in quotes where it needs them."""
    if _PLAIN.fullmatch(name) and name.lower() not in reserved:
        return name
    return '"' + name.replace('"', '""') + '"'
