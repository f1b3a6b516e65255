"""A disk of a few hundred KB, and a read-only one: mounted file systems, for root on Linux only."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs at `folder`; the test is skipped where that cannot be had."""
    folder.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def empty(folder: Path) -> None:
    """Remove all that lies in it; it may be a mounted file system itself."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def fill(folder: Path) -> Path:
    """A file that takes all the space there is."""
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        return ballast
