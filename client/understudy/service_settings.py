"""The flags of `understudy serve`: one per setting of the service, with unit and default.

Rule: only a flag that was given is passed on, so that UNDERSTUDY_* variables and the file keep their say. The service
owns names, ranges and defaults; a test compares this table with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import click

from understudy.exits import CommandError, ExitCode
from understudy_shared.sizes import BadSizeError, parse_size, size_text

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting as a flag. `default` is the service's: a value, or words when it is derived."""

    name: str
    kind: Literal["text", "number", "size", "path"]
    default: int | str | None
    help: str

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as the help shows it."""
        if self.default is None:
            return "none"
        return size_text(self.default) if self.kind == "size" and isinstance(self.default, int) else str(self.default)


FLAGS = (
    Flag("host", "text", "127.0.0.1", "Address to listen on. There is no authentication yet: mind who can reach it."),
    Flag("port", "number", 8080, "Port to listen on; 0 takes a free one."),
    Flag("application_id", "text", "last part of CHECKPOINT", "Names the query in answers and position tokens."),
    Flag(
        "data_dir", "path", "a folder per checkpoint under ~/.cache/understudy", "Where local copies of the state go."
    ),
    Flag("aliases", "path", None, "TOML file with names for stores and columns."),
    Flag("lag_refresh_ms", "number", 1000, "Longest time in ms between two looks at the commit log."),
    Flag("end_expiry_ms", "number", 10_000, "After how many ms an unconfirmed end makes lag unknown."),
    Flag("acceptable_recovery_lag", "number", 10, "Versions behind up to which a replica counts as caught up."),
    Flag("statestore_cache_max_bytes", "size", 10 * MIB, "One block cache for all stores; 0 disables it."),
    Flag("cache_max_bytes_buffering", "size", None, "Deprecated name of --statestore-cache-max-bytes."),
    Flag("overlay_max_bytes", "size", 64 * MIB, "Changes since its snapshot that a store partition keeps in memory."),
    Flag("workers", "number", 3, "Threads that restore and follow; one is always kept for following."),
    Flag("max_in_flight", "number", 1024, "Requests answered at once; one more gets 429."),
)


_TYPES: Mapping[str, click.ParamType[Any]] = {
    "text": click.STRING,
    "number": click.INT,
    "size": click.STRING,
    "path": click.Path(),
}


def setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Every setting as an option; its value is None when the flag was not given."""
    for flag in reversed(FLAGS):
        text = f"{flag.help}  [default: {flag.default_text}]"
        metavar = "SIZE" if flag.kind == "size" else None
        option = click.option(flag.option, flag.name, type=_TYPES[flag.kind], metavar=metavar, default=None, help=text)
        command = option(command)
    return command


def given_settings(checkpoint: str | None, flags: Mapping[str, Any]) -> dict[str, object]:
    """What the service is told: the flags that were given, and nothing else."""
    settings: dict[str, object] = {} if checkpoint is None else {"checkpoint": checkpoint}
    for flag in FLAGS:
        value = flags[flag.name]
        if value is not None:
            settings[flag.name] = _bytes(flag, value) if flag.kind == "size" else value
    return settings


def place_of(name: str) -> str:
    """Where a setting may come from."""
    source = "CHECKPOINT" if name == "checkpoint" else "--" + name.replace("_", "-")
    return f"{source}, UNDERSTUDY_{name.upper()}, or the file of --config"


def _bytes(flag: Flag, text: str) -> int:
    try:
        return parse_size(text)
    except BadSizeError as error:
        raise CommandError(error.what, where=flag.option, fix=error.fix, exit_code=ExitCode.USAGE) from None
