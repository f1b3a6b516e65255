"""A small disk for one node, where the machine allows mounting a file system."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE = "48m"


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | str]:
    """A tmpfs at `folder` until the end of the block, or why there is none."""
    folder.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        yield "there is no mount command"
        return
    if done.returncode != 0:
        yield f"no file system can be mounted here: {done.stderr.strip()}"
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
