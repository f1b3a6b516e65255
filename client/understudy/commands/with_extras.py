"""`uvx understudy-spark serve`: a command that lacks packages, started again by uv with the extra that brings them.

Rule: only where uvx made this environment, for one command. An environment that was made to last gets no packages
that its owner did not install: there the error names the command that does it (decision 0084).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import click

from understudy_shared.base.extras import requirement

STARTED_AGAIN = "_UNDERSTUDY_STARTED_AGAIN"
"""The variable that is set for the command that uv starts: what it lacks then is an error."""


def start_with_extras(extras: str) -> None:
    """Let uv take this process's place, with the extras; return at once where uvx did not start it."""
    if not is_by_uvx(os.environ, sys.prefix):
        return
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = uv_command(os.environ["UV"], requirement(extras, exactly=True), version, sys.argv[1:])
    click.echo(f"the extra {extras} is missing: uv starts the command again with it", err=True)
    os.execve(command[0], command, {**os.environ, STARTED_AGAIN: "1"})  # noqa: S606  # uv named itself


def is_by_uvx(environ: Mapping[str, str], prefix: str) -> bool:
    """Whether uvx made the environment at `prefix` for this one command (pure).

    uv names itself in UV. `uv run` counts its depth, and an environment that is activated is somebody's own.
    """
    others = {"UV_RUN_RECURSION_DEPTH", STARTED_AGAIN}
    return "UV" in environ and not others & environ.keys() and environ.get("VIRTUAL_ENV") != prefix


def uv_command(uv: str, wanted: str, version: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that starts `understudy` with these arguments, of what is wanted, by this Python (pure)."""
    return [uv, "tool", "run", "--python", version, "--from", wanted, "understudy", *arguments]
