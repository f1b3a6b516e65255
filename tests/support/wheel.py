"""The project's wheels, as a release has them, and the versions of what they need: by the uv of `make setup`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.repository import ROOT

UV = Path(sys.executable).with_name("uv")
INSTALL_LIMIT_S = 900


def build_wheels(folder: Path) -> Path:
    """Make the wheels from the source archives, and return that of `understudy-spark`; the other one is beside it."""
    command: list[str | Path] = [UV, "build", "--quiet", "--all-packages", "--out-dir", folder, ROOT]
    subprocess.run(command, check=True, timeout=INSTALL_LIMIT_S)
    assert len(list(folder.glob("*.whl"))) == 2
    (built,) = folder.glob("understudy_spark-*.whl")
    return built


def write_versions(file: Path) -> None:
    """The versions that uv.lock names for all extras, one a line: constraints for an installer."""
    export = ["export", "--frozen", "--all-extras", "--no-emit-workspace", "--no-dev", "--no-hashes"]
    command: list[str | Path] = [UV, "--quiet", *export, "--project", ROOT, "--output-file", file]
    subprocess.run(command, check=True, timeout=INSTALL_LIMIT_S)
