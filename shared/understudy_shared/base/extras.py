"""Commands that install a missing package: by the extra that brings it, from where this package was installed."""

from __future__ import annotations

import json

from understudy_shared.base.errors import UnderstudyError

PACKAGE = "understudy-spark"
"""The name in the package index, where `understudy` is another project (decision 0092)."""


class MissingExtraError(UnderstudyError):
    """A package that is not installed; `extras` name what brings it, separated by commas."""

    def __init__(self, what: str, *, extras: str, where: str = "") -> None:
        super().__init__(what, where=where, fix=install_fix(extras))
        self.extras = extras


def install_fix(extras: str) -> str:
    """Return the command that installs these extras, separated by commas."""
    return f"pip install '{requirement(extras)}'"


def requirement(extras: str, *, exactly: bool = False) -> str:
    """Return what to ask an installer for: the extras, from where this package came; `exactly`: of this version."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415  # slow, and only errors need it

    try:
        installed = distribution(PACKAGE)
    except PackageNotFoundError:  # run from a folder of sources
        return f"{PACKAGE}[{extras}]"
    origin = json.loads(installed.read_text("direct_url.json") or "{}").get("url")  # an index leaves no such file
    if origin:
        return f"{PACKAGE}[{extras}] @ {origin}"
    return f"{PACKAGE}[{extras}]=={installed.version}" if exactly else f"{PACKAGE}[{extras}]"
