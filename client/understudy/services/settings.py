"""The settings of services as flags of `understudy serve`, `node` and `router`, and where each value comes from.

Rule: only a flag that was given is passed on, so that UNDERSTUDY_* variables and the file count for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import click
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from understudy.terminal.exits import CommandError, ExitCode
from understudy_shared.base.masking import masked_location, masked_value
from understudy_shared.base.texts import BadSizeError, did_you_mean, parse_size, size_text
from understudy_shared.settings import (
    AnnouncedFields,
    BusFields,
    ClusterNodeFields,
    Fields,
    FleetFields,
    HttpFields,
    NodeFields,
    RouterFields,
    ServiceFields,
)

Kind = Literal["text", "number", "size", "path", "switch"]
_KINDS: tuple[tuple[type, Kind], ...] = ((bool, "switch"), (int, "number"), (Path, "path"), (str, "text"))


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting as a flag. `default` is the service's: a value, or words when it is derived."""

    name: str
    kind: Kind
    default: int | str | bool | None
    help: str
    is_required: bool = False

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as the help shows it."""
        if self.is_required:
            return "[required]"
        if self.default is None:
            return "[default: none]"
        if self.kind == "switch":
            return f"[default: {'on' if self.default else 'off'}]"
        is_size = self.kind == "size" and isinstance(self.default, int)
        return f"[default: {size_text(int(self.default)) if is_size else self.default}]"


def flags_of(*declarations: type[Fields]) -> tuple[Flag, ...]:
    """Return a flag for each setting, required ones first. What is declared again later has the last declaration.

    The checkpoint is an argument of the commands.
    """
    fields: dict[str, FieldInfo] = {}
    for each in declarations:
        fields |= each.model_fields
    flags = [_flag(name, field) for name, field in fields.items() if name != "checkpoint"]
    return tuple(sorted(flags, key=lambda flag: not flag.is_required))


def _flag(name: str, field: FieldInfo) -> Flag:
    default: Any = None
    if not field.is_required():
        more = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        default = more.get("derived", None if field.default == "" else field.default)
    return Flag(name, _kind(name, field.annotation), default, field.description or "", field.is_required())


def _kind(name: str, annotation: Any) -> Kind:
    if "bytes" in name.split("_"):
        return "size"
    plain = next(iter(get_args(annotation)), annotation)
    return next(kind for base, kind in _KINDS if issubclass(plain, base))


SERVE_FLAGS = flags_of(FleetFields, ServiceFields, NodeFields, HttpFields)
NODE_FLAGS = flags_of(BusFields, FleetFields, AnnouncedFields, ServiceFields, ClusterNodeFields, NodeFields, HttpFields)
ROUTER_FLAGS = flags_of(BusFields, ServiceFields, RouterFields, HttpFields)

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


class InForce(NamedTuple):
    """A setting: its value as people may see it (None: not set), and `flag`, `variable`, `file` or `default`."""

    name: str
    value: object
    source: str
    where: str


def in_force(
    table: Sequence[Flag], given: Mapping[str, Any], environ: Mapping[str, str], file: Mapping[str, Any], path: str
) -> list[InForce]:
    """List every setting, by the services' precedence: a flag, a variable, the file, the default (pure)."""
    variables = {name.lower(): (name, value) for name, value in environ.items()}
    names = ["checkpoint"] if any(flag.name == "checkpoint_wait_ms" for flag in table) else []
    defaults: dict[str, object] = {flag.name: flag.default for flag in table}
    found = []
    for name in [*names, *(flag.name for flag in table)]:
        variable = variables.get((PREFIX + name).lower())
        if name in given:
            option = "CHECKPOINT" if name == "checkpoint" else "--" + name.replace("_", "-")
            found.append(InForce(name, _shown(given[name]), "flag", option))
        elif variable is not None:
            found.append(InForce(name, _shown(variable[1]), "variable", variable[0]))
        elif name in file:
            found.append(InForce(name, _shown(file[name]), "file", path))
        else:
            found.append(InForce(name, defaults.get(name), "default", ""))
    return found


def _shown(value: object) -> object:
    return masked_location(value) if isinstance(value, str) else value
