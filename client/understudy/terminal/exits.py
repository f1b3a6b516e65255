"""The ends of commands: exit codes that scripts can use, and errors as a line of what, where, and the fix.

Rule: no traceback for anything that the outside world can break; one for our own bugs.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import click

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.masking import masked_text


class ExitCode(IntEnum):
    """The exit codes: they tell a script the outcome without the output."""

    OK = 0
    ABSENT = 1
    USAGE = 2
    REFUSED = 3
    UNREACHABLE = 4


EXIT_CODES_HELP = """\b
Exit codes:
  0  found, or done
  1  the key is absent
  2  wrong usage: bad key, bad bound, bad setting, unknown store
  3  the server refused or cannot answer; the checkpoint cannot be served
  4  the server cannot be reached
"""

INTERRUPTED = 130
PIPE_CLOSED = 141
"""The code that shells report for a program that SIGINT, or SIGPIPE, ended."""


class CommandError(UnderstudyError):
    """An error that knows its exit code; `notes` are further lines, such as candidates and their reasons."""

    def __init__(
        self, what: str, *, where: str = "", fix: str = "", exit_code: ExitCode, notes: Sequence[str] = ()
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.exit_code = exit_code
        self.notes = tuple(notes)


def error_lines(error: UnderstudyError) -> list[str]:
    """Return `error: what (where)`, its notes, and the fix."""
    lines = [f"error: {error.what} ({error.where})" if error.where else f"error: {error.what}"]
    if isinstance(error, CommandError):
        lines += [f"  {note}" for note in error.notes]
    return [*lines, f"  fix: {error.fix}"] if error.fix else lines


def say_error(error: UnderstudyError) -> None:
    for line in error_lines(error):
        click.echo(masked_text(line), err=True)


def exit_code_of(error: UnderstudyError) -> ExitCode:
    """Return an error's exit code, else 3: something cannot answer, or cannot be served."""
    return error.exit_code if isinstance(error, CommandError) else ExitCode.REFUSED
