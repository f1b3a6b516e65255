"""Commands that install a missing package: by the extra that brings it, from where this package was installed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

from understudy_shared.base.errors import UnderstudyError

PACKAGE = "understudy-spark"
"""The name in the package index, where `understudy` is another project (decision 0092)."""

_WITH_ALIGNED = frozenset({"all", "pipeline"})
"""The extras that bring `understudy-aligned`."""


class MissingExtraError(UnderstudyError):
    """A package that is not installed; `extras` name what brings it, separated by commas."""

    def __init__(self, what: str, *, extras: str, where: str = "") -> None:
        super().__init__(what, where=where, fix=install_fix(extras))
        self.extras = extras


def install_fix(extras: str = "") -> str:
    """Return the command that installs these extras, separated by commas; the package alone without any."""
    return " ".join(["pip install", *map(shlex.quote, find_links(extras)), f"'{requirement(extras)}'"])


def requirement(extras: str, *, exactly: bool = False) -> str:
    """Return what to ask an installer for: the extras, from where this package came; `exactly`: of this version."""
    version, origin = _installed()
    wanted = f"{PACKAGE}[{extras}]" if extras else PACKAGE
    if origin:
        return f"{wanted} @ {origin}"
    return f"{wanted}=={version}" if exactly and version else wanted


def find_links(extras: str) -> list[str]:
    """Return the options for an installer to find `understudy-aligned`: it lies next to the file of this package."""
    _, origin = _installed()
    is_file = origin.startswith("file://") and origin.endswith((".whl", ".tar.gz"))
    if not is_file or _WITH_ALIGNED.isdisjoint(extras.split(",")):
        return []
    return ["--find-links", str(Path(unquote(urlsplit(origin).path)).parent)]


def _installed() -> tuple[str, str]:
    """Return the version of the installed package and the URL that it came from; an index leaves no URL."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415  # slow, and only errors need it

    try:
        installed = distribution(PACKAGE)
    except PackageNotFoundError:  # run from a folder of sources
        return "", ""
    return installed.version, json.loads(installed.read_text("direct_url.json") or "{}").get("url", "")
