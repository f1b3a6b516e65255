"""The commands that files of a deployment run exist, with their flags. Templates of the chart are read as text."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
from tests.support.repository import ROOT
from tests.support.services.deploy_files import COMPOSE, DOCKERFILE
from tools.chart import CHART

from understudy.commands.group import cli

FILES = [
    DOCKERFILE,
    COMPOSE,
    *(path for path in sorted(CHART.rglob("*")) if path.is_file() and not path.is_symlink()),
    *sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml")),
    *sorted((ROOT / "deploy" / "compose").iterdir()),
    *sorted((ROOT / "deploy").glob("*.md")),
    *sorted((ROOT / "deploy").glob("*.sh")),
    *sorted((ROOT / "deploy" / "prometheus").glob("*.yml")),
]
COMMAND = re.compile(r"\bunderstudy ([a-z][a-z-]+)((?:\s+(?:--?[\w-]+|\"[^\"]*\"|\{\{[^}]*\}\}|[\w./:$-]+))*)")


def text_of(path: Path) -> str:
    """A file, with a command that goes on in the next line in one."""
    return re.sub(r"\\\n\s*", "", path.read_text())


def test_every_command_that_a_file_runs_exists_with_its_flags() -> None:
    for name, rest in (found for path in FILES for found in COMMAND.findall(text_of(path))):
        if name not in cli.list_commands(click.Context(cli)):
            assert not rest.strip().startswith("--"), (name, rest)  # a word of a sentence
            continue
        command = cli.get_command(click.Context(cli), name)
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), rest.split()[0])
        assert command is not None
        options = {option for each in command.params for option in each.opts}
        given = {word.partition("=")[0] for word in shlex.split(rest) if word.startswith("--")}
        assert given - options == set(), (name, given - options)
