"""The packages of the extra `sql`, imported when a statement needs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.extras import install_fix


class MissingExtraError(UnderstudyError):
    """A package that is not installed; `fix` has the command that installs it."""


def imported(package: str) -> Any:
    """Import a package of the extra. Raises MissingExtraError."""
    try:
        return import_module(package)
    except ImportError:
        raise MissingExtraError(
            f"SQL needs {package}, which is not installed", where="understudy[sql]", fix=install_fix("sql")
        ) from None
