"""The page of the command line, made of the parsers that read it."""

from __future__ import annotations

import inspect
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

import click
from tools.reference.markdown import GENERATED, code, fence, page, plain, table

from understudy.commands.group import cli
from understudy.terminal.exits import EXIT_CODES_HELP
from understudy_node.settings import ClusterNodeSettings
from understudy_router.settings import RouterSettings

_HIDDEN = "--help"
_SERVICES = {"serve": "Node", "node": "Node", "router": "Router"}
"""Commands whose options are settings, and the section of the page of settings that has those of their own."""

_SETTINGS = frozenset(
    "--" + name.replace("_", "-") for each in (ClusterNodeSettings, RouterSettings) for name in each.model_fields
)
"""Options that the page of settings describes."""

_SHARED = 4
"""An option that so many commands have with the same words is described once."""

_OF_MOST = 0.4
"""One of more than this part of the commands is not named at each of them."""

Option = tuple[str, str]
"""The names of an option, and its help."""


def command_line_page() -> str:
    """Render every command with its arguments, options and examples."""
    top = [(path, command) for path, command in _commands() if len(path) == 1]
    return page(
        "# Command line",
        GENERATED.format(source="the parsers of the command line"),
        "`understudy COMMAND --help` prints the same. Each [setting](settings.md) of a service is an option of the "
        "command that starts it. [Common options](#common-options) are not named at each command.",
        table(
            ("command", "does"),
            ((f"[{code(path[0])}](#{path[0]})", plain(_first_sentence(command))) for path, command in top),
        ),
        fence(_kept_lines(EXIT_CODES_HELP), "text"),
        *(part for path, command in _commands() for part in _command(path, command)),
        "## Common options",
        "Of nearly all commands that ask a server:",
        _option_table(_common_options()),
        "## Options of several commands",
        _option_table(option for option in _shared_options() if option not in _common_options()),
    )


@cache
def _commands() -> list[tuple[tuple[str, ...], click.Command]]:
    """Return every command with its words, in the order of the help."""
    return list(_below(cli, click.Context(cli, info_name="understudy"), ()))


def _below(
    group: click.Group, context: click.Context, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from _below(command, click.Context(command, info_name=name, parent=context), (*path, name))


def _command(path: tuple[str, ...], command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(("understudy", *path)))
    yield f"{'#' * (len(path) + 1)} {' '.join(path)}"
    yield fence(" ".join([context.command_path, *command.collect_usage_pieces(context)]), "text")
    yield from _prose(command.help or "")
    if path[-1] in _SERVICES:
        section = _SERVICES[path[-1]]
        yield f"And [settings of a {section.lower()}](settings.md#{section.lower()}) as options."
    options = _options(command)
    yield _option_table(option for option in options if option not in _shared_options())
    named = (option for option in options if option in _shared_options() and option not in _common_options())
    shared = [code(_longest(names)) for names, _ in named]
    if shared:
        yield f"And [options of several commands](#options-of-several-commands): {', '.join(shared)}."


def _option_table(options: Iterable[Option]) -> str:
    return table(("option", "is"), ((code(names), plain(text)) for names, text in options))


def _options(command: click.Command) -> list[Option]:
    """Return the options of a command, but for those that are settings of services."""
    context = click.Context(command)
    records = [param.get_help_record(context) for param in command.get_params(context)]
    shown = [record for record in records if record is not None and _HIDDEN not in record[0]]
    is_service = any("--end-expiry-ms" in names for names, _ in shown)
    return [each for each in shown if not (is_service and _longest(each[0]) in _SETTINGS)]


@cache
def _shared_options() -> list[Option]:
    return _options_of(_SHARED)


@cache
def _common_options() -> list[Option]:
    return _options_of(_OF_MOST * len(_commands()))


def _options_of(least: float) -> list[Option]:
    """Return the options that at least so many commands have with the same words."""
    counted = Counter(option for _, command in _commands() for option in _options(command))
    return sorted(option for option, number in counted.items() if number >= least)


def _longest(names: str) -> str:
    """Return the long name of `-u, --url URL`."""
    return max((name.split()[0] for name in names.split(",")), key=len)


def _first_sentence(command: click.Command) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split())


def _prose(text: str) -> Iterator[str]:
    """Yield paragraphs; what the help keeps line by line (`\\b`) is a block of code."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            yield fence(_kept_lines(paragraph), "text")
        else:
            yield plain(paragraph)


def _kept_lines(text: str) -> str:
    return textwrap.dedent(text.replace("\b", "").strip("\n"))
