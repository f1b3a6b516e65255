"""The page of the command line, made of the parsers that read it."""

from __future__ import annotations

import inspect
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import click
from tools.reference.markdown import GENERATED, code, entries, fence, page, plain

from understudy.commands.group import cli
from understudy.terminal.exits import EXIT_CODES_HELP
from understudy_node.settings import ClusterNodeSettings
from understudy_router.settings import RouterSettings

_HIDDEN = "--help"
_OF_NODES = "settings of [a node](settings.md#node) and [of many queries](settings.md#node-of-many-queries)"
_SERVICES = {"serve": _OF_NODES, "node": _OF_NODES, "router": "settings of [a router](settings.md#router)"}
"""Commands whose options are settings, and the sections of the page of settings that have those of their own."""

_SETTINGS = frozenset(
    "--" + name.replace("_", "-") for each in (ClusterNodeSettings, RouterSettings) for name in each.model_fields
)
"""Options that the page of settings describes."""

_OF_SETTINGS = "Every setting can be a flag"
"""The beginning of a paragraph that the page of settings says, too."""

_GROUPS: Mapping[str, tuple[str, Sequence[str]]] = {
    "Common options": (
        "get", ("--url", "--application", "--ca-file", "--cert-file", "--key-file", "--timeout-s", "--json"),
    ),
    "Bounds": (
        "get",
        (
            "--max-lag", "--max-staleness-ms", "--min-position", "--version", "--snapshot", "--at", "--require-active",
            "--unknown-lag", "--wait-ms",
        ),
    ),
    "Elements of a list": ("get", ("--limit", "--cursor")),
    "Which rows": ("scan", ("--where", "--prefix", "--from", "--to", "--cursor")),
}  # fmt: skip
"""Options that commands have together, as one of them has them. A command names the group."""

_REST = "Options of several commands"

Option = tuple[str, str]
"""The names of an option, and its help."""


def command_line_page() -> str:
    """Render what commands share, and every command with its own arguments, options and examples."""
    top = [path[0] for path, _ in _commands() if len(path) == 1]
    return page(
        "# Command line",
        GENERATED.format(source="the parsers of the command line"),
        "`understudy COMMAND --help` prints the same, with examples. Options that a command only names are described "
        f"in [the lists at the top]({_anchor(next(iter(_GROUPS)))}). Each [setting](settings.md) of a service is an "
        "option of the command that starts it.",
        ", ".join(f"[{code(name)}](#{name})" for name in top),
        fence(_kept_lines(EXIT_CODES_HELP), "text"),
        *(part for title, found in _groups().items() for part in (f"## {title}", entries(map(_option, found)))),
        *(part for path, command in _commands() for part in _command(path, command)),
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
    arguments = command.collect_usage_pieces(context)[1:]
    if arguments and not isinstance(command, click.Group):
        yield code(" ".join([context.command_path, *arguments]))
    said = command.help or ""
    # What a service does has pages of its own.
    said = said.partition("\n\n")[0] if path[-1] in _SERVICES else said
    yield from _prose(said, _said_before(path, command))
    options = _options(command)
    shared = _shared()
    yield entries(_option(option) for option in options if option not in shared and option[1])
    named = list(_named([option for option in options if option in shared]))
    if path[-1] in _SERVICES:
        named.append(_SERVICES[path[-1]])
    if named:
        yield f"And {', '.join(named)}."


def _named(options: Sequence[Option]) -> Iterator[str]:
    """Yield the groups that are there as a whole, and the names of all other shared options."""
    left = options
    for title, group in _groups().items():
        if title != _REST and all(option in options for option in group):
            yield f"[{title.lower()}]({_anchor(title)})"
            left = [option for option in left if option not in group]
    yield from (code(_longest(names)) for names, _ in left)


@cache
def _groups() -> Mapping[str, Sequence[Option]]:
    """Return the options of each group, and the others of several commands, if no two of them have one name."""
    grouped = {
        title: [option for option in _options(dict(_commands())[(name,)]) if _longest(option[0]) in options]
        for title, (name, options) in _GROUPS.items()
    }
    counted = Counter(option for _, command in _commands() for option in _options(command) if option[1])
    taken = {option for group in grouped.values() for option in group}
    rest = sorted(option for option, number in counted.items() if number > 1 and option not in taken)
    named = Counter(_longest(names) for names, _ in (*taken, *rest))
    return {**grouped, _REST: [option for option in rest if named[_longest(option[0])] == 1]}


@cache
def _shared() -> frozenset[Option]:
    return frozenset(option for group in _groups().values() for option in group)


def _option(option: Option) -> tuple[str, str]:
    names, text = option
    return code(names.replace(" RANGE", "")), plain(text)


def _options(command: click.Command) -> list[Option]:
    """Return the options of a command, but for those that are settings of services."""
    context = click.Context(command)
    records = [param.get_help_record(context) for param in command.get_params(context)]
    shown = [record for record in records if record is not None and _HIDDEN not in record[0]]
    is_service = any("--end-expiry-ms" in names for names, _ in shown)
    return [each for each in shown if not (is_service and _longest(each[0]) in _SETTINGS)]


def _longest(names: str) -> str:
    """Return the long name of `-u, --url URL`."""
    return max((name.split()[0] for name in names.split(",")), key=len)


def _anchor(title: str) -> str:
    return "#" + title.lower().replace(" ", "-")


def _said_before(path: tuple[str, ...], command: click.Command) -> frozenset[str]:
    """Return the paragraphs that the commands before this one in its group have in the same words."""
    earlier: set[str] = set()
    for other, each in _commands():
        if each is command:
            break
        if other[:-1] == path[:-1]:
            earlier.update(_paragraphs(each.help or ""))
    return frozenset(earlier)


def _paragraphs(text: str) -> list[str]:
    return inspect.cleandoc(text).split("\n\n")


def _prose(text: str, left_out: frozenset[str]) -> Iterator[str]:
    """Yield paragraphs, but no examples; what the help keeps line by line (`\\b`) is a block of code."""
    for paragraph in _paragraphs(text):
        kept = _kept_lines(paragraph)
        if not (paragraph in left_out or paragraph.startswith(_OF_SETTINGS) or kept.startswith("Example")):
            yield fence(kept, "text") if paragraph.startswith("\b") else plain(paragraph)


def _kept_lines(text: str) -> str:
    return textwrap.dedent(text.replace("\b", "").strip("\n"))
