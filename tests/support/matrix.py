"""Cases of a matrix of which `make test` runs some, and `make verify` all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def in_full(chosen: Iterable[Any], *, if_in: Collection[str], names: Iterable[str] | None = None) -> list[Any]:
    """Cases as parameters, each by its name (by default a case is its name). Those named in `if_in` are marked full."""
    cases = list(chosen)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), id=name, marks=[pytest.mark.full] * (name in if_in)
        )
        for name, case in zip(names or cases, cases, strict=True)
    ]
