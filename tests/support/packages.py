"""Packages that the project does not depend on, for the tests that use them: a folder of each in `.cache`, by `uv`."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.repository import ROOT

_INSTALL_LIMIT_S = 900


class NotInstalledError(Exception):
    """Packages that cannot be had here, with the reason."""


def installed(name: str, *packages: str) -> Path:
    """Return the folder of packages, installed when they are first asked for. Raises NotInstalledError."""
    folder, wanted = ROOT / ".cache" / name, " ".join(packages)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "installed"
        if not done.exists() or done.read_text() != wanted:
            _install(folder / "packages", packages)
            done.write_text(wanted)
    return folder / "packages"


def _install(target: Path, packages: Sequence[str]) -> None:
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(target), *packages]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_INSTALL_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotInstalledError(f"no {packages[-1]}: it could not be installed ({error})") from error
