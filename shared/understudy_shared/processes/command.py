"""The command by which a process starts another one of its own code."""

from __future__ import annotations

import sys
from pathlib import Path


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this process's Python."""
    # `-m` looks for modules in the working folder first: only where this process does so, too.
    found_there = [] if {"", str(Path.cwd())} & set(sys.path) else ["-P"]
    return [sys.executable, *found_there, "-m", module, *arguments]
