"""Flags to settings: options made from a table, and the values that the user gave.

Rule: only a flag that was given is passed on, so that UNDERSTUDY_* variables and the file count for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
from pydantic import ValidationError

from understudy.services.flags import NODE_FLAGS, ROUTER_FLAGS, SERVE_FLAGS, Flag
from understudy.terminal.exits import CommandError, ExitCode
from understudy_shared.base.masking import masked_value
from understudy_shared.base.texts import BadSizeError, did_you_mean, parse_size

Command = TypeVar("Command", bound=Callable[..., Any])

PREFIX = "UNDERSTUDY_"
FLAGS_OF: Mapping[str, Sequence[Flag]] = {"serve": SERVE_FLAGS, "node": NODE_FLAGS, "router": ROUTER_FLAGS}
_ALL_FLAGS = [flag for flags in FLAGS_OF.values() for flag in flags]
_OTHER_VARIABLES = (
    *("api_key", "api_key_file", "ca_file", "cert_file", "checkpoint", "config", "key_file", "log_format", "log_level"),
    *("redis_server", "url"),
)

_TYPES: Mapping[str, click.ParamType[Any]] = {
    "text": click.STRING,
    "number": click.INT,
    "size": click.STRING,
    "path": click.Path(),
    "switch": click.BOOL,
}


def setting_options(table: Sequence[Flag]) -> Callable[[Command], Command]:
    """Add every setting as an option; its value is None when the flag was not given."""

    def with_options(command: Command) -> Command:
        for flag in reversed(table):
            option = click.option(
                flag.option,
                flag.name,
                type=_TYPES[flag.kind],
                is_flag=flag.kind == "switch" or None,
                metavar="SIZE" if flag.kind == "size" else None,
                default=None,
                help=f"{flag.help}  {flag.default_text}",
            )
            command = option(command)
        return command

    return with_options


def given_settings(table: Sequence[Flag], flags: Mapping[str, Any], *checkpoints: str) -> dict[str, Any]:
    """Return the settings that the service gets: those that were given, and nothing else."""
    settings: dict[str, Any] = {"checkpoints": checkpoints} if len(checkpoints) > 1 else {}
    if len(checkpoints) == 1:
        settings["checkpoint"] = checkpoints[0]
    for flag in table:
        value = flags[flag.name]
        if value is not None:
            settings[flag.name] = _bytes(flag, value) if flag.kind == "size" else value
    return settings


def place_of(name: str) -> str:
    """Name the places where a setting may be given."""
    source = "CHECKPOINT" if name == "checkpoint" else "--" + name.replace("_", "-")
    return f"{source}, UNDERSTUDY_{name.upper()}, or the file of --config"


def settings_error(error: ValidationError, *, command: str) -> CommandError:
    """Make one error of all wrong settings of a service."""
    problems = []
    for problem in error.errors(include_url=False):
        name = ".".join(map(str, problem["loc"]))
        if not name:  # what is wrong is how several settings go together
            problems.append(problem["msg"].removeprefix("Value error, "))
        elif problem["type"] == "missing":
            problems.append(f"{name}: it was not given ({place_of(name)})")
        elif problem["type"] == "extra_forbidden":
            hint = did_you_mean(name, _names(command))
            problems.append(f"{name}: there is no such setting. {hint}".strip())
        else:
            problems.append(f"{name}={masked_value(problem['input'])}: {problem['msg']} ({place_of(name)})")
    first, *others = problems
    return CommandError(
        first, notes=others, fix=f"understudy {command} --help lists every setting", exit_code=ExitCode.USAGE
    )


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Warn of each UNDERSTUDY_* variable that no service and no command knows."""
    known = [PREFIX + name.upper() for name in {*_OTHER_VARIABLES, *(flag.name for flag in _ALL_FLAGS)}]
    unknown = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    return [f"the variable {name} is not a setting. {did_you_mean(name, known)}".strip() for name in unknown]


def _names(command: str) -> list[str]:
    return ["checkpoint", *(flag.name for flag in FLAGS_OF.get(command, ()))]


def _bytes(flag: Flag, text: str) -> int:
    try:
        return parse_size(text)
    except BadSizeError as error:
        raise CommandError(error.what, where=flag.option, fix=error.fix, exit_code=ExitCode.USAGE) from None
