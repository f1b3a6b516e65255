"""Makes `.venv` in the checkout: a pinned uv in it, and everything that uv.lock names. Needs Python and nothing else.

Run by `make setup`, and by `make demo` without the tools that only tests and checks need. When nothing has changed
since the last time it does nothing, so it is quick and needs no network.
Standard library only, and no syntax newer than the check of Python's version: an old Python must get as far as that.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

UV_VERSION = "0.13.8"
OLDEST_PYTHON = (3, 11)
STAMP = "understudy-setup"
_TOOLS = "tools"
_SHOW_JAVA = """
import pathlib, sys
from understudy.demo.java_home import java_home
home = java_home(pathlib.Path(sys.argv[1]))
print(f"setup: Java {home.path} (from {home.origin})")
"""


class SetupError(Exception):
    """The lack of something that the set-up needs, with what to do about it."""


def refusal(version: tuple[int, int], executable: str, *, has_ensurepip: bool) -> str | None:
    """Return why this Python cannot make the environment, or `None` when it can."""
    ours = ".".join(map(str, version))
    if version < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return (
            f"Understudy needs Python {oldest} or newer, and {executable} is {ours}.\n"
            f"Install a newer one, and name it: make PYTHON=python{oldest}"
        )
    if not has_ensurepip:
        return (
            f"{executable} has no 'ensurepip', so it cannot make a virtual environment with pip in it.\n"
            f"On Debian and Ubuntu: apt-get install python{ours}-venv\n"
            "Or name another Python: make PYTHON=/path/to/python3"
        )
    return None


def fingerprint(root: Path) -> str:
    """Hash the files that decide what is in the environment."""
    digest = hashlib.sha256()
    for path in (root / "pyproject.toml", root / "aligned" / "pyproject.toml", root / "uv.lock", Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_current(root: Path, *, tools: bool) -> bool:
    """Whether the environment is there and made from the files as they are, with the developers' tools if asked."""
    stamp = _stamp(root)
    made = stamp.read_text().split() if stamp.exists() else []
    return _python(root).exists() and made[:1] == [fingerprint(root)] and (not tools or _TOOLS in made)


def write_stamp(root: Path, *, tools: bool) -> None:
    """Record that the environment is what the files ask for."""
    _stamp(root).write_text(f"{fingerprint(root)} {_TOOLS if tools else ''}".strip())


def set_up(root: Path, *, tools: bool = True) -> None:
    """Make the environment, or bring it up to date. Stopped half-way, it goes on from there the next time.

    Without `tools` what tests and checks need is not installed; what is there of it stays.
    """
    if is_current(root, tools=tools):
        return
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    reason = refusal(sys.version_info[:2], sys.executable, has_ensurepip=has_ensurepip)
    if reason is not None:
        raise SetupError(reason)
    python = _python(root)
    if not _succeeds(str(python), "-c", ""):
        _step("making .venv", sys.executable, "-m", "venv", "--clear", str(root / ".venv"))
    uv = python.parent / "uv"
    if not _is_uv(uv):
        if not _succeeds(str(python), "-m", "pip", "--version"):
            _step("adding pip", str(python), "-m", "ensurepip")
        _step(f"installing uv {UV_VERSION}", str(python), "-m", "pip", "install", "--quiet", f"uv=={UV_VERSION}")
    if not list((root / ".venv").glob("lib/python*/site-packages/pyspark")):
        _say("the first time downloads and builds PySpark: half a gigabyte, a few minutes")
    # Inexact: uv itself is not a dependency of the project, and must not remove itself.
    arguments = ["sync", "--locked", "--all-extras", "--inexact", "--python", str(python), "--directory", str(root)]
    _step("installing what uv.lock names", str(uv), *arguments, *([] if tools else ["--no-default-groups"]))
    _step("looking for a Java that starts Spark", str(python), "-c", _SHOW_JAVA, str(root / ".cache"))
    write_stamp(root, tools=tools)


def _python(root: Path) -> Path:
    return root / ".venv" / "bin" / "python"


def _stamp(root: Path) -> Path:
    return root / ".venv" / STAMP


def _step(what: str, *command: str) -> None:
    _say(what)
    done = _run(*command)
    if done.returncode != 0:
        raise SetupError(f"{what}: exit code {done.returncode} was returned by: {' '.join(command)}")


def _succeeds(*command: str) -> bool:
    return _run(*command, capture_output=True).returncode == 0


def _is_uv(program: Path) -> bool:
    said = _run(str(program), "--version", capture_output=True).stdout
    return (said or "").split()[:2] == ["uv", UV_VERSION]


def _run(*command: str, capture_output: bool = False) -> subprocess.CompletedProcess[str]:
    # An environment that happens to be active is not the one to install into.
    environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    try:
        return subprocess.run(command, env=environment, capture_output=capture_output, text=True, check=False)  # noqa: S603
    except OSError:
        return subprocess.CompletedProcess(command, 127, "", "")


def _say(line: str) -> None:
    sys.stdout.write(f"setup: {line}\n")
    sys.stdout.flush()


def main() -> int:
    """Set up the checkout; a refusal is a message and exit code 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", default=Path(__file__).resolve().parent.parent, type=Path)
    parser.add_argument("--no-tools", action="store_true", help="leave out what only tests and checks need")
    given = parser.parse_args()
    try:
        set_up(given.root.resolve(), tools=not given.no_tools)
    except SetupError as error:
        sys.stderr.write(f"setup: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
