"""The packages of the extras `sql` and `sql-server`, imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from understudy_shared.base.extras import PACKAGE, MissingExtraError


def imported(package: str, extra: str = "sql") -> Any:
    """Import a package of an extra. Raises MissingExtraError."""
    try:
        return import_module(package)
    except ImportError:
        what = f"SQL needs {package}, which is not installed"
        raise MissingExtraError(what, where=f"{PACKAGE}[{extra}]", extras=extra) from None
