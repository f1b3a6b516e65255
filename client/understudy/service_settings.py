"""Flags to settings: options made of a table, and what the user gave handed on.

Rule: only a flag that was given is passed on, so that UNDERSTUDY_* variables and the file keep their say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
from pydantic import ValidationError

from understudy.exits import CommandError, ExitCode
from understudy.service_flags import Flag
from understudy_shared.masking import masked_value
from understudy_shared.sizes import BadSizeError, parse_size

Command = TypeVar("Command", bound=Callable[..., Any])

_TYPES: Mapping[str, click.ParamType[Any]] = {
    "text": click.STRING,
    "number": click.INT,
    "size": click.STRING,
    "path": click.Path(),
}


def setting_options(table: Sequence[Flag]) -> Callable[[Command], Command]:
    """Every setting as an option; its value is None when the flag was not given."""

    def with_options(command: Command) -> Command:
        for flag in reversed(table):
            option = click.option(
                flag.option,
                flag.name,
                type=_TYPES[flag.kind],
                metavar="SIZE" if flag.kind == "size" else None,
                default=None,
                help=f"{flag.help}  {flag.default_text}",
            )
            command = option(command)
        return command

    return with_options


def given_settings(table: Sequence[Flag], flags: Mapping[str, Any], *, checkpoint: str | None = None) -> dict[str, Any]:
    """What the service is told: what was given, and nothing else."""
    settings: dict[str, Any] = {} if checkpoint is None else {"checkpoint": checkpoint}
    for flag in table:
        value = flags[flag.name]
        if value is not None:
            settings[flag.name] = _bytes(flag, value) if flag.kind == "size" else value
    return settings


def place_of(name: str) -> str:
    """Where a setting may come from."""
    source = "CHECKPOINT" if name == "checkpoint" else "--" + name.replace("_", "-")
    return f"{source}, UNDERSTUDY_{name.upper()}, or the file of --config"


def settings_error(error: ValidationError, *, command: str) -> CommandError:
    """Every wrong setting of a service, in one error."""
    problems = []
    for problem in error.errors(include_url=False):
        name = ".".join(map(str, problem["loc"])) or "settings"
        if problem["type"] == "missing":
            problems.append(f"{name}: none was given ({place_of(name)})")
        elif problem["type"] == "extra_forbidden":
            problems.append(f"{name}: there is no such setting")
        else:
            problems.append(f"{name}={masked_value(problem['input'])}: {problem['msg']} ({place_of(name)})")
    first, *others = problems
    return CommandError(
        first, notes=others, fix=f"understudy {command} --help lists every setting", exit_code=ExitCode.USAGE
    )


def _bytes(flag: Flag, text: str) -> int:
    try:
        return parse_size(text)
    except BadSizeError as error:
        raise CommandError(error.what, where=flag.option, fix=error.fix, exit_code=ExitCode.USAGE) from None
