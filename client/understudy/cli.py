"""The `understudy` command: what the console script calls. The commands are in `commands`."""

from __future__ import annotations

import sys

from understudy_shared.base.extras import install_fix
from understudy_shared.base.processes import without_collections


def main() -> None:
    """Run the command line. Without the packages it needs, say which extra brings them."""
    try:
        with without_collections():
            from understudy.commands.group import cli  # noqa: PLC0415  # the one import that may fail, and must say why
    except ModuleNotFoundError as error:
        sys.exit(f"error: the command line needs {error.name}\n  fix: {install_fix()}")
    cli(prog_name="understudy")
