"""The project's wheel, as a release has it, and the versions of what it needs: by uv, which `make setup` installs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.repository import ROOT

UV = Path(sys.executable).with_name("uv")
INSTALL_LIMIT_S = 900


def build_wheel(folder: Path) -> Path:
    """The wheel, made from the source archive."""
    subprocess.run([UV, "build", "--quiet", "--out-dir", folder, ROOT], check=True, timeout=INSTALL_LIMIT_S)
    (built,) = folder.glob("*.whl")
    return built


def write_versions(file: Path) -> None:
    """The versions that uv.lock names for all extras, one a line: constraints for an installer."""
    export = ["export", "--frozen", "--all-extras", "--no-emit-project", "--no-dev", "--no-hashes"]
    command: list[str | Path] = [UV, "--quiet", *export, "--project", ROOT, "--output-file", file]
    subprocess.run(command, check=True, timeout=INSTALL_LIMIT_S)
