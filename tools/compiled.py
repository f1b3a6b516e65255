"""Building of an optional compiled part, which is left out where its compiler is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


class NoCompilerError(Exception):
    """There is no compiler. The text says which one, and how to name it."""


def build_or_explain(build: Callable[[], Path], target: Path) -> int:
    """Build the part and say where it is. Without a compiler remove one of other sources, and return 1."""
    try:
        said, status = str(build()), 0
    except NoCompilerError as error:
        target.unlink(missing_ok=True)
        said, status = str(error), 1
    sys.stdout.write(f"{said}\n")
    return status
