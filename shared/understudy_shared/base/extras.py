"""The command that installs a missing package. Understudy is on no package index: a name alone finds nothing there."""

from __future__ import annotations


def install_fix(extras: str) -> str:
    """Name the command that installs these extras, separated by commas."""
    return f"In a clone of Understudy: pip install '.[{extras}]'; elsewhere, the path of its wheel in place of the dot"
