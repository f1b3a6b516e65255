"""The packages of the extra `sql`, imported when a statement needs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from understudy_shared.base.extras import MissingExtraError


def imported(package: str) -> Any:
    """Import a package of the extra. Raises MissingExtraError."""
    try:
        return import_module(package)
    except ImportError:
        what = f"SQL needs {package}, which is not installed"
        raise MissingExtraError(what, where="understudy[sql]", extras="sql") from None
