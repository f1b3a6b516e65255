"""Writes the forms of all interfaces of this version, which later releases are compared with.

    python -m tools.record_forms

Run it before a version is tagged; `make release-check` says when it is due. A version that was released is never
recorded again: what differs from it is a change that docs/compatibility.md allows, or a fault.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib

from tests.support.forms.recorded import RECORDED, file_of, files_today
from tests.support.repository import ROOT


def main() -> int:
    """Write a file for each interface."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if is_tagged(version):
        sys.stderr.write(f"{version} is released, so its forms are fixed: give the project its next version first\n")
        return 1
    (RECORDED / version).mkdir(parents=True, exist_ok=True)
    for name, text in files_today().items():
        file_of(version, name).write_text(text)
    sys.stdout.write(f"{RECORDED / version}\n")
    return 0


def is_tagged(version: str) -> bool:
    """Whether the repository has the tag of a version. Without git it has not."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--quiet", "--verify", f"refs/tags/v{version}"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
